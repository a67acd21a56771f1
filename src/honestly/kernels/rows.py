"""The passes of rows.c: which columns of which rows, worked on by several threads, summed in a fixed order."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from honestly.kernels.build import Program

PROGRAM = Program("rows", Path(__file__).parent / "passes", ("rows.c", "passes.h"))
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]

#: Columns that the program works on at once.
RUN = 1024
#: How the program calls what an array holds; uint16 has the bits of bfloat16.
KINDS = {np.dtype(np.float16): 0, np.dtype(np.uint16): 1, np.dtype(np.float32): 2, np.dtype(np.float64): 3}
#: Rows of which the program averages those nearest to the median, at most.
MOST_RANKED = 256
#: Items that one call works on: a signal waits for it to end.
ITEMS = 64
#: Bytes of what items found that are kept until they are added up.
KEPT = 1 << 26

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class _Job(ctypes.Structure):
    """The struct job of rows.c."""

    _fields_ = (
        ("rows", _COUNT), ("items", _COUNT), ("next", _COUNT), ("places", _POINTER), ("kinds", _POINTER),
        ("centres", _POINTER), ("centre_kinds", _POINTER), ("segments", _POINTER), ("cut", _POINTER),
        ("found", _POINTER), ("each", _COUNT), ("weights", _POINTER), ("mixtures", _COUNT), ("with_norms", _COUNT),
        ("outs", _POINTER), ("out_kinds", _POINTER), ("steps", _POINTER), ("count", _COUNT), ("slots", _COUNT),
        ("wanted", _POINTER), ("kept", _COUNT), ("nearest", _COUNT),
        ("limits", ctypes.c_double * 2), ("fine", _POINTER),
    )  # fmt: skip


class Places(NamedTuple):
    """Where tensors begin, and what they hold: (tensors, rows) each. Whoever makes them keeps the arrays alive."""

    addresses: Ints
    kinds: Bytes


class Cut(NamedTuple):
    """The work in pieces: (s, 3) tensor, start and stop of runs of columns; (items, 4) first run, last run + 1, layer,
    and whether it is worked on in float64."""

    segments: Ints
    items: Ints


class CompiledNetwork(NamedTuple):
    """Comparators as (steps, 4) whether the smaller is wanted, a, b, where it goes; the rows to average; rows beside
    those that are compared; how many of the values to average, those nearest to the median (0: all)."""

    steps: npt.NDArray[np.int32]
    wanted: npt.NDArray[np.int32]
    extra: int
    nearest: int = 0


def available() -> bool:
    """Whether the program is there; it is compiled when this is asked for the first time."""
    return PROGRAM.library() is not None


def place(values: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Address and kind of a flat array that can be read where it lies; None if it has to be copied."""
    kind, flags = KINDS.get(values.dtype), values.flags
    if kind is None or not flags.c_contiguous or not flags.aligned:
        return None
    return values.__array_interface__["data"][0], kind


def gram(rows: Places, centre: Places | None, cut: Cut, layers: int, workers: int) -> Floats:
    """(layers, n, n) lower triangles of the products of the rows less the centre, (tensors, 1)."""
    n = rows.addresses.shape[1]
    return _Run(rows, cut).with_centre(centre).sums("gram", n * n, layers, workers).reshape(layers, n, n)


def mix(weights: Floats, rows: Places, outs: Places, cut: Cut, limits: tuple[float, float], workers: int) -> bool:
    """`weights @ rows` into the outs, (tensors, 1), a row of weights per layer; whether all is within the limits."""
    run = _Run(rows, cut).with_outs(outs, limits)
    run.put("weights", np.ascontiguousarray(weights, np.float64))
    return run.fine("mix", workers)


def residuals(
    a: Floats, rows: Places, centre: Places | None, cut: Cut, layers: int, with_norms: bool, workers: int
) -> tuple[Floats, Floats, Floats]:
    """(layers, n) squared norms of the rows, (layers, m, n) products with the mixtures, (layers, m) their norms."""
    m, n = a.shape
    run = _Run(rows, cut).with_centre(centre)
    run.put("weights", np.ascontiguousarray(a, np.float64))
    run.job.mixtures, run.job.with_norms = m, int(with_norms)
    total = run.sums("residuals", n + m * n + m, layers, workers)
    return total[:, :n], total[:, n : n + m * n].reshape(layers, m, n), total[:, n + m * n :]


