"""The only file that knows array libraries: what an array is, how to see it from NumPy, and how to go back.

On the CPU every library's arrays are seen as NumPy views without a copy, so one set of kernels serves all. On an
accelerator the work stays there, through the array API (`array_api_compat`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import array_api_compat as aac
import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property

Host: TypeAlias = npt.NDArray[Any]

#: Dtype names that can be averaged, and the precision in which the work is done.
COMPUTE = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}
#: Largest absolute value whose squares still add up, and can still be multiplied by one another and divided by the
#: spread of small updates (in float64, for any dtype): a client with larger ones is excluded.
LARGEST = {"float32": 1e17, "float64": 1e70}


@dataclass(frozen=True)
class ArraySpec:
    """What a client's array is, as far as layout and result are concerned."""

    shape: tuple[int, ...]
    dtype: str  # "float32", "bfloat16", "int64", ...
    kind: str  # "float", "integer", "bool" or what it is instead

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @cached_property
    def layout(self) -> tuple[tuple[int, ...], str]:
        """Shape and kind: what clients must have in common to be averaged."""
        return self.shape, self.kind


def is_array(x: object) -> bool:
    """True for an array of NumPy (scalars included), torch, JAX, CuPy or any array-API library."""
    return isinstance(x, np.ndarray | np.generic) or (not isinstance(x, type) and aac.is_array_api_obj(x))


def is_scalar(x: object) -> bool:
    """True for a plain Python number."""
    return isinstance(x, bool | int | float | complex)


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name, the same for both byte orders. NumPy takes microseconds to spell it, and models have many arrays."""
    return dtype.name


def spec(x: Any) -> ArraySpec:
    """Shape and dtype of an array or number, read without touching its values."""
    if type(x) is np.ndarray:
        return _known_spec(x.shape, dtype_name(x.dtype))
    if is_scalar(x):
        return spec(np.asarray(x))
    shape = tuple(map(int, x.shape))
    if "sparse" in str(getattr(x, "layout", "")):
        return ArraySpec(shape, str(x.layout), "sparse")
    if isinstance(x, np.ndarray | np.generic):
        dtype = dtype_name(x.dtype)  # both byte orders are read, and the result has this machine's
        mask = getattr(x, "mask", None)
        if mask is not None and np.any(mask):  # what a masked array hides is not the client's to average
            return ArraySpec(shape, f"{dtype} with masked values", "masked")
    else:
        _refuse_traced(x)
        dtype = str(x.dtype).rpartition(".")[2]  # "torch.float32", "array_api_strict.float32"
    return _known_spec(shape, dtype)


def _refuse_traced(x: Any) -> None:
    """Raise TypeError for what JAX passes to a function that it compiles or differentiates: it has no values yet."""
    if aac.is_jax_array(x):
        from jax.core import Tracer

        if isinstance(x, Tracer):
            raise TypeError(
                "it is traced by jax.jit, grad or vmap, and has no values; aggregate outside of the traced function, "
                "or use honestly.jax.robust_mean in it"
            )


@lru_cache(maxsize=4096)
def _known_spec(shape: tuple[int, ...], dtype: str) -> ArraySpec:
    """One object for the same tensor of all clients: to compare the clients' layouts is then to compare addresses."""
    return ArraySpec(shape, dtype, _kind(dtype))


def _kind(dtype: str) -> str:
    if dtype in COMPUTE:
        return "float"
    if dtype.startswith(("int", "uint")):
        return "integer"
    return "bool" if dtype == "bool" else dtype


def device_name(x: Any) -> str:
    """The device that holds the values, as text: "cpu", "cuda:0", "meta", ..."""
    if type(x) is np.ndarray or isinstance(x, np.ndarray | np.generic) or is_scalar(x):
        return "cpu"
    device = str(aac.device(x)).lower()
    return "cpu" if "cpu" in device else device


def on_host(x: Any) -> bool:
    """True if NumPy can see the values where they are."""
    if type(x) is np.ndarray:
        return True
    return x.device.type == "cpu" if aac.is_torch_array(x) else device_name(x) == "cpu"


def is_meta(x: Any) -> bool:
    """True if there is a shape and a dtype, but no values."""
    return x.device.type == "meta" if aac.is_torch_array(x) else device_name(x) == "meta"


def detach(x: Any) -> Any:
    """The array without its gradient history (torch), so nothing of ours enters a graph."""
    return x.detach() if aac.is_torch_array(x) else x


def host_view(x: Any) -> Host:
    """A NumPy view of a CPU array without a copy; bfloat16 is seen as its 16 bits (uint16)."""
    if isinstance(x, np.ndarray | np.generic) or is_scalar(x):
        view = np.asarray(x)
    elif aac.is_torch_array(x):
        x = x.detach()
        if x.numel() and not x.untyped_storage().nbytes():
            raise ValueError("its storage was freed, so it has no values")
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        if str(x.dtype) == "torch.bfloat16":
            import torch

            return x.view(torch.int16).numpy().view(np.uint16)
        return x.numpy()
    elif aac.is_jax_array(x):
        view = np.asarray(x)
    else:
        view = np.from_dlpack(x)
    return view.view(np.uint16) if dtype_name(view.dtype) == "bfloat16" else view


