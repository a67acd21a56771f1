"""Array libraries for every test that takes `xp`, and a federation to test on."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plain", action="store_true", help="without the compiled programs")


if "--plain" in sys.argv:  # now: conftests of folders named on the command line are loaded before `pytest_configure`
    os.environ["HONESTLY_COMPILE"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    """A process started in the background ignores Ctrl-C, under nohup SIGHUP, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for switch in ("HONESTLY_COMPILE", "HONESTLY_TENSOR_CORES"):
        os.environ.pop(switch, None)
    if config.getoption("--plain"):
        os.environ["HONESTLY_COMPILE"] = "0"
    if not os.access(Path("~").expanduser(), os.W_OK):  # the compiled program needs a folder
        os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp(prefix="honestly-tests-"))


# On a busy machine an example may take long; what `make test` draws is the same every time, `make test-all` explores.
settings.register_profile("same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.load_profile("same")

pytest_plugins = ["without"]
LIBRARIES = ("numpy", "torch", "jax", "array_api_strict")


class Library:
    """One array library: make an array from NumPy values, and read one back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def array(self, values: Any, dtype: str = "float32") -> Any:
        values = np.asarray(values)
        if self.name == "numpy":
            return values.astype(dtype)
        if self.name == "torch":
            import torch

            return torch.from_numpy(np.array(values, dtype=np.float64)).to(getattr(torch, dtype))
        if self.name == "jax":
            import jax.numpy as jnp

            return jnp.asarray(values, dtype=dtype)
        import array_api_strict

        return array_api_strict.asarray(values.astype(dtype))

    def numpy(self, x: Any) -> np.ndarray:
        if self.name == "torch":
            return x.detach().double().numpy()
        if self.name == "array_api_strict":
            return np.from_dlpack(x).astype(np.float64)
        return np.asarray(x).astype(np.float64)

    def dtypes(self) -> tuple[str, ...]:
        return {
            "numpy": ("float16", "float32", "float64"),
            "torch": ("float16", "bfloat16", "float32", "float64"),
            "jax": ("float16", "bfloat16", "float32"),  # JAX has no float64 unless the process asks for it
            "array_api_strict": ("float32", "float64"),
        }[self.name]


@pytest.fixture(params=LIBRARIES)
def xp(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


def tolerance(dtype: str) -> float:
    """Relative error allowed for a result of this dtype."""
    return {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-9}[dtype]


@pytest.fixture
def federation() -> Callable[..., np.ndarray]:
    """(K, d) honest updates around a common direction, the last M replaced by -4 times theirs."""

    def make(K: int = 10, d: int = 300, M: int = 0, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(seed)
        updates = rng.normal(size=(K, d)) + 0.5 * rng.normal(size=d)
        updates[K - M :] *= -4
        return updates

    return make
