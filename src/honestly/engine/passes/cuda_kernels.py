# pyright: basic
"""Launches the CUDA kernels of `kernels.cu` on torch tensors. Imported only if torch and a CUDA device are available.

A round of 20 clients is a few hundred microseconds of memory traffic, so every call of the CUDA runtime counts:
weights travel as arguments, and what the host must know is written straight into its own (pinned) memory.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch

from honestly.engine.passes.exclusive import WHOLE_DEVICE
from honestly.engine.passes.networks import SortingNetwork, Summary
from honestly.engine.passes.parts import Part
from honestly.kernels.torch_private import check, compile_kernel, current_device, current_stream, driver
from honestly.result import Float

# As many rows as a thread's registers take the products of: 210.
MOST_ROWS = 20
# Registers leave room for 256 threads on a processor: two blocks of 128, each with its ring in shared memory.
THREADS, RESIDENT = 128, 2
# Columns that one thread adds up in float32 before the sum goes on in float64.
MOST_STEPS = 512
# Threads of a block of the other kernels, and the columns that `mix` gives to such a block.
BLOCK, COLUMNS_PER_BLOCK = 256, 1024
TYPES = {torch.float32: "TYPE_FLOAT", torch.float16: "TYPE_HALF", torch.bfloat16: "TYPE_BFLOAT16"}


class PendingGram:
    """(parts, K, K) `C C^T` in float64, `C = rows - middle`, from one read: started. The middle may be `BETWEEN`."""

    def __init__(self, rows: torch.Tensor, middle: torch.Tensor | int | None, parts: Sequence[Part]) -> None:
        K, n = rows.shape
        self._K, self._parts, self._device = K, len(parts), rows.get_device()
        steps = min(MOST_STEPS, -(-n // (THREADS * RESIDENT * _processors(self._device))))
        table = _table(tuple(parts), THREADS * steps, self._device)
        blocks = len(table) // TABLE
        kind = 0 if middle is None else 2 if isinstance(middle, int) else 1
        defines = (f"ROWS {K}", f"THREADS {THREADS}", f"MIDDLE {kind}", f"TABLE {TABLE}")
        kernel = _compile("gram", rows.dtype, self._device, defines)
        self._own = own = _own(self._device)
        own.make_room(len(parts), blocks * K * (K + 1) // 2)
        centre = middle if isinstance(middle, torch.Tensor) else rows
        tensors = (rows, centre, own.partial, own.products, own.ended, table)
        _launch(kernel, self._device, blocks, THREADS, [*map(_pointer, tensors), _int(rows.stride(0))])

    def finish(self) -> Float:
        """Wait for it; the products, on the host."""
        wait(self._device)
        pairs = self._K * (self._K + 1) // 2
        products = self._own.products_read[: self._parts * pairs].reshape(self._parts, pairs)
        return products[:, _triangle(self._K)]


#: Numbers that say what a block of a kernel does: first column, end, part, the part's first block, how many it has.
TABLE = 5


@lru_cache(maxsize=64)
def _table(parts: tuple[Part, ...], columns: int, device: int) -> torch.Tensor:
    """What each block does, so no block crosses the bounds of a part: at most `columns` columns each."""
    rows: list[tuple[int, int, int, int, int]] = []
    for index, (start, stop, _) in enumerate(parts):
        starts, first = range(start, stop, columns), len(rows)
        rows += [(at, min(stop, at + columns), index, first, len(starts)) for at in starts]
    return torch.tensor(rows, dtype=torch.int32).ravel().to(f"cuda:{device}")


class Mixing:
    """`weights @ rows` in float32, made ready before the weights are known; the flag is raised if a value is not finite
    or absurdly large."""

    def __init__(self, rows: torch.Tensor, flag: Flag) -> None:
        K, n = rows.shape
        self._rows, self.flag, self.device = rows, flag, rows.get_device()
        self._kernel = _compile("mix", rows.dtype, self.device, (f"CLIENTS {K}", f"GROUP {_group(rows)}"))
        self._value = torch.empty(n, dtype=torch.float32, device=rows.device)
        self._weights = (ctypes.c_float * K)()
        numbers = [_int(n), _int(rows.stride(0))]
        self._arguments = [_pointer(rows), self._weights, _pointer(self._value), _pointer(flag.raised), *numbers]
        self._blocks = -(-n // COLUMNS_PER_BLOCK)

    def __call__(self, weights: Float) -> torch.Tensor:
        """Start it."""
        self._weights[:] = weights.tolist()
        _launch(self._kernel, self.device, self._blocks, BLOCK, self._arguments)
        self.flag.awaited = True
        return self._value


def mix(rows: torch.Tensor, weights: Float, flag: Flag) -> torch.Tensor:
    """`weights @ rows` in float32."""
    return Mixing(rows, flag)(weights)


def mix_parts(rows: torch.Tensor, weights: Float, parts: Sequence[Part], flag: Flag) -> torch.Tensor:
    """`weights[part.layer] @ rows` of each part, in float32, by one kernel."""
    K, n = rows.shape
    device = rows.get_device()
    table = _table(tuple(parts), COLUMNS_PER_BLOCK, device)
    moved = _own(device).send(weights[[part.layer for part in parts]])
    value = torch.empty(n, dtype=torch.float32, device=rows.device)
    kernel = _compile("mix_parts", rows.dtype, device, (f"CLIENTS {K}", f"GROUP {_group(rows)}", f"TABLE {TABLE}"))
    arguments = [*map(_pointer, (rows, moved, value, flag.raised, table)), _int(rows.stride(0))]
    _launch(kernel, device, len(table) // TABLE, BLOCK, arguments)
    flag.awaited = True
    return value


def rank(
    rows: torch.Tensor, chosen: Sequence[int], network: SortingNetwork, summary: Summary | None, flag: Flag
) -> torch.Tensor:
    """The network's wanted rows of those chosen, or a summary of them, in float32.

    The flag is raised if any value is not finite or absurd.
    """
    n = rows.shape[1]
    shape = (len(network.wanted), n) if summary is None else (n,)
    ranked = torch.empty(shape, dtype=torch.float32, device=rows.device)
    device = rows.get_device()
    kernel = _compile("rank", rows.dtype, device, _rank_defines(len(chosen), network, summary))
    which = (ctypes.c_int * len(chosen))(*chosen)
    arguments = [_pointer(rows), which, *map(_pointer, (ranked, flag.raised)), _int(n), _int(rows.stride(0))]
    _launch(kernel, device, -(-n // BLOCK), BLOCK, arguments)
    flag.awaited = True
    return ranked


class Flag:
    """A word in the host's memory that kernels write to when a value cannot be used."""

    def __init__(self, device: int) -> None:
        own = _own(device)
        self.raised, self._read, self._device = own.raised, own.raised_read, device
        self._read[0] = 0
        self.awaited = False

    def down(self) -> bool:
        """Wait for the kernels; True if none has raised it."""
        if self.awaited:
            wait(self._device)
        return not self._read[0]


