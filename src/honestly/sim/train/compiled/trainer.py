"""Every client trained by the compiled program, one per core: the numbers of the other trainers, in less time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from honestly.sim.train.compiled.build import library
from honestly.sim.train.compiled.structures import CSchedule, ImageBuffer, layers_of
from honestly.sim.train.flat import Layout
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Model, Trainer, TrainingResult

EVALUATION = 500  # images per call


def _address(array: npt.NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


class CompiledTrainer(Trainer):
    """Trains clients with the compiled program; `supports` says whether there is one and whether it knows the model."""

    def __init__(self, module: nn.Module, pixels: Pixels, sgd: SGD, batch: int) -> None:
        layers = layers_of(module, pixels.size)
        program = library()
        if layers is None or program is None:
            raise ValueError("there is no compiled program for this model: use BatchedTrainer or SequentialTrainer")
        self.program: ctypes.CDLL = program
        self.layers = layers
        self.pixels, self.sgd, self.batch = pixels, sgd, batch
        self.size = Layout.of_parameters(module).size
        self.images = ImageBuffer.of(layers, self.size, pixels)

    @staticmethod
    def supports(module: nn.Module, pixels: Pixels) -> bool:
        """Whether the compiled program can train this model here."""
        on_cpu = pixels.images.device.type == "cpu"
        return on_cpu and layers_of(module, pixels.size) is not None and library() is not None

    def train(self, start: Model, schedules: Sequence[Schedule]) -> TrainingResult:
        """Every client trains a copy of the global model by its own schedule."""
        K = len(schedules)
        theta = start.theta.to(torch.float32).repeat(K, 1)
        loss = torch.zeros(K)

        def work(k: int) -> None:
            self._train(schedules[k], theta[k], loss[k : k + 1])

        self._on_cores(work, range(K))
        steps = torch.tensor([max(s.steps, 1) for s in schedules])
        empty = torch.empty((K, 0))
        return TrainingResult(theta, empty, empty.to(torch.int64), loss / steps)

    def _train(self, schedule: Schedule, theta: Tensor, loss: Tensor) -> None:
        """Train one row in place. The numbers are addresses for C, so they are checked first."""
        T, B = schedule.samples.shape
        samples = np.ascontiguousarray(schedule.samples, dtype=np.int64)
        counts = np.ascontiguousarray(schedule.counts, dtype=np.int64)
        fresh = np.ascontiguousarray(schedule.fresh, dtype=np.uint8)
        flips = None if schedule.flips is None else np.ascontiguousarray(schedule.flips, dtype=np.uint8)
        crops = None if schedule.crops is None else np.ascontiguousarray(schedule.crops, dtype=np.int64)
        _within("sample", samples, 0, len(self.pixels.labels) - 1)
        _within("mini-batch's size", counts, 1, B)
        if crops is not None:
            _within("crop", crops, 0, 2 * self.pixels.crop)
        s = self.sgd
        task = CSchedule(
            steps=T, batch=B, samples=_address(samples), counts=_address(counts), fresh=_address(fresh),
            flips=_address(flips), crops=_address(crops), rate=s.lr, momentum=s.momentum, decay=s.weight_decay,
            nesterov=int(s.nesterov),
        )  # fmt: skip
        address = ctypes.c_void_p(theta.data_ptr())
        model = ctypes.byref(self.images.model)
        if self.program.honestly_train(model, ctypes.byref(task), address, ctypes.c_void_p(loss.data_ptr())):
            raise MemoryError("no memory left for the training of a client")

    def logits(self, model: Model, pixels: Pixels) -> Tensor:
        """(N, classes) scores of all samples."""
        if pixels.size != self.pixels.size:  # the program takes the layers' word for it
            raise ValueError(f"the images are {pixels.size}: the model was made for {self.pixels.size}")
        images = self.images if pixels is self.pixels else ImageBuffer.of(self.layers, self.size, pixels)
        theta = model.theta.to(torch.float32).contiguous()
        N = len(pixels.labels)
        samples = torch.arange(N)
        scores = torch.empty((N, images.model.classes))

        def work(first: int) -> None:
            n = min(EVALUATION, N - first)
            places = (ctypes.c_void_p(t.data_ptr()) for t in (theta, samples[first:]))
            out = ctypes.c_void_p(scores[first:].data_ptr())
            if self.program.honestly_logits(ctypes.byref(images.model), *places, ctypes.c_int64(n), out):
                raise MemoryError("no memory left for the evaluation")

        self._on_cores(work, range(0, N, EVALUATION))
        return scores

    @staticmethod
    def _on_cores(work: Callable[[int], None], parts: Iterable[int]) -> None:
        """One thread per core: the program runs without Python's lock."""
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            for _ in pool.map(work, parts):
                pass


def _within(name: str, values: npt.NDArray[Any], low: int, high: int) -> None:
    if values.size and not low <= int(values.min()) <= int(values.max()) <= high:
        wrong = int(values.max()) if int(values.max()) > high else int(values.min())
        raise ValueError(f"a schedule has the {name} {wrong}: it must be from {low} to {high}")
