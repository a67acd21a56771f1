"""Random numbers that need no state: every draw has its own generator, named by what it is for."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """The generator for one purpose, such as ``generator(seed, "batches", round, client)``.

    The same names give the same numbers whatever was drawn before, so a resumed run needs only its seed.

    >>> bool(generator(1, "batches", 2, 3).integers(100) == generator(1, "batches", 2, 3).integers(100))
    True
    """
    name = hashlib.sha256(purpose.encode()).digest()[:8]
    return np.random.default_rng([seed, int.from_bytes(name, "big"), *numbers])