class _Own:
    """Memory that one thread uses again and again on one device: it waits for its kernels before it goes on."""

    _parts = _sums = 0
    _sent: torch.Tensor | None = None

    def __init__(self, device: int) -> None:
        self._device = device
        self.make_room(1, 1)
        self.raised = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.raised_read = self.raised.numpy()
        torch.cuda.current_stream(device).synchronize()  # not the whole device: others may be capturing

    def make_room(self, parts: int, sums: int) -> None:
        """For the products, and a counter of blocks, of so many parts; and for the blocks' sums."""
        if parts > self._parts:
            self._parts = parts
            self.products = torch.empty(parts * MOST_ROWS * (MOST_ROWS + 1) // 2, dtype=torch.float64, pin_memory=True)
            self.products_read = self.products.numpy()
            self.ended = torch.zeros(parts, dtype=torch.int32, device=f"cuda:{self._device}")
        if sums > self._sums:
            self._sums = sums
            self.partial = torch.empty(sums, dtype=torch.float64, device=f"cuda:{self._device}")

    def send(self, values: Float) -> torch.Tensor:
        """The values in float32 on the device, by way of pinned memory that is kept: pinning is slow."""
        if self._sent is None or self._sent.numel() < values.size:
            self._sent = torch.empty(values.size, dtype=torch.float32, pin_memory=True)
            self._received = torch.empty(values.size, dtype=torch.float32, device=f"cuda:{self._device}")
        self._sent[: values.size].numpy()[:] = values.ravel()
        return self._received.copy_(self._sent, non_blocking=True)


_threads = threading.local()


def _own(device: int) -> _Own:
    own: dict[int, _Own] = _threads.__dict__.setdefault("held", {})
    if device not in own:
        own[device] = _Own(device)
    return own[device]


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


_int = ctypes.c_int


def _launch(kernel: Any, device: int, blocks: int, threads: int, arguments: list[Any]) -> None:
    """Start the kernel on the device's current stream. (torch's own call takes several times as long.)"""
    if current_device() != device:
        with torch.cuda.device(device):
            return _launch(kernel, device, blocks, threads, arguments)
    pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    stream = ctypes.c_void_p(current_stream(device))
    error = _driver().cuLaunchKernel(kernel.func, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)
    if error:
        check(error)
    return None


_driver = cache(driver)


def wait(device: int) -> None:
    """Wait for the device's current stream."""
    error = _driver().cuStreamSynchronize(ctypes.c_void_p(current_stream(device)))
    if error:
        check(error)


def _group(rows: torch.Tensor) -> int:
    """How many neighbouring values can be read at once: every row must begin at a multiple of so many."""
    together = 2 * rows.element_size()
    return 2 if rows.stride(0) % 2 == 0 and rows.data_ptr() % together == 0 else 1


@cache
def _triangle(size: int) -> Any:
    """(size, size) positions in the packed lower triangle."""
    i, j = np.indices((size, size))
    i, j = np.maximum(i, j), np.minimum(i, j)
    return i * (i + 1) // 2 + j


@cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _rank_defines(K: int, network: SortingNetwork, summary: Summary | None) -> tuple[str, ...]:
    comparators = " ".join(f"SMALLER({c.low}, {c.high})" for c in network.comparators)
    wanted = ", ".join(map(str, network.wanted))
    summarized = () if summary is None else (f"{summary.define} {summary.number}",)
    return (f"RANKED {K}", f"COMPARATORS {comparators}", f"WANTED {wanted}", *summarized)


@cache
def _compile(name: str, dtype: torch.dtype, device: int, defines: tuple[str, ...]) -> Any:
    """The kernel for this element type and these shapes, compiled by NVRTC on its first use."""
    head = "".join(f"#define {line}\n" for line in (TYPES[dtype], *defines))
    source = files("honestly.kernels").joinpath("passes", "kernels.cu").read_text(encoding="utf-8")
    with WHOLE_DEVICE, torch.cuda.device(device):
        return compile_kernel(head + source, name)