def rank(
    network: CompiledNetwork, mixing: Floats | None, rows: Places, outs: Places, cut: Cut, limits: tuple[float, float],
    workers: int,
) -> bool:  # fmt: skip
    """The mean of the network's wanted rows, or of their values nearest to the median, of the rows or of mixtures of
    them, into the outs; whether all rows are within the limits."""
    assert not network.nearest or network.nearest <= len(network.wanted) <= MOST_RANKED
    run = _Run(rows, cut).with_outs(outs, limits)
    run.put("steps", network.steps)
    run.put("wanted", network.wanted)
    run.job.count, run.job.kept, run.job.slots = len(network.steps), len(network.wanted), network.extra
    run.job.nearest = network.nearest
    if mixing is not None:
        run.put("weights", np.ascontiguousarray(mixing, np.float64))
        run.job.mixtures = len(mixing)
    return run.fine("rank", workers)


class _Run:
    """One job, the arrays that it points to, and the threads that share it."""

    def __init__(self, rows: Places, cut: Cut) -> None:
        self.job = _Job(rows=rows.addresses.shape[1])
        self._arrays: list[Any] = []
        self._items = cut.items
        self.put("places", rows.addresses)
        self.put("kinds", rows.kinds)
        self.put("segments", cut.segments)

    def put(self, field: str, values: npt.NDArray[Any]) -> None:
        """Let the job point to an array, which is kept."""
        assert values.flags.c_contiguous
        self._arrays.append(values)
        setattr(self.job, field, values.__array_interface__["data"][0])

    def with_centre(self, centre: Places | None) -> _Run:
        """The row that is subtracted from all."""
        if centre is not None:
            self.put("centres", centre.addresses)
            self.put("centre_kinds", centre.kinds)
        return self

    def with_outs(self, outs: Places, limits: tuple[float, float]) -> _Run:
        """Where the result goes."""
        self.put("outs", outs.addresses)
        self.put("out_kinds", outs.kinds)
        self.job.limits[0], self.job.limits[1] = limits
        return self

    def sums(self, name: str, each: int, layers: int, workers: int) -> Floats:
        """(layers, each) what the items of each layer found, added up in their order."""
        total = np.zeros((layers, each))
        self.job.each = each
        most = max(1, KEPT // (8 * each))
        for start in range(0, len(self._items), most):
            items = self._items[start : start + most]
            parts = np.zeros((len(items), each))
            self.put("found", parts)
            self._share(name, items, workers)
            with np.errstate(over="ignore", invalid="ignore"):
                for layer, part in zip(items[:, 2].tolist(), parts, strict=True):
                    np.add(total[layer], part, out=total[layer])
        return total

    def fine(self, name: str, workers: int) -> bool:
        """Whether all items were found fine."""
        fine = np.zeros(len(self._items), np.int8)
        self.put("fine", fine)
        self._share(name, self._items, workers)
        return bool(fine.all())

    def _share(self, name: str, items: Ints, workers: int) -> None:
        """All items on so many threads, this one among them; each takes the next that nobody has taken."""
        library = PROGRAM.library()
        assert library is not None, "asked for a program that is not there"
        function = library[f"honestly_{name}"]
        function.restype, function.argtypes = _COUNT, (_POINTER, _COUNT)
        items = np.ascontiguousarray(items)
        self.put("cut", items)
        self.job.items, self.job.next = len(items), 0
        job, failures = ctypes.addressof(self.job), list[int]()

        def work() -> None:
            while (count := function(job, ITEMS)) > 0:
                pass
            if count < 0:
                failures.append(count)

        others: list[threading.Thread] = []
        try:
            for _ in range(min(workers, len(items)) - 1):
                thread = threading.Thread(target=work, name="honestly", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads on this machine, or the interpreter is ending: fewer do
                    break
                others.append(thread)
            work()
        except BaseException:
            self.job.next = len(items)  # nobody begins another one
            raise
        finally:
            for thread in others:
                thread.join()
        if failures:
            raise MemoryError(f"no memory for the scratch of {name} over {self.job.rows} rows")


def cut_into(spans: Sequence[Sequence[tuple[int, int, int, bool]]], columns: int) -> Cut:
    """Items of at most so many columns. `spans` has, for each layer, its runs of columns: tensor, start, stop, and
    whether they are worked on in float64; an item holds one layer and one precision only."""
    segments: list[tuple[int, int, int]] = []
    items: list[tuple[int, int, int, int]] = []
    for layer, runs in enumerate(spans):
        for wide in (False, True):
            first, filled = len(segments), 0
            for tensor, begin, end, is_wide in runs:
                if is_wide != wide:
                    continue
                start = begin
                while start < end:
                    stop = min(end, start + columns - filled)
                    segments.append((tensor, start, stop))
                    filled += stop - start
                    start = stop
                    if filled == columns:
                        items.append((first, len(segments), layer, int(wide)))
                        first, filled = len(segments), 0
            if filled:
                items.append((first, len(segments), layer, int(wide)))
    return Cut(np.array(segments, np.int64).reshape(-1, 3), np.array(items, np.int64).reshape(-1, 4))
