"""Adapters as folders, as PEFT writes them: what clients of a real federation would send."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PREFIX = "base_model.model."
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def write_adapter(folder: Path, factors: Mapping[str, Tensor]) -> Path:
    """The factors `NAME.A` (r, in) and `NAME.B` (out, r) of one client as an adapter of scale 1."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for name, value in sorted(factors.items()):
        module, _, factor = name.rpartition(".")
        arrays[f"{PREFIX}{module}.lora_{factor}.weight"] = value.detach().numpy().astype("<f4")
    rank = next(int(value.shape[0]) for name, value in factors.items() if name.endswith(".A"))
    header: dict[str, object] = {}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    (folder / TENSORS).write_bytes(struct.pack("<Q", len(text)) + text + data)
    modules = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in factors})
    config = {"peft_type": "LORA", "base_model_name_or_path": "tiny", "r": rank, "lora_alpha": rank}
    (folder / CONFIG).write_text(json.dumps({**config, "target_modules": modules}), encoding="utf-8")
    return folder


def read_products(folder: Path) -> dict[str, Tensor]:
    """`scale * B A` of every module of an adapter that `honestly aggregate` wrote, by the name of its weight."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    raw = (folder / TENSORS).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    arrays: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            values = np.frombuffer(data[start:end], dtype="<f4").reshape(entry["shape"])
            arrays[name] = torch.from_numpy(values.copy())
    scale = config["lora_alpha"] / config["r"]
    modules = [name.removesuffix(".lora_A.weight") for name in arrays if name.endswith(".lora_A.weight")]
    return {
        f"{module.removeprefix(PREFIX)}.weight": scale
        * arrays[f"{module}.lora_B.weight"]
        @ arrays[f"{module}.lora_A.weight"]
        for module in modules
    }
