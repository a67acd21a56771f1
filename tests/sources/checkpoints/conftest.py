"""Clients' files, written by the libraries that users write them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from .lora_files import MODULES, write

Tensors = dict[str, np.ndarray]


def model(rng: np.random.Generator, dtype: str = "float32") -> Tensors:
    return {
        "embed.weight": rng.normal(size=(40, 17)).astype(dtype),
        "layer.0.weight": rng.normal(size=(23, 31)).astype(dtype),
        "layer.0.bias": rng.normal(size=23).astype(dtype),
        "norm.num_batches_tracked": np.array(7, dtype=np.int64),
        "scale": np.array(1.5, dtype=dtype),
    }


def near(base: Tensors, rng: np.random.Generator, by: float = 0.01) -> Tensors:
    def moved(x: np.ndarray) -> np.ndarray:
        return np.asarray(x + by * rng.normal(size=x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x

    return {name: moved(x) for name, x in base.items()}


@pytest.fixture
def clients(tmp_path: Path) -> Callable[..., list[Path]]:
    """Write K clients near one model; `edit(k, tensors)` may change one before it is written."""

    def make(K: int = 7, dtype: str = "float32", edit: Callable[[int, Tensors], Any] | None = None) -> list[Path]:
        rng = np.random.default_rng(3)
        base, paths = model(rng, dtype), []
        for k in range(K):
            tensors = near(base, rng)
            if edit is not None:
                edit(k, tensors)
            paths.append(tmp_path / f"client-{k}.safetensors")
            save_file(tensors, paths[-1], metadata={"format": "pt"})
        return paths

    return make


def shard(folder: Path, tensors: Tensors, pieces: int) -> Path:
    """A folder of `pieces` shards with its index."""
    folder.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for i in range(pieces):
        filename = f"model-{i + 1:05d}-of-{pieces:05d}.safetensors"
        mine = {name: tensors[name] for name in names[i::pieces]}
        save_file(mine, folder / filename)
        weight_map |= dict.fromkeys(mine, filename)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture
def truth() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return {m: (rng.normal(size=(3, n)), rng.normal(size=(out, 3))) for m, (out, n) in MODULES.items()}


@pytest.fixture
def adapters(tmp_path: Path, truth: Any) -> list[Path]:
    """Seven adapters of mixed ranks, alphas and scalings; the last one flips the sign of one module."""
    rng = np.random.default_rng(6)
    settings: list[dict[str, Any]] = [
        {},
        {"rank": 8},
        {"alpha": 8},
        {"use_rslora": True},
        {"rank": 6, "alpha": 3.5},
        {},
        {},
    ]
    flipped = {m: (-A if "q_proj" in m else A, B) for m, (A, B) in truth.items()}
    return [write(tmp_path / f"site-{k}", rng, flipped if k == 6 else truth, **s) for k, s in enumerate(settings)]
