"""Spot checks: another rank computes a slice again, of its Gram matrix and of its result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from honestly.result import Aggregate

if TYPE_CHECKING:
    from honestly.torch.reduction import Reduction


class VerificationError(RuntimeError):
    """A slice of the result, or of the numbers that the ranks decided on, is not what it should be."""


def verify_slices(
    reduction: Reduction, out: Aggregate, updates: Sequence[torch.Tensor], results: Sequence[torch.Tensor], count: float
) -> dict[str, Any]:
    raise NotImplementedError
