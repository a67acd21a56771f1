"""One client's checkpoint: a safetensors file, a folder of shards, an adapter, an .npz or a PyTorch file."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from honestly.sources.checkpoints.files import File, Pool
from honestly.sources.checkpoints.header import LONGEST, load_json, read_header
from honestly.sources.checkpoints.tensors import InFile, Tensor, TensorTable
from honestly.sources.tree import UnusableError, tensor_label

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
#: No model has more shards, or more bytes in all their headers, of which each may be `LONGEST`; a hostile one might.
MOST_SHARDS, MOST_HEADERS = 4096, 2 * LONGEST


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint and the tensors in it, in the order of their bytes."""

    filename: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one client by name, and how they are laid out in files."""

    kind: str  # "file", "folder", "adapter", "npz" or "torch"
    tensors: Mapping[str, Tensor]
    shards: tuple[Shard, ...]
    files: tuple[File, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # of an adapter

    def compact(self, names: Mapping[str, str], order: Mapping[str, int]) -> Checkpoint:
        """The same in less memory, with names that are shared: all that averaging needs of a model's tensors."""
        tensors = {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, InFile)}
        shards = tuple(Shard(shard.filename, tuple(names[name] for name in shard.names)) for shard in self.shards)
        metadata = {key: value for key, value in self.metadata.items() if (key, value) == ("format", "pt")}
        table = TensorTable(tensors, order) if len(tensors) == len(self.tensors) else self.tensors
        return Checkpoint(self.kind, table, shards, self.files, metadata)


def read_checkpoint(path: str, pool: Pool, *, follow_symlinks: bool = False, allow_torch: bool = False) -> Checkpoint:
    """The checkpoint at `path`, from its headers alone. Raises `UnusableError` that says why it cannot be used."""
    name = Path(path).name
    try:
        mode = Path(path).stat(follow_symlinks=follow_symlinks).st_mode
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
        raise UnusableError(f"{name[:100]!r} cannot be opened: {cause}") from None
    if stat.S_ISDIR(mode):
        return _read_folder(path, pool, follow_symlinks)
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        from honestly.sources.checkpoints.npz import read_npz

        return read_npz(File(pool, path, follow=follow_symlinks))
    if suffix in (".pt", ".pth", ".bin", ".ckpt"):
        from honestly.sources.checkpoints.torchfile import read_torch

        return read_torch(File(pool, path, follow=follow_symlinks), allowed=allow_torch)
    if name.endswith(".index.json"):
        return _read_sharded(str(Path(path).parent), name, pool, follow_symlinks)
    return _read_single("file", File(pool, path, follow=follow_symlinks))


def _read_single(kind: str, file: File, config: Mapping[str, Any] | None = None) -> Checkpoint:
    header = read_header(file)
    tensors = {entry.name: InFile.of(file, entry) for entry in header.entries}
    filename = ADAPTER if kind == "adapter" else SINGLE  # what a single file is called says nothing of its layout
    return Checkpoint(kind, tensors, (Shard(filename, tuple(tensors)),), (file,), header.metadata, config or {})


def _read_folder(path: str, pool: Pool, follow: bool) -> Checkpoint:
    try:
        present = {entry.name for entry in Path(path).iterdir()}
    except OSError as error:
        raise UnusableError(f"its folder cannot be read: {error.strerror}") from None
    if ADAPTER_CONFIG in present:
        config_file = File(pool, str(Path(path) / ADAPTER_CONFIG), follow=follow)
        config = load_json(_read_whole(config_file, 1_000_000), f"its {ADAPTER_CONFIG}")
        checkpoint = _read_single("adapter", File(pool, str(Path(path) / ADAPTER), follow=follow), config)
        return Checkpoint(
            checkpoint.kind,
            checkpoint.tensors,
            checkpoint.shards,
            (*checkpoint.files, config_file),
            checkpoint.metadata,
            config,
        )
    indexes = sorted(name for name in present if name.endswith(".safetensors.index.json"))
    if len(indexes) == 1 or INDEX in indexes:
        return _read_sharded(path, INDEX if INDEX in indexes else indexes[0], pool, follow)
    singles = sorted(name for name in present if name.endswith(".safetensors"))
    if not indexes and (len(singles) == 1 or SINGLE in singles):
        filename = SINGLE if SINGLE in singles else singles[0]
        return _read_single("folder", File(pool, str(Path(path) / filename), follow=follow))
    raise UnusableError(
        f"its folder holds neither {INDEX} nor one .safetensors file nor a LoRA adapter ({ADAPTER_CONFIG})"
    )


def _read_whole(file: File, limit: int) -> bytes:
    if file.size > limit:
        raise UnusableError(f"{file.name[:100]!r} has {file.size} bytes, the limit is {limit}")
    return file.bytes(0, file.size)


def _read_sharded(folder: str, index_name: str, pool: Pool, follow: bool) -> Checkpoint:
    """Every tensor from the shard that the index names; tensors that it does not name are not part of the model."""
    index_file = File(pool, str(Path(folder) / index_name), follow=follow)
    weight_map = load_json(_read_whole(index_file, LONGEST), f"{index_name[:100]!r}").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnusableError(f"{index_name[:100]!r} has no weight_map")
    filenames = sorted({check_filename(filename) for filename in weight_map.values()})
    if len(filenames) > MOST_SHARDS:
        raise UnusableError(f"{index_name[:100]!r} names {len(filenames)} shards, the limit is {MOST_SHARDS}")
    tensors: dict[str, Tensor] = {}
    shards: list[Shard] = []
    files = [index_file]
    metadata: Mapping[str, str] = {}
    left = MOST_HEADERS
    for filename in filenames:
        file = File(pool, str(Path(folder) / filename), follow=follow)
        header = read_header(file)
        left -= header.length
        if left < 0:
            raise UnusableError(f"its shards have headers of more than {MOST_HEADERS} bytes together")
        mine = {
            entry.name: InFile.of(file, entry) for entry in header.entries if weight_map.get(entry.name) == filename
        }
        tensors |= mine
        shards.append(Shard(filename, tuple(mine)))
        files.append(file)
        metadata = metadata or header.metadata
    missing = next((name for name in weight_map if name not in tensors), None)
    if missing is not None:
        raise UnusableError(f"{tensor_label(missing)} is not in {weight_map[missing]!r}, where the index says it is")
    return Checkpoint("folder", tensors, tuple(shards), tuple(files), metadata)


def check_filename(filename: Any) -> str:
    """The name of a shard beside its index: no other folder, nothing hidden, nothing a terminal would act on."""
    if (
        not isinstance(filename, str)
        or not filename.endswith(".safetensors")
        or len(filename.encode("utf-8", "replace")) > 200
        or filename.startswith(".")
        or not filename.isprintable()
        or any(mark in filename for mark in "/\\:")
    ):
        raise UnusableError(f"its index names the file {str(filename)[:100]!r}: expected a .safetensors file beside it")
    return filename
