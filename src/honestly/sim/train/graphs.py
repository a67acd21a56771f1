"""Large models on a GPU: several clients train side by side, each on its own stream of one captured CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from honestly.sim.train.base import Model
from honestly.sim.train.schedule import Schedule
from honestly.sim.train.sequential import Lane


class Lanes:
    """Full mini-batches replay a graph in which every lane does one step; each client's last, shorter batches and
    clients that are left without a partner run step by step, so that BatchNorm never sees padding."""

    def __init__(self, lanes: Sequence[Lane], batch: int) -> None:
        self.lanes, self.batch = list(lanes), batch
        device = self.lanes[0].theta.device
        self.samples = [torch.zeros(batch, dtype=torch.int64, device=device) for _ in self.lanes]
        self.flips: list[Tensor] | None = None
        self.crops: list[Tensor] | None = None
        self.keep = [torch.ones((), device=device) for _ in self.lanes]
        self.weights = torch.full((batch,), 1.0 / batch, device=device)
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def run(self, start: Model, schedules: Sequence[Schedule], keep: Callable[[int, Lane], None]) -> None:
        """Train all clients; ``keep`` takes each client's result out of its lane."""
        if not self.graphs and schedules:
            self._capture(start, schedules[0])
        L = len(self.lanes)
        for first in range(0, len(schedules), L):
            group = list(range(first, min(first + L, len(schedules))))
            for lane in self.lanes:
                lane.begin(start)
            self._together([schedules[k] for k in group])
            for place, k in enumerate(group):
                keep(k, self.lanes[place])

    def _together(self, group: Sequence[Schedule]) -> None:
        """Step by step; a step in which all lanes have a full batch is one graph, else each lane by itself."""
        device = self.lanes[0].theta.device
        on_device = [_on(schedule, device) for schedule in group]
        for t in range(max((s.steps for s in group), default=0)):
            full = [t < s.steps and int(s.counts[t]) == self.batch for s in group]
            if all(full) and len(group) == len(self.lanes):
                for place, (schedule, arrays) in enumerate(zip(group, on_device, strict=True)):
                    self._load(place, schedule, arrays, t)
                self.graphs[-1].replay()
                continue
            for place, (schedule, arrays) in enumerate(zip(group, on_device, strict=True)):
                if t >= schedule.steps:
                    continue
                if full[place]:
                    self._load(place, schedule, arrays, t)
                    self.graphs[place].replay()
                else:
                    n = int(schedule.counts[t])
                    samples, flips, crops = arrays
                    self.lanes[place].step(
                        samples[t, :n],
                        torch.full((n,), 1.0 / n, device=device),
                        None if flips is None else flips[t, :n],
                        None if crops is None else crops[t, :n],
                        keep=0.0 if schedule.fresh[t] else 1.0,
                    )

    def _load(
        self, place: int, schedule: Schedule, arrays: tuple[Tensor, Tensor | None, Tensor | None], t: int
    ) -> None:
        samples, flips, crops = arrays
        self.samples[place].copy_(samples[t])
        if self.flips is not None and flips is not None:
            self.flips[place].copy_(flips[t])
        if self.crops is not None and crops is not None:
            self.crops[place].copy_(crops[t])
        self.keep[place].fill_(0.0 if schedule.fresh[t] else 1.0)

    def _step(self, place: int) -> None:
        flips = None if self.flips is None else self.flips[place]
        crops = None if self.crops is None else self.crops[place]
        self.lanes[place].step(self.samples[place], self.weights, flips, crops, keep=self.keep[place])

    def _capture(self, start: Model, schedule: Schedule) -> None:
        """One graph for each lane alone, and one in which all lanes step side by side."""
        device = self.lanes[0].theta.device
        if schedule.flips is not None:
            self.flips = [torch.zeros(self.batch, dtype=torch.bool, device=device) for _ in self.lanes]
        if schedule.crops is not None:
            self.crops = [torch.zeros((self.batch, 2), dtype=torch.int64, device=device) for _ in self.lanes]
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for place, lane in enumerate(self.lanes):
                lane.begin(start)
                for _ in range(3):  # every library loaded, every kernel chosen, before the capture
                    self._step(place)
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        for place in range(len(self.lanes)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(place)
            self.graphs.append(graph)
        if len(self.lanes) > 1:
            graph = torch.cuda.CUDAGraph()
            streams = [torch.cuda.Stream(device) for _ in self.lanes]
            with torch.cuda.graph(graph):
                main = torch.cuda.current_stream(device)
                for place, side in enumerate(streams):
                    side.wait_stream(main)
                    with torch.cuda.stream(side):
                        self._step(place)
                for side in streams:
                    main.wait_stream(side)
            self.graphs.append(graph)


def _on(schedule: Schedule, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor | None]:
    def put(values: np.ndarray | None) -> Tensor | None:
        return None if values is None else torch.from_numpy(values).to(device)

    return torch.from_numpy(schedule.samples).to(device), put(schedule.flips), put(schedule.crops)
