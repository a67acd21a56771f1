"""PyTorch files, only when the caller asked for them and only with `weights_only=True`: nothing in them is run."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

from honestly import arrays
from honestly.sources import tree
from honestly.sources.checkpoints.checkpoint import SINGLE, Checkpoint, Shard
from honestly.sources.checkpoints.files import File
from honestly.sources.checkpoints.npz import open_zip
from honestly.sources.checkpoints.tensors import FORMAT_NAMES, InMemoryTensor, Tensor
from honestly.sources.tree import UnusableError, tensor_label

#: How a file that torch.save writes as an archive begins.
ARCHIVE = b"PK\x03\x04"


def read_torch(file: File, *, allowed: bool) -> Checkpoint:
    """The state dict in a PyTorch file, its values mapped from the file where its format allows it."""
    if not allowed:
        raise UnusableError(
            f"{file.name[:100]!r} is a PyTorch file; pass allow_torch=True or --allow-torch, "
            "or convert it to safetensors"
        )
    archive = file.bytes(0, min(4, file.size)) == ARCHIVE  # also: it can be read, before torch opens it by name
    import torch

    try:
        if archive:
            _check_stored(file)
        # the format before archives cannot be mapped
        content = torch.load(file.path, map_location="cpu", weights_only=True, mmap=archive)
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


def _check_stored(file: File) -> None:
    """Raise unless nothing in the archive is compressed: torch would unpack it into memory, whatever its size.

    Readers of archives differ in where they look for the directory if its place is not what the end of the file says,
    so it must be where torch.save writes it.
    """
    end = file.size - 22
    record = file.bytes(end, 22)
    length, start = struct.unpack("<12xII2x", record)
    if file.bytes(end - 20, 4) == b"PK\x06\x07":  # the records of archives of any size come before
        (place,) = struct.unpack("<8xQ4x", file.bytes(end - 20, 20))
        end -= 76
        length, start = struct.unpack("<40xQQ", file.bytes(end, 56)) if place == end else (0, 0)
    if record[:4] != b"PK\x05\x06" or record[20:] != b"\0\0" or start + length != end:
        raise UnusableError(f"{file.name[:100]!r} does not end as files of torch.save do: save it again")
    with open_zip(file) as content:
        for member in content.infolist():
            if member.compress_type != zipfile.ZIP_STORED or not member.compress_size == member.file_size <= file.size:
                raise UnusableError(f"{file.name[:100]!r} is compressed, which torch.save never does: save it again")


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
