"""PyTorch files, only when the caller asked for them and only with `weights_only=True`: nothing in them is run."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from honestly import arrays
from honestly.sources import tree
from honestly.sources.checkpoints.checkpoint import SINGLE, Checkpoint, Shard
from honestly.sources.checkpoints.files import File
from honestly.sources.checkpoints.tensors import FORMAT_NAMES, InMemoryTensor, Tensor
from honestly.sources.tree import UnusableError, tensor_label


def read_torch(file: File, *, allowed: bool) -> Checkpoint:
    """The state dict in a PyTorch file, its values mapped from the file where its format allows it."""
    if not allowed:
        raise UnusableError(
            f"{file.name[:100]!r} is a PyTorch file; pass allow_torch=True or --allow-torch, "
            "or convert it to safetensors"
        )
    file.bytes(0, min(1, file.size))  # a regular file that can be read, before torch opens it by name
    import torch

    try:
        try:
            content = torch.load(file.path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before zip files cannot be mapped
            content = torch.load(file.path, map_location="cpu", weights_only=True)
        state: Any = content["state_dict"] if isinstance(content, Mapping) and "state_dict" in content else content
        tensors = {name: _tensor(name, values) for name, values in tree.flatten(state).items()}
    except UnusableError:
        raise
    except pickle.UnpicklingError:
        raise UnusableError(f"{file.name[:100]!r} holds more than tensors; it is never unpickled") from None
    except Exception as error:  # a hostile file may break the reader in any way: then its client is excluded
        raise UnusableError(
            f"{file.name[:100]!r} is not a PyTorch file of tensors ({type(error).__name__}: {str(error)[:100]})"
        ) from None
    return Checkpoint("torch", tensors, (Shard(SINGLE, tuple(tensors)),), (file,), {"format": "pt"})


def _tensor(name: str, values: Any) -> Tensor:
    spec = arrays.spec(values)
    if spec.dtype not in FORMAT_NAMES:
        raise UnusableError(f"{tensor_label(name)} has dtype {spec.dtype}, expected a float, integer or bool dtype")
    if arrays.device_name(values) != "cpu":
        raise UnusableError(f"{tensor_label(name)} is on device {arrays.device_name(values)!r}, which holds no values")
    name.encode("utf-8")
    view = arrays.host_view(values)
    if view.dtype == bool:
        view = view.view("u1")
    # Views that repeat one value (torch's expand) would grow to any size when they are flattened.
    if not view.flags.c_contiguous:
        if view.size * view.itemsize > values.untyped_storage().nbytes():
            raise UnusableError(f"{tensor_label(name)} is a view larger than its storage")
        view = view.copy(order="C")
    return InMemoryTensor(spec, view.reshape(-1))
