"""Starts a GPU before the host has looked at anything but shapes, so both work at the same time.

An aggregation on a GPU is two kernels of a quarter of a millisecond, and as much Python before, between and behind
them. Here the Gram pass starts before the source is opened. When it ends, the rule says which weights it is going to
decide on (`Rule.foresee`), and the averaging pass starts with them. The engine screens, decides and explains as ever,
while the device is at work, and uses the average if its decision has the same weights, bit by bit. Nothing that is
decided depends on this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from honestly.engine.passes import fused
from honestly.engine.passes.parts import Part
from honestly.engine.passes.protocol import BETWEEN
from honestly.engine.pipeline import Pipeline
from honestly.result import Float


class EarlyStart:
    """The kernels of one aggregation of all rows of a matrix, each started as soon as its input is there.

    Nothing is started unless `updates` is a plain CUDA matrix of torch that the fused kernels take. At the end of a
    `with` block nothing is under way any more.
    """

    def __init__(self, updates: Any, pipeline: Pipeline) -> None:
        self._gram: Any = None
        self._mixing: Any = None
        self._weights: Float | None = None
        rule = pipeline.rule
        if not _is_plain_matrix(updates) or pipeline.mixers or rule.root is not None or len(updates) < 3:
            return
        self._rows, self._rule = updates, rule
        self._K, self._d = updates.shape
        if rule.gram_needed:
            self._gram = fused.start_gram(updates, BETWEEN, [Part(0, self._d, 0)])
        elif (weights := rule.foresee(self._K, self._d, None)) is not None:
            self._mixing = fused.mixing(updates, fused.flag(updates))
            self._mix_with(weights)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for what was started in vain: its memory is used again."""
        if self._gram is not None:
            self._gram.finish()
        if self._weights is not None:
            self._mixing.flag.down()
        self._gram = self._weights = None

    def gram(self) -> Float | None:
        """(1, K, K) the Gram matrix `BETWEEN` all rows; None if it was asked for before, or not started."""
        pending, self._gram = self._gram, None
        if pending is None:
            return None
        self._mixing = fused.mixing(self._rows, fused.flag(self._rows))
        layers = pending.finish()
        self._mix_with(self._rule.foresee(self._K, self._d, layers))
        return layers

    def _mix_with(self, weights: Float | None) -> None:
        if self._mixing is not None and weights is not None:
            self._weights, self._value = weights, self._mixing(weights)

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Any, Any] | None:
        """`weights @ X` of all rows, and whether it is fine (to be asked late): under way already, or started now.

        None for fewer rows, which are read alone, and after a wrong foresight.
        """
        foreseen, mixing = self._weights, self._mixing
        self._weights = self._mixing = None
        if mixing is None:
            return None
        if foreseen is None:
            most = len(clients) == self._K and 2 * np.count_nonzero(weights) > self._K
            return (mixing(weights), mixing.flag.down) if most else None
        if len(clients) == self._K and np.array_equal(weights, foreseen):
            return self._value, mixing.flag.down
        mixing.flag.down()  # wait: the flag is used again
        return None


def _is_plain_matrix(updates: Any) -> bool:
    """Whether this is a plain torch tensor (K, d) on a CUDA device: not sparse, not distributed, not freed."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(updates) is torch.Tensor
        and updates.is_cuda
        and updates.layout is torch.strided
        and updates.ndim == 2
        and updates.data_ptr() != 0
    )
