"""A client's local training as data: which samples make which mini-batch, and when the optimiser starts afresh.

The trainers run schedules and know nothing of attacks, uneven clients or two-phase training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Schedule:
    """The mini-batches of one client in one round.

    Attributes:
        samples: (T, B) sample numbers; the entries past ``counts`` are padding (0).
        counts: (T,) how many samples each mini-batch has, 1 .. B.
        fresh: (T,) True where the optimiser starts afresh (momentum 0) before the step.
        flips: (T, B) mirror the image, or None.
        crops: (T, B, 2) rows and columns to skip in the padded image, or None.
    """

    samples: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.bool_]
    flips: npt.NDArray[np.bool_] | None = None
    crops: npt.NDArray[np.int64] | None = None

    @property
    def steps(self) -> int:
        """Number of mini-batches."""
        return len(self.counts)

    @property
    def images(self) -> int:
        """Number of images that the training looks at."""
        return int(self.counts.sum())

    @property
    def reported(self) -> int:
        """Number of images of the last phase, which a client that trains in phases reports as its size."""
        return int(self.counts[np.flatnonzero(self.fresh)[-1] :].sum()) if self.steps else 0


def plan(
    phases: Iterable[tuple[int, npt.NDArray[np.int64]]],
    *,
    batch: int,
    rng: np.random.Generator,
    flip: bool = False,
    crop: int = 0,
) -> Schedule:
    """Shuffled mini-batches of ``batch`` samples, the last one kept, for each epoch of each phase.

    Args:
        phases: (epochs, sample numbers); a phase without samples is skipped; each starts with a fresh optimiser.
        batch: mini-batch size.
        rng: the only source of randomness.
        flip: mirror half of the images.
        crop: crop at random out of an image padded by this many pixels on each side.

    >>> schedule = plan([(2, np.arange(5))], batch=2, rng=np.random.default_rng(0))
    >>> schedule.counts, schedule.fresh
    (array([2, 2, 1, 2, 2, 1]), array([ True, False, False, False, False, False]))
    """
    samples: list[npt.NDArray[np.int64]] = []
    counts: list[npt.NDArray[np.int64]] = []
    fresh: list[npt.NDArray[np.bool_]] = []
    for epochs, members in phases:
        n = len(members)
        if n == 0 or epochs == 0:
            continue
        steps = -(-n // batch)
        block = np.zeros((epochs, steps * batch), dtype=np.int64)
        for epoch in range(epochs):
            block[epoch, :n] = rng.permutation(members)
        samples.append(block.reshape(epochs * steps, batch))
        sizes = np.full(steps, batch, dtype=np.int64)
        sizes[-1] = n - (steps - 1) * batch
        counts.append(np.tile(sizes, epochs))
        starts = np.zeros(epochs * steps, dtype=np.bool_)
        starts[0] = True
        fresh.append(starts)
    if not samples:
        empty = np.zeros((0, batch), dtype=np.int64)
        return Schedule(empty, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))
    every = np.concatenate(samples)
    flips = rng.random(every.shape, dtype=np.float32) < 0.5 if flip else None
    crops = rng.integers(0, 2 * crop + 1, size=(*every.shape, 2)) if crop else None
    return Schedule(every, np.concatenate(counts), np.concatenate(fresh), flips, crops)


@dataclass(frozen=True)
class Stack:
    """The schedules of several clients side by side, padded to the longest: (K, T, ...) arrays.

    ``weights`` are 1/n for the n samples of a mini-batch and 0 for padding; ``active`` says where a client has work.
    """

    samples: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    active: npt.NDArray[np.bool_]
    fresh: npt.NDArray[np.bool_]
    flips: npt.NDArray[np.bool_] | None
    crops: npt.NDArray[np.int64] | None

    @classmethod
    def of(cls, schedules: Sequence[Schedule], batch: int, steps: int | None = None) -> Stack:
        """Stack the clients' schedules."""
        K = len(schedules)
        T = max((s.steps for s in schedules), default=0) if steps is None else steps
        samples = np.zeros((K, T, batch), dtype=np.int64)
        counts = np.zeros((K, T), dtype=np.int64)
        fresh = np.zeros((K, T), dtype=np.bool_)
        first = next((s for s in schedules if s.steps), None)
        flips = np.zeros((K, T, batch), dtype=np.bool_) if first is not None and first.flips is not None else None
        crops = np.zeros((K, T, batch, 2), dtype=np.int64) if first is not None and first.crops is not None else None
        for k, s in enumerate(schedules):
            samples[k, : s.steps] = s.samples
            counts[k, : s.steps] = s.counts
            fresh[k, : s.steps] = s.fresh
            if flips is not None and s.flips is not None:
                flips[k, : s.steps] = s.flips
            if crops is not None and s.crops is not None:
                crops[k, : s.steps] = s.crops
        inside = np.arange(batch) < counts[:, :, None]
        weights = (inside / np.maximum(counts, 1)[:, :, None]).astype(np.float32)
        return cls(samples, weights, counts > 0, fresh, flips, crops)
