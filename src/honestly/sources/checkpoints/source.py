"""K checkpoints as a source: column blocks read by position, so memory does not grow with the model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from honestly.arrays import COMPUTE, Host, narrow
from honestly.result import ClientId
from honestly.sources.checkpoints.checkpoint import Checkpoint, Shard
from honestly.sources.checkpoints.files import Pool
from honestly.sources.checkpoints.memory import Flat
from honestly.sources.checkpoints.tensors import InFile, Tensor, storage
from honestly.sources.checkpoints.writer import Output
from honestly.sources.grouping import Buffers, layers_of
from honestly.sources.source import Layer, Leaf, Sink, majority_spec
from honestly.sources.tree import UnusableError, tensor_label

#: Values compared or copied at a time of tensors that are not averaged.
PIECE = 1 << 18
#: Bytes between two reports of progress.
REPORT_EVERY = 1 << 24
#: Counters are small; a larger tensor with such a name must be equal in all clients, like any other integer tensor.
LARGEST_COUNTER = 64


class CheckpointSource:
    """The tensors of K checkpoints with the same names and shapes; `rows[k]` is None for a refused client.

    Position K is the reference and K + 1 the root. A read that fails gives NaN and is remembered in `faults`.
    """

    on_host = True

    def __init__(
        self,
        ids: Sequence[ClientId],
        rows: Sequence[Checkpoint | None],
        refused: Mapping[int, str],
        *,
        pool: Pool,
        extras: Sequence[Checkpoint | None] = (None, None),
        output: Output | None = None,
        progress: Callable[[int, int], None] | None = None,
        buffers: Any = None,
    ) -> None:
        self.ids = tuple(ids)
        self.refused: dict[int, str] = dict(refused)
        self.has_reference = extras[0] is not None
        self.rows = [*rows, *extras]
        self._pool = pool
        self._faults: dict[int, str] = {}
        named_rows = [row for row in self.rows[: len(self.ids)] if row is not None] or [r for r in extras[:1] if r]
        self.shards = most_common_layout(named_rows)
        self.metadata = {"format": "pt"} if _most_say_pt(named_rows) else {}
        names = [name for shard in self.shards for name in shard.names]
        specs = {name: majority_spec([row.tensors[name].spec for row in named_rows]) for name in names}
        self.leaves = tuple(Leaf(name, specs[name]) for name in names if specs[name].kind == "float")
        self.layers: tuple[Layer, ...] = layers_of(self.leaves, Buffers.of("follow" if buffers is None else buffers))
        others = [Leaf(name, specs[name]) for name in names if specs[name].kind != "float"]
        self.integers = tuple(leaf for leaf in others if is_counter(leaf))
        self.constants = tuple(leaf for leaf in others if not is_counter(leaf))
        self._digests = {leaf.name: self._agreed_digest(leaf) for leaf in self.constants}
        self._counters = [self._counter_rows(leaf) for leaf in self.integers]
        self._output = output
        self.notes: dict[str, Any] = {}
        self.extra_files: dict[str, bytes] = {}  # written beside the tensors, into an output that is a folder
        self._sink: Any = None
        self._progress = progress
        self._done, self._reported = 0, 0
        bytes_each = sum(leaf.size * storage(leaf.spec).itemsize for leaf in self.leaves)
        self.pass_bytes = bytes_each * sum(row is not None for row in self.rows[: len(self.ids)])

    def _tensor(self, leaf: int, client: int) -> Tensor:
        row = self.rows[client]
        assert row is not None, "a refused client is never read"
        return row.tensors[self.leaves[leaf].name]

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Fill row after row from the files."""
        for j, k in enumerate(clients):
            try:
                self._tensor(leaf, k).read(start, stop, out[j])
            except UnusableError as reason:
                self._fail(k, str(reason))
                out[j] = np.nan
        if minus is not None:
            np.subtract(out, minus, out=out)
        self._count((stop - start) * len(clients) * storage(self.leaves[leaf].spec).itemsize)

    def stores_as_agreed(self, leaf: int, client: int) -> bool:
        """Whether the client's tensor has the dtype of the result, so `raw` gives its values as they are."""
        return self._tensor(leaf, client).spec.dtype == self.leaves[leaf].spec.dtype

    def raw(self, leaf: int, start: int, stop: int, client: int, out: Host) -> None:
        """Values of one client in the leaf's own dtype (bfloat16 as its bits), for a device."""
        tensor = self._tensor(leaf, client)
        try:
            if isinstance(tensor, InFile) and tensor.stored == out.dtype:
                tensor.file.fill(tensor.offset + start * out.itemsize, out)
            elif tensor.spec.dtype == self.leaves[leaf].spec.dtype:
                out[...] = tensor.raw(start, stop)
            else:
                values = np.empty(stop - start, COMPUTE[self.leaves[leaf].spec.dtype])
                tensor.read(start, stop, values)
                narrow(values, out)
        except UnusableError as reason:
            self._fail(client, str(reason))
            out[...] = np.uint16(0x7FC0) if out.dtype == np.uint16 else np.nan
        self._count(out.nbytes)

    def _fail(self, client: int, reason: str) -> None:
        if client >= len(self.ids):
            what = "reference" if client == len(self.ids) else "root"
            raise ValueError(f"{what}: {reason}")
        self._faults.setdefault(client, reason)

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None and self._done - self._reported >= REPORT_EVERY:
            self._reported = self._done
            self._progress(self._done, self.pass_bytes)

    def faults(self) -> Mapping[int, str]:
        """Clients whose files could not be read, or changed, since they were opened."""
        for k, row in enumerate(self.rows):
            if row is None or k in self._faults:
                continue
            changed = next((reason for file in row.files if (reason := file.change_reason())), None)
            if changed:
                self._fail(k, changed)
        return self._faults

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Blocks of this source are read by NumPy."""
        raise TypeError("this source is read on the host")

    def sink(self) -> Sink:
        """The output's temporary file, or memory; what an earlier pass wrote there is discarded."""
        if self._sink is not None:
            self._sink.discard()
        everything = [*self.leaves, *self.integers, *self.constants]
        if self._output is None:
            self._sink = Flat(self.leaves)
        else:
            self._sink = self._output.sink(self.leaves, everything, self.shards, self.metadata)
            self._sink.extra_files |= self.extra_files
        return self._sink

    def last_sink(self) -> Any:
        """The sink of the last pass, for a source that contains this one."""
        return self._sink

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """(k, size) counters."""
        rows: list[Any] = [self._counters[leaf][k] for k in clients]
        return np.stack(rows)

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """The path of the finished output, or the tensors by name."""
        for leaf, values in zip(self.integers, integers, strict=True):
            self._sink.put_whole(leaf, 0, np.asarray(values).reshape(-1).astype(storage(leaf.spec)))
        for leaf in self.constants:
            self._copy(leaf)
        return self._sink.commit()

    def close(self) -> None:
        """Discard an unfinished output and close the files."""
        if self._sink is not None:
            self._sink.discard()
        self._pool.close()

    def _counter_rows(self, leaf: Leaf) -> list[Host | None]:
        rows: list[Host | None] = []
        for k, row in enumerate(self.rows[: len(self.ids)]):
            values = None
            if row is not None and k not in self.refused:
                try:
                    values = row.tensors[leaf.name].raw(0, leaf.size).astype(storage(leaf.spec))
                except UnusableError as reason:
                    self._refuse(k, str(reason))
            rows.append(values)
        return rows

    def _agreed_digest(self, leaf: Leaf) -> bytes:
        """Digest of an integer tensor that must be equal: the reference's, else that of most clients."""
        digests: dict[int, bytes] = {}
        for k, row in enumerate(self.rows[: len(self.ids) + 1]):
            if row is not None and k not in self.refused:
                try:
                    digests[k] = _digest(row.tensors[leaf.name])
                except UnusableError as reason:
                    self._refuse(k, str(reason))
        reference = digests.pop(len(self.ids), None)
        votes = Counter(digests.values())
        agreed = reference or max(votes, key=lambda digest: votes[digest], default=b"")
        whose = "the reference" if reference else "most clients"
        for k, digest in digests.items():
            if digest != agreed:
                self._refuse(k, f"{tensor_label(leaf.name)} ({leaf.spec.dtype}) differs from that of {whose}")
        return agreed

    def _refuse(self, client: int, reason: str) -> None:
        if client >= len(self.ids):
            raise ValueError(f"reference: {reason}")
        self.refused[client] = reason

    def _copy(self, leaf: Leaf) -> None:
        """An integer tensor that all agree on, from the first client whose file has not changed."""
        order = [len(self.ids), *(k for k in range(len(self.ids)) if k not in self.refused)]
        for k in order:
            row = self.rows[k]
            if row is None:
                continue
            try:
                tensor = row.tensors[leaf.name]
                if _digest(tensor) == self._digests[leaf.name]:
                    for start in range(0, max(1, leaf.size), PIECE):
                        stop = min(leaf.size, start + PIECE)
                        self._sink.put_whole(leaf, start, tensor.raw(start, stop).astype(storage(leaf.spec)))
                    return
            except UnusableError:
                continue
        raise ValueError(f"{tensor_label(leaf.name)} can no longer be read from any client")


def _digest(tensor: Tensor) -> bytes:
    digest = hashlib.blake2b(tensor.spec.dtype.encode(), digest_size=16)
    for start in range(0, tensor.spec.size, PIECE):
        piece = tensor.raw(start, min(tensor.spec.size, start + PIECE))
        digest.update(np.ascontiguousarray(piece, storage(tensor.spec)).data)  # the same for both byte orders
    return digest.digest()


def is_counter(leaf: Leaf) -> bool:
    """True for BatchNorm's counters of batches, which differ between honest clients."""
    return leaf.name.split(".")[-1] == "num_batches_tracked" and leaf.size <= LARGEST_COUNTER


def most_common_layout(rows: Sequence[Checkpoint]) -> tuple[Shard, ...]:
    """How most clients cut their checkpoints into files; ties go to the first."""
    votes = Counter(row.shards for row in rows)
    return max((row.shards for row in rows), key=lambda shards: votes[shards], default=())


def _most_say_pt(rows: Sequence[Checkpoint]) -> bool:
    return 2 * sum(row.metadata.get("format") == "pt" for row in rows) > len(rows)
