"""K LoRA adapters as a source of products `scale * B A`, which are never formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from honestly.arrays import ArraySpec, Host
from honestly.sources.checkpoints.adapter import Adapter, Pair, read_adapter, result_config
from honestly.sources.checkpoints.checkpoint import ADAPTER, ADAPTER_CONFIG, Checkpoint, Shard
from honestly.sources.checkpoints.files import Pool
from honestly.sources.checkpoints.memory import Flat
from honestly.sources.checkpoints.options import Checkpoints
from honestly.sources.checkpoints.source import CheckpointSource
from honestly.sources.checkpoints.tensors import ScaledTensor, Tensor
from honestly.sources.checkpoints.writer import Output
from honestly.sources.grouping import Buffers, layers_of
from honestly.sources.source import Layer, Leaf, Sink, majority_spec
from honestly.sources.tree import UnusableError, difference, tensor_label

#: Ranks may be this many times the median client's. Memory grows with the square of their sum, time with its cube.
UNUSUAL_RANK = 16


def open_adapters(
    files: Checkpoints,
    checkpoints: Sequence[Checkpoint | None],
    refused: dict[int, str],
    extras: Sequence[Checkpoint | None],
    output: Output | None,
    pool: Pool,
) -> LoraSource:
    """The source of these adapters; those of another base model or for other modules are excluded by name."""
    if output is not None and output.kind != "folder":
        raise ValueError(f"out is {str(output.path)!r}; an adapter is written as a folder: give the name of one")
    if files.device != "cpu":
        raise ValueError(
            f"device is {files.device!r}; adapters are small and their products are averaged on the CPU only"
        )
    rows: list[Adapter | None] = []
    for k, checkpoint in enumerate(checkpoints):
        try:
            rows.append(None if checkpoint is None else read_adapter(checkpoint))
        except UnusableError as reason:
            refused[k] = str(reason)
            rows.append(None)
    own = [_own(name, extra) for name, extra in (("reference", extras[0]), ("root", extras[1]))]
    _refuse_others(rows, refused, own[0])
    _refuse_long_ranks(rows, refused)
    if files.lora == "factors":
        _refuse_other_ranks(rows, refused)
    for name, extra in zip(("reference", "root"), own, strict=True):
        agreed = next((row for row in rows if row is not None), None)
        if extra is not None and agreed is not None and extra.signature() != agreed.signature():
            raise ValueError(f"{name}: {difference(extra.signature(), agreed.signature())}")
    return LoraSource(files, rows, refused, own, output, pool)


def _own(name: str, extra: Checkpoint | None) -> Adapter | None:
    if extra is None:
        return None
    try:
        return read_adapter(extra)
    except UnusableError as reason:
        raise ValueError(f"{name}: {reason}") from None


def _refuse_others(rows: list[Adapter | None], refused: dict[int, str], reference: Adapter | None) -> None:
    """Refuse adapters of another base model than the reference's (else most clients'), then those of other settings
    that say what the tensors are, then those of other modules."""
    present = [row for row in rows if row is not None]
    bases = Counter(row.base for row in present)
    base = reference.base if reference else max(bases, key=lambda b: bases[b], default="")
    for k, row in enumerate(rows):
        if row is not None and row.base != base:
            refused[k] = f"is for the base model {row.base[:100]!r}, expected {base[:100]!r}"
            rows[k] = None
    votes = Counter(frozenset(row.meaning().items()) for row in rows if row is not None)
    meaning = reference.meaning() if reference else dict(max(votes, key=lambda settings: votes[settings], default=()))
    for k, row in enumerate(rows):
        mine = meaning if row is None else row.meaning()
        other = next((name for name in mine if mine[name] != meaning[name]), None)
        if other is not None:
            refused[k] = f"its adapter_config.json has {other} {mine[other][:60]}, expected {meaning[other][:60]}"
            rows[k] = None
    layouts = Counter(frozenset(row.signature().items()) for row in rows if row is not None)
    known = [reference] if reference else [row for row in rows if row is not None]
    agreed = max(known, key=lambda row: layouts[frozenset(row.signature().items())], default=None)
    for k, row in enumerate(rows):
        if row is not None and agreed is not None and row.signature() != agreed.signature():
            refused[k] = difference(row.signature(), agreed.signature())
            rows[k] = None


def _refuse_long_ranks(rows: list[Adapter | None], refused: dict[int, str]) -> None:
    """Refuse clients with a rank far above the usual one: the round would take hours, or end for lack of memory."""
    present = [row for row in rows if row is not None]
    usual = {m: median(row.pairs[m].rank for row in present) for m in (present[0].pairs if present else ())}
    for k, row in enumerate(rows):
        pairs = {} if row is None else row.pairs
        module = next((m for m, pair in pairs.items() if pair.rank > UNUSUAL_RANK * usual[m]), None)
        if module is not None:
            refused[k] = (
                f"{tensor_label(module)} has rank {pairs[module].rank}, more than {UNUSUAL_RANK} times that of the "
                f"median client ({usual[module]:g})"
            )
            rows[k] = None


def _refuse_other_ranks(rows: list[Adapter | None], refused: dict[int, str]) -> None:
    """Factors of different ranks have no mean: refuse the clients whose ranks differ from those of most clients."""
    ranks = [None if row is None else frozenset((m, pair.rank) for m, pair in row.pairs.items()) for row in rows]
    votes = Counter(rank for rank in ranks if rank is not None)
    agreed = dict(max(votes, key=lambda rank: votes[rank], default=()))
    for k, row in enumerate(rows):
        module = next((m for m, pair in row.pairs.items() if pair.rank != agreed[m]), None) if row else None
        if row is not None and module is not None:
            refused[k] = (
                f"{tensor_label(module)} has rank {row.pairs[module].rank} and that of most clients {agreed[module]}: "
                "lora='factors' needs equal ranks, 'exact' and 'svd' do not"
            )
            rows[k] = None


class LoraSource:
    """What `engine.passes.lora` averages: a leaf per module's product, then the tensors that are not factors."""

    on_host = True
    integers: tuple[Leaf, ...] = ()

    def __init__(
        self, files: Checkpoints, rows: Sequence[Adapter | None], refused: Mapping[int, str],
        extras: Sequence[Adapter | None], output: Output | None, pool: Pool,
    ) -> None:  # fmt: skip
        self.ids = files.ids
        self.refused = dict(refused)
        self.has_reference = extras[0] is not None
        self.lora, self.rank = files.lora, files.rank
        self.rows = [*rows, *extras]
        self.notes: dict[str, Any] = {}
        self._output, self._pool = output, pool
        self._faults: dict[int, str] = {}
        self._sink: Any = None
        usable = [row for row in rows if row is not None]
        template = next(iter(usable), extras[0])
        self.modules = tuple(template.pairs) if template else ()
        self.plain = tuple(template.plain) if template else ()
        shapes = template.signature() if template else {}
        self.leaves = tuple(
            Leaf(name, ArraySpec(shapes[name][0], "float32", "float")) for name in (*self.modules, *self.plain)
        )

        self.layers: tuple[Layer, ...] = layers_of(
            self.leaves, Buffers.of("follow" if files.buffers is None else files.buffers)
        )

    def adapter(self, client: int) -> Adapter:
        """A client's adapter; position K is the reference's and K + 1 the root's."""
        row = self.rows[client]
        assert row is not None, "a refused client is never read"
        return row

    def typical(self, clients: Sequence[int]) -> int:
        """The first of these clients whose factors are called as most clients call them, and scaled as usual."""
        pairs = {k: self.adapter(k).pairs.items() for k in clients}
        names = {k: frozenset((module, pair.a_name, pair.b_name) for module, pair in pairs[k]) for k in clients}
        scales = {k: frozenset((module, pair.scale) for module, pair in pairs[k]) for k in clients}
        same_names, same_scales = Counter(names.values()), Counter(scales.values())
        return max(clients, key=lambda k: (same_names[names[k]], same_scales[scales[k]]))

    def read_tensor(self, client: int, tensor: Tensor, start: int, stop: int, out: Host) -> None:
        """Values of one tensor; NaN, and the reason in `faults`, if they cannot be read."""
        try:
            tensor.read(start, stop, out)
        except UnusableError as reason:
            self._fail(client, str(reason))
            out[...] = float("nan")

    def _fail(self, client: int, reason: str) -> None:
        if client >= len(self.ids):
            raise ValueError(f"{'reference' if client == len(self.ids) else 'root'}: {reason}")
        self._faults.setdefault(client, reason)

    def faults(self) -> Mapping[int, str]:
        """Clients whose files could not be read, or changed, since they were opened."""
        for k, row in enumerate(self.rows):
            if row is not None and k not in self._faults:
                changed = next((reason for file in row.checkpoint.files if (reason := file.change_reason())), None)
                if changed:
                    self._fail(k, changed)
        return self._faults

    def majority_dtype(self, tensors: Sequence[Tensor]) -> str:
        """The dtype of most of these tensors."""
        return majority_spec([tensor.spec for tensor in tensors]).dtype

    def begin(self, leaves: Sequence[Leaf], clients: Sequence[int], ranks: Mapping[str, int]) -> Any:
        """A sink for the result's tensors; an earlier one is discarded."""
        if self._sink is not None:
            self._sink.discard()
        config = result_config([self.adapter(k) for k in clients], ranks, None)
        if self._output is None:
            self._sink = Flat(leaves)
        else:
            shards = [Shard(ADAPTER, tuple(leaf.name for leaf in leaves))]
            self._sink = self._output.sink(leaves, leaves, shards, {"format": "pt"})
            self._sink.extra_files[ADAPTER_CONFIG] = config
        self.notes["adapter_config"] = config.decode()
        return self._sink

    def factors(self, clients: Sequence[int]) -> CheckpointSource:
        """The factors themselves as a source, every B rescaled to the usual scale. Ranks must be equal."""
        usual = self.typical(clients)
        model = self.adapter(usual)
        for k in clients:
            for module, pair in self.adapter(k).pairs.items():
                if pair.rank != model.pairs[module].rank:
                    raise ValueError(
                        f"lora='factors' needs equal ranks, but module {module[:100]!r} has rank {pair.rank} in client "
                        f"{self.ids[k] if k < len(self.ids) else 'reference'!r} and {model.pairs[module].rank} in "
                        f"client {self.ids[usual]!r}: use 'exact' or 'svd'"
                    )
        rows = [None if k not in clients or row is None else _align(row, model) for k, row in enumerate(self.rows)]
        inner = CheckpointSource(
            self.ids, rows[: len(self.ids)], {k: "" for k in range(len(self.ids)) if rows[k] is None},
            pool=self._pool, extras=rows[len(self.ids) :], output=self._output,
        )  # fmt: skip
        ranks = {module: pair.rank for module, pair in model.pairs.items()}
        scales = {module: pair.scale for module, pair in model.pairs.items()}
        config = result_config([self.adapter(k) for k in clients], ranks, scales)
        inner.extra_files = {ADAPTER_CONFIG: config}
        self.notes["adapter_config"] = config.decode()
        if self._sink is not None:
            self._sink.discard()
        return inner

    def factor_modules(self, client: int) -> dict[str, str]:
        """The module that each factor belongs to, under this client's names."""
        pairs = self.adapter(client).pairs.items()
        return {name: module for module, pair in pairs for name in (pair.a_name, pair.b_name)}

    def keep(self, sink: Any) -> None:
        """Remember the sink that `factors` wrote into."""
        self._sink = sink

    def sink(self) -> Sink:
        """Passes over products make their own, see `begin`."""
        raise TypeError("the result's ranks are not known yet")

    def read(self, leaf: int, start: int, stop: int, clients: Sequence[int], out: Host, minus: Host | None) -> None:
        """Products are never formed."""
        raise TypeError("the coordinates of B A are not read")

    def block(self, leaf: int, start: int, stop: int, clients: Sequence[int]) -> Any:
        """Products are never formed."""
        raise TypeError("the coordinates of B A are not read")

    def read_integers(self, leaf: int, clients: Sequence[int]) -> Host:
        """Adapters hold none."""
        raise IndexError(leaf)

    def assemble(self, floats: Sequence[Any], integers: Sequence[Host]) -> Any:
        """The path of the finished adapter, or its tensors by name."""
        return self._sink.commit()

    def close(self) -> None:
        """Discard an unfinished output and close the files."""
        if self._sink is not None:
            self._sink.discard()
        self._pool.close()


def _align(row: Adapter, model: Adapter) -> Checkpoint:
    """A client's factors under the names of `model`, with B scaled so that one scale fits all."""
    tensors: dict[str, Tensor] = dict(row.plain)
    for module, usual in model.pairs.items():
        pair: Pair = row.pairs[module]
        tensors[usual.a_name] = pair.a
        tensors[usual.b_name] = pair.b if pair.scale == usual.scale else ScaledTensor(pair.b, pair.scale / usual.scale)
    return Checkpoint("adapter", tensors, (Shard(ADAPTER, tuple(tensors)),), row.checkpoint.files, {"format": "pt"})
