"""The server's own optimiser: what becomes of the average (Reddi et al., Adaptive Federated Optimization, 2021).

A step takes the old model and the clients' average and gives the next model, with `d = average - old` for minus a
gradient. The formulas, settings and defaults are those of Flower's strategies of the same names, so a federation
can change its framework. Buffers and counters are not optimised: they are taken from the average.
"""

from __future__ import annotations

import hashlib
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import array_api_compat as aac
import numpy as np

from honestly import arrays
from honestly.catalog import Catalog, Spec
from honestly.files import write_atomically
from honestly.rules.settings import check_bounds, setting
from honestly.runs.npz import read_npz
from honestly.sources.tree import flatten, rebuild

Model = Mapping[str, Any]
FILE = "server.npz"


@dataclass(kw_only=True)
class ServerStep(ABC):
    """A server optimiser with its moments.

    Attributes:
        steps: how many steps were taken.
        moments: name of a moment -> tensor -> array.
    """

    name: ClassVar[str]
    steps: int = field(default=0, init=False)
    moments: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]], init=False)

    def __post_init__(self) -> None:
        check_bounds(self)

    def next(self, old: Model, average: Model, follow: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
        """The next model, in the dtypes of the old one. Raises FloatingPointError if it is not finite.

        Args:
            old: the model that was sent out, by name of its tensors.
            average: what the clients made of it.
            follow: tells by its name which tensor is a buffer, which the server does not optimise.
        """
        before = {name: dict(tensors) for name, tensors in self.moments.items()}
        self.steps += 1
        values: dict[str, Any] = {}
        for name, mean in average.items():
            if follow(name) or not _is_float(mean):
                values[name] = mean
                continue
            xp = arrays.namespace(mean)
            # moments of 16 bits would lose small squares, so the step is taken in float32
            dtype = xp.float32 if arrays.spec(mean).dtype in ("float16", "bfloat16") else mean.dtype
            start = xp.astype(xp.asarray(old[name]), dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                moved = start + self._move(name, xp.astype(mean, dtype, copy=False) - start, xp)
                new = xp.astype(moved, mean.dtype)
            if not bool(xp.all(xp.isfinite(new))):
                self.steps, self.moments = self.steps - 1, before
                raise FloatingPointError(f"{self.name}: the next value of {name!r} is not finite")
            values[name] = new
        return values

    @abstractmethod
    def _move(self, name: str, d: Any, xp: Any) -> Any:
        """What is added to the old tensor, from `d = average - old`."""

    def _moment(self, moment: str, name: str, d: Any, xp: Any) -> Any:
        """The moment so far; 0 in the first step."""
        old = self.moments.setdefault(moment, {}).get(name)
        if old is None or old.shape != d.shape:
            return xp.zeros_like(d)
        # read from a file it is an array of NumPy; numbers of NumPy 2.0 have no device attribute
        return xp.asarray(old, dtype=d.dtype, device=aac.device(d))

    def save(self, folder: Path, model: Model) -> None:
        """Put the moments beside the history, with a mark of the model that they belong to."""
        all_moments = [(f"{moment}/{name}", x) for moment, ts in self.moments.items() for name, x in ts.items()]
        moments = {name: arrays.to_host(x) for name, x in all_moments}
        save_moments(folder, {"steps": np.array(self.steps), "optimiser": np.array(self.name), **moments}, model)

    def load(self, folder: Path, model: Model) -> bool:
        """Go on with the moments that were saved for this model; False, and a fresh start, if there are none."""
        moments = load_moments(folder, model)
        if moments is None or str(moments.pop("optimiser", "")) != self.name:
            return False
        self.steps = int(moments.pop("steps"))
        self.moments = {}
        for key, values in moments.items():
            moment, _, name = key.partition("/")
            self.moments.setdefault(moment, {})[name] = values
        return True


@dataclass(kw_only=True)
class FedAvgM(ServerStep):
    """Momentum: `b <- momentum b + d`, `old + lr b`.

    >>> step = FedAvgM(lr=1.0, momentum=0.5)
    >>> model = {"w": np.zeros(2)}
    >>> for _ in range(2):
    ...     model = step.next(model, {"w": model["w"] + 1.0})
    >>> model["w"]
    array([2.5, 2.5])
    """

    lr: float = setting(1.0, above=0.0)
    momentum: float = setting(0.9, least=0.0, below=1.0)
    name: ClassVar[str] = "fedavgm"

    def _move(self, name: str, d: Any, xp: Any) -> Any:
        b = self.moments["momentum"][name] = self.momentum * self._moment("momentum", name, d, xp) + d
        return self.lr * b


@dataclass(kw_only=True)
class _Adaptive(ServerStep):
    """`m <- beta_1 m + (1 - beta_1) d`, `old + lr m / (sqrt(v) + tau)`."""

    lr: float = setting(0.1, above=0.0)
    beta_1: float = setting(0.9, least=0.0, below=1.0)
    tau: float = setting(1e-3, above=0.0)

    def _move(self, name: str, d: Any, xp: Any) -> Any:
        old_m, old_v = self._moment("m", name, d, xp), self._moment("v", name, d, xp)
        m = self.moments["m"][name] = self.beta_1 * old_m + (1 - self.beta_1) * d
        v = self.moments["v"][name] = self._second(old_v, d * d, xp)
        return self._rate() * m / (xp.sqrt(v) + self.tau)

    def _rate(self) -> float:
        return self.lr

    @abstractmethod
    def _second(self, v: Any, d2: Any, xp: Any) -> Any:
        """The second moment from the old one and d^2."""


@dataclass(kw_only=True)
class FedAdagrad(_Adaptive):
    """`v <- v + d^2`."""

    beta_1: float = setting(0.0, least=0.0, below=1.0)
    name: ClassVar[str] = "fedadagrad"

    def _second(self, v: Any, d2: Any, xp: Any) -> Any:
        return v + d2


@dataclass(kw_only=True)
class FedAdam(_Adaptive):
    """`v <- beta_2 v + (1 - beta_2) d^2`, with Adam's correction of the first rounds as Flower has it."""

    beta_2: float = setting(0.99, least=0.0, below=1.0)
    name: ClassVar[str] = "fedadam"

    def _rate(self) -> float:
        t = self.steps + 1
        return self.lr * math.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)

    def _second(self, v: Any, d2: Any, xp: Any) -> Any:
        return self.beta_2 * v + (1 - self.beta_2) * d2


@dataclass(kw_only=True)
class FedYogi(_Adaptive):
    """`v <- v - (1 - beta_2) d^2 sign(v - d^2)`."""

    lr: float = setting(0.01, above=0.0)
    beta_2: float = setting(0.99, least=0.0, below=1.0)
    name: ClassVar[str] = "fedyogi"

    def _second(self, v: Any, d2: Any, xp: Any) -> Any:
        return v - (1 - self.beta_2) * d2 * xp.sign(v - d2)


STEPS: Catalog[ServerStep] = Catalog("server", ServerStep, (FedAvgM, FedAdagrad, FedAdam, FedYogi))


def make_server(step: ServerStep | str | None) -> ServerStep | None:
    """A step from text such as `fedadam:lr=0.1,beta_1=0.9`; None for None, "" and "none" (the average itself).

    Raises ValueError, which names the text, if it is not a step.
    """
    if step is None or isinstance(step, ServerStep):
        return step
    if not isinstance(step, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"server is {step!r}; expected a step such as 'fedadam:lr=0.1'")
    if step in ("", "none"):
        return None
    spec = Spec.parse(step)
    if spec.name not in STEPS:
        raise ValueError(f"server is {step!r}; expected one of none, {', '.join(STEPS)}, as in 'fedadam:lr=0.1'")
    return STEPS.build(spec)


class ServerSide:
    """The server's step of a federation. Its moments survive rounds and, with a folder, restarts of the server.

    Args:
        step: the optimiser, its text, or None.
        folder: where its moments are kept, or None.
        follow: says whether a tensor, given its name, is a buffer.
    """

    def __init__(self, step: ServerStep | str | None, folder: Path | None, follow: Callable[[str], bool]) -> None:
        self.step, self._folder, self._follow = make_server(step), folder, follow
        self._loaded = False

    def next(self, average: Any, reference: Any, *, difference: bool) -> tuple[Any, str | None]:
        """The new model, and a sentence for the log if the step was not possible or its moments cannot be written.

        Where the step was not possible, the new model is the average itself.

        Args:
            average: an array, or a container of arrays.
            reference: the old model, in the same container.
            difference: the average is one of differences to the old model, which need not be known.
        """
        if self.step is None:
            return average, None
        if reference is None and not difference:
            return average, f"{self.step.name}: the previous model is not known, so the average is used unchanged"
        named = flatten(average)
        zeros = {name: 0 * values for name, values in named.items()} if difference else None
        old = flatten(reference) if zeros is None else zeros
        if not self._loaded and self._folder is not None and not difference:
            self.step.load(self._folder, old)
        self._loaded = True
        try:
            new = self.step.next(old, named, self._follow)
        except FloatingPointError as error:
            return average, f"{error}; the average is used unchanged"
        new = {name: _cast(values, old[name]) for name, values in new.items()}
        trouble = None
        if self._folder is not None:
            try:
                self.step.save(self._folder, new)
            except OSError as error:  # the step is still valid: only a restart needs the file
                trouble = f"{self.step.name}: the moments could not be written to {self._folder}: {error}"
        return rebuild(average, lambda path: new[path]), trouble


def _cast(values: Any, like: Any) -> Any:
    """Cast to the dtype of the old model, as adapters send it: the digest is computed from these values."""
    # arithmetic turns an array without axes into a number of NumPy
    same = isinstance(values, np.ndarray | np.generic) and isinstance(like, np.ndarray)
    return np.asarray(values, dtype=like.dtype) if same else values


def _is_float(values: Any) -> bool:
    return "float" in str(values.dtype)


def digest(model: Model) -> str:
    """A hash of a model's values: moments are used again only with the model that they belong to."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(model):
        values = np.ascontiguousarray(arrays.to_host(model[name]))
        hasher.update(f"{name} {values.dtype} {values.shape}".encode("utf-8", "backslashreplace"))
        hasher.update(values.tobytes())
    return hasher.hexdigest()


def save_moments(folder: Path, moments: Mapping[str, Any], model: Model) -> None:
    """Replace the file of moments as a whole, so a crash leaves either the old or the new ones."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **{"model": np.array(digest(model)), **moments})
    write_atomically(folder / FILE, stream.getvalue())


def load_moments(folder: Path, model: Model) -> dict[str, Any] | None:
    """The moments that belong to this model; None if there are none, or if they cannot be read."""
    try:
        with (folder / FILE).open("rb") as file:
            moments = read_npz(file)
    except (OSError, ValueError):
        return None
    return moments if str(moments.pop("model", "")) == digest(model) else None
