"""LoRA adapters as PEFT writes them, and what they add to the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

MODULES = {"base_model.model.layers.0.q_proj": (19, 33), "base_model.model.layers.1.v_proj": (27, 11)}
HEAD = "base_model.model.head.bias"


def write(path: Path, rng: np.random.Generator, truth: Any, *, rank: int = 4, alpha: float = 16, **config: Any) -> Path:
    """An adapter whose products are near `truth`, whatever its rank, alpha and scaling."""
    scale = alpha / np.sqrt(rank) if config.get("use_rslora") else alpha / rank
    tensors = {}
    for module, (A, B) in truth.items():
        r = len(A)
        big_a = 0.01 * rng.normal(size=(rank, A.shape[1]))
        big_b = 0.01 * rng.normal(size=(B.shape[0], rank))
        big_a[:r] += A
        big_b[:, :r] += B
        tensors[f"{module}.lora_A.weight"] = big_a.astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = (big_b / scale).astype(np.float32)
    tensors[HEAD] = rng.normal(size=5).astype(np.float32)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["q_proj", "v_proj"]} | config))
    return path


def products(path: Path) -> dict[str, np.ndarray]:
    """What PEFT adds to each weight, in float64, and the other tensors."""
    config, tensors = (
        json.loads((path / "adapter_config.json").read_text()),
        load_file(path / "adapter_model.safetensors"),
    )
    found = {}
    for name, values in tensors.items():
        if "lora_A" in name:
            module, r = name.removesuffix(".lora_A.weight"), len(values)
            key = next((k for k in config.get("rank_pattern", {}) if module.endswith(k)), None)
            assert r == (config["rank_pattern"][key] if key else config["r"])
            key = next((k for k in config.get("alpha_pattern", {}) if module.endswith(k)), None)
            alpha = config["alpha_pattern"][key] if key else config["lora_alpha"]
            scale = alpha / (np.sqrt(r) if config.get("use_rslora") else r)
            found[module] = scale * tensors[f"{module}.lora_B.weight"].astype(float) @ values.astype(float)
        elif "lora_" not in name:
            found[name] = values.astype(float)
    return found


def mean_of(paths: list[Path], weights: np.ndarray) -> dict[str, np.ndarray]:
    every = [products(path) for path in paths]
    return {name: sum(w * p[name] for w, p in zip(weights, every, strict=True)) for name in every[0]}


def norm(difference: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((x**2).sum() for x in difference.values())))
