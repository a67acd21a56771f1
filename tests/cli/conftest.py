"""Files of clients for the tests of `honestly aggregate`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Six honest clients and one that flips a layer."""
    from safetensors.numpy import save_file  # other commands are tested without it

    rng = np.random.default_rng(0)
    base = {"a.weight": rng.normal(size=(30, 20)), "b.weight": rng.normal(size=(50, 4)), "b.bias": rng.normal(size=9)}
    found = []
    for k in range(7):
        tensors = {name: (x + 0.01 * rng.normal(size=x.shape)).astype(np.float32) for name, x in base.items()}
        if k == 6:
            tensors["b.weight"] *= -1
        found.append(str(tmp_path / f"client-{k}.safetensors"))
        save_file(tensors, found[-1])
    return found
