"""Large models on a GPU: several clients train side by side, each on its own stream of one captured CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from honestly.sim.train.capture import capture
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.sequential import Lane
from honestly.sim.train.trainer import Model

MOST_GRAPHS = 100  # distinct sizes of last batches that get a graph; more of them run step by step


class Lanes:
    """Every training step is a CUDA graph: one in which all lanes step side by side, where all have a full mini-batch,
    else one for the lane and the size of its mini-batch, so BatchNorm never sees padding."""

    def __init__(self, lanes: Sequence[Lane], batch: int) -> None:
        self.lanes, self.batch = list(lanes), batch
        self.device = self.lanes[0].theta.device
        self.samples = [torch.zeros(batch, dtype=torch.int64, device=self.device) for _ in self.lanes]
        self.keep = [torch.ones((), device=self.device) for _ in self.lanes]
        self.flips = [torch.zeros(batch, dtype=torch.bool, device=self.device) for _ in self.lanes]
        self.crops = [torch.zeros((batch, 2), dtype=torch.int64, device=self.device) for _ in self.lanes]
        self.augment = (False, False)
        self.graphs: dict[tuple[tuple[int, ...], int], torch.cuda.CUDAGraph] = {}
        self.streams = [torch.cuda.Stream(self.device) for _ in self.lanes]
        self.memory: Any = None
        self.read: list[Tensor] = []

    def run(self, start: Model, schedules: Sequence[Schedule], keep: Callable[[int, Lane], None]) -> None:
        """Train all clients; ``keep`` takes each client's result out of its lane."""
        L = len(self.lanes)
        for first in range(0, len(schedules), L):
            group = schedules[first : first + L]
            for lane in self.lanes[: len(group)]:
                lane.begin(start)
            self._together(group)
            for place in range(len(group)):
                keep(first + place, self.lanes[place])

    def _together(self, group: Sequence[Schedule]) -> None:
        """Step by step until the longest schedule of the group ends."""
        everybody = tuple(range(len(self.lanes)))
        arrays = [_on(schedule, self.device) for schedule in group]
        self.augment = (arrays[0][1] is not None, arrays[0][2] is not None)
        for t in range(max(s.steps for s in group)):
            sizes = [int(s.counts[t]) if t < s.steps else 0 for s in group]
            for place, n in enumerate(sizes):
                if n:
                    self._load(place, arrays[place], t, n)
            if len(group) == len(self.lanes) and min(sizes) == self.batch:
                self._step(everybody, self.batch)
                continue
            for place, n in enumerate(sizes):
                if n:
                    self._step((place,), n)

    def _load(self, place: int, arrays: tuple[Tensor, Tensor | None, Tensor | None, Tensor], t: int, n: int) -> None:
        samples, flips, crops, keep = arrays
        self.samples[place][:n].copy_(samples[t, :n])
        if flips is not None:
            self.flips[place][:n].copy_(flips[t, :n])
        if crops is not None:
            self.crops[place][:n].copy_(crops[t, :n])
        self.keep[place].copy_(keep[t])

    def _step(self, places: tuple[int, ...], n: int) -> None:
        graph = self.graphs.get((places, n))
        if graph is None:
            if len(self.graphs) >= MOST_GRAPHS:
                for place in places:
                    self._train(place, n)
                return
            graph = self.graphs[places, n] = self._capture(places, n)
        graph.replay()

    def _train(self, place: int, n: int, weights: Tensor | None = None) -> None:
        flip, crop = self.augment
        self.lanes[place].step(
            self.samples[place][:n],
            torch.full((n,), 1.0 / n, device=self.device) if weights is None else weights,
            self.flips[place][:n] if flip else None,
            self.crops[place][:n] if crop else None,
            keep=self.keep[place],
            compiled=n == self.batch,  # a compilation for every odd size would take minutes
        )

    def _capture(self, places: tuple[int, ...], n: int) -> torch.cuda.CUDAGraph:
        """A graph of one step of these lanes, on a stream each; the clients' state is left as it was."""
        weights = torch.full((n,), 1.0 / n, device=self.device)
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(self.lanes[place].preserve())
            main = torch.cuda.current_stream(self.device)
            for place in places:  # on the stream that it will run on: libraries keep workspaces for each stream
                side = self.streams[place] if len(places) > 1 else torch.cuda.Stream(self.device)
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    for _ in range(3):  # every kernel chosen and every library loaded before the capture
                        self._train(place, n, weights)
                main.wait_stream(side)
            torch.cuda.current_stream(self.device).synchronize()

            def record() -> None:
                if len(places) == 1:
                    self._train(places[0], n, weights)
                    return
                main = torch.cuda.current_stream(self.device)
                for place in places:
                    self.streams[place].wait_stream(main)
                    with torch.cuda.stream(self.streams[place]):
                        self._train(place, n, weights)
                for place in places:
                    main.wait_stream(self.streams[place])

            graph = capture(record, self.memory)
            self.memory = graph.pool()  # the graphs never run at the same time: they share their memory
            self.read.append(weights)  # by the graph: keep it alive
        return graph


def _on(schedule: Schedule, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    def put(values: np.ndarray | None) -> Tensor | None:
        return None if values is None else torch.from_numpy(values).to(device)

    keep = torch.from_numpy((~schedule.fresh).astype(np.float32)).to(device)
    return torch.from_numpy(schedule.samples).to(device), put(schedule.flips), put(schedule.crops), keep