def to_host(x: Any) -> Host:
    """A NumPy array with the values of `x`, copied from its device if need be."""
    if on_host(x):
        return host_view(x)
    if aac.is_torch_array(x):
        return host_view(x.detach().cpu())
    if aac.is_cupy_array(x):
        return x.get()
    return host_view(np.asarray(x))


def host_dtype(spec: ArraySpec) -> np.dtype[Any]:
    """How NumPy holds values of this dtype: bfloat16 as uint16."""
    return np.dtype(np.uint16 if spec.dtype == "bfloat16" else spec.dtype)


def empty_host(spec: ArraySpec) -> Host:
    """An uninitialised NumPy array for a result of this shape and dtype."""
    return np.empty(spec.size, dtype=host_dtype(spec))


def from_host(values: Host, spec: ArraySpec, like: Any) -> Any:
    """The flat NumPy result as an array of `like`'s library and device, without a copy where that is possible."""
    values = values.reshape(spec.shape)
    if is_scalar(like):
        return type(like)(values.item())
    if isinstance(like, np.ndarray | np.generic):
        return values.view(np.dtype("bfloat16")) if spec.dtype == "bfloat16" else values
    if aac.is_torch_array(like):
        import torch

        if spec.dtype == "bfloat16":
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).to(like.device)
        return torch.from_numpy(values).to(like.device)
    xp = namespace(like)
    if aac.is_jax_array(like):
        import jax

        return jax.device_put(values.view(np.dtype("bfloat16")) if spec.dtype == "bfloat16" else values, like.device)
    return xp.asarray(values, device=aac.device(like))


def namespace(x: Any) -> Any:
    """The array-API namespace of an array."""
    return aac.array_namespace(x)


def widen(source: Host, out: Host) -> None:
    """Write float values of any width into `out`, float32 or float64; uint16 holds the bits of bfloat16."""
    if source.dtype == out.dtype:
        np.copyto(out, source)
    elif source.dtype == np.uint16:
        if out.dtype == np.float32:
            bits = out.view(np.uint32)
            bits[...] = source
            bits <<= 16
        else:
            with np.errstate(invalid="ignore"):
                out[...] = (source.astype(np.uint32) << 16).view(np.float32)
    elif source.dtype == np.float16 and out.dtype == np.float32 and _all_finite_halves(source):
        # NumPy converts value by value, which takes six times as long. A float32 has three bits more in its exponent,
        # thirteen more in its fraction, and another bias. Where denormal numbers count as zero, NumPy's way is right.
        bits = out.view(np.int32)
        np.copyto(bits, source.view(np.int16))
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, HALF_BITS, out=bits)
        np.multiply(out, HALF_BIAS, out=out)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, source, casting="same_kind")


#: Sign, exponent and fraction of a float16 in the bits of a float32, and what its bias lacks to a float32's.
HALF_BITS, HALF_BIAS = np.int32(-0x70000001), np.float32(2.0**112)


def _all_finite_halves(source: Host) -> bool:
    """Whether all of these float16 are finite, in this machine's byte order, and float32 can be denormal numbers."""
    if not source.size or not source.dtype.isnative or not source.view(np.int16).max() < 0x7C00:
        return False
    return bool(source.view(np.uint16).max() < 0xFC00 and np.float32(2.0**-140) * HALF_BIAS > 0)


def narrow(values: Host, out: Host) -> None:
    """Round float32 or float64 values into `out` to the nearest, ties to even; uint16 means bfloat16."""
    if out.dtype == np.uint16:
        bits = values.astype(np.float32, copy=False).view(np.uint32)
        out[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        with np.errstate(over="ignore"):
            np.copyto(out, values, casting="same_kind")


def flat_slice(view: Host, start: int, stop: int) -> Host:
    """Values start..stop of the flattened array: a view if it is contiguous, else a copy of that piece only."""
    if view.ndim == 1:
        return view[start:stop]
    if view.flags.c_contiguous:
        return view.reshape(-1)[start:stop]
    return np.asarray(view.flat[start:stop])


def like(x: Any, other: Any) -> Any:
    """`x` on the device and in the library of `other` (an accelerator array)."""
    if aac.is_torch_array(x) and aac.is_torch_array(other):
        return x.to(other.device)
    if type(x) is type(other):
        return aac.to_device(x, aac.device(other))
    return from_host(np.ascontiguousarray(to_host(x)).reshape(-1), spec(x), other)


def reshape_to(values: Any, spec: ArraySpec) -> Any:
    """A flat device array in the shape and dtype of the result."""
    if tuple(values.shape) == spec.shape and str(values.dtype).endswith(f".{spec.dtype}"):
        return values
    xp = namespace(values)
    return xp.reshape(xp.astype(values, getattr(xp, spec.dtype), copy=False), spec.shape)


@contextmanager
def full_precision(like: Any) -> Generator[None]:
    """Products of float32 in float32: TF32 and its kin are wrong by 1e-3, which distances do not survive."""
    if aac.is_torch_array(like) and like.is_cuda:
        import torch

        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            with torch.no_grad():
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    elif aac.is_jax_array(like):
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield
