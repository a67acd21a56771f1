"""What an attack is: settings that validate themselves, and updates (or training data) forged from what it may see.

An attack says *how* malicious clients lie; *who* lies and *when* is the adversary's business. Two kinds, and a class
may be both (model replacement poisons its data, then scales the resulting update):

- `DataAttack.poison` changes the training data of a malicious client, which then trains as everybody does;
- `UpdateAttack.forge` changes the updates that the malicious clients send.

The code knows only the array API: it runs on NumPy and on torch tensors of any device, with the same random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from array_api_compat import array_namespace

from honestly.engine import Pipeline
from honestly.rules.rule import Rule
from honestly.rules.settings import check_bounds, number, setting
from honestly.sim.attacks.vectors import DrawnAhead, gram, host, mean, norm, normal, rms, spread, std, unit
from honestly.sim.attacks.workshop import Workshop

__all__ = [
    "KNOWS", "Array", "Attack", "Backdoor", "DataAttack", "Knowledge", "Phase", "Select", "UpdateAttack", "View",
    "gram", "host", "mean", "norm", "normal", "rms", "setting", "spread", "std", "unit",
]  # fmt: skip

Array: TypeAlias = Any
Knowledge: TypeAlias = Literal["own", "malicious", "all", "rule"]
Select: TypeAlias = Literal["all", "poisoned"]
#: what `Attack.knows` means, for people; every client, so every attacker, also gets the global model in each round
KNOWS: dict[Knowledge, str] = {
    "own": "its own data and update",
    "malicious": "all attackers' data and updates",
    "all": "everybody's updates",
    "rule": "everybody's updates and the rule",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """What the attackers see in one round. Updates are differences to the reference, `w_k - reference`.

    Attributes:
        own: (M, d) updates that the M malicious clients computed by training (on poisoned data in a `DataAttack`).
        others: (K - M, d) updates of the honest clients; only for an attack whose ``knows`` is "all" or "rule", else
            None.
        reference: (d,) the global model that the round started from, or None.
        rng: the only source of randomness.
        clients: K; 0 means M plus the number of ``others``.
        pipeline: the rule in use behind its mixers; only for an attack whose ``knows`` is "rule", else None.
        memory: what `UpdateAttack.remember` gave in the last round with attackers, empty in the first.
        layers: sizes of the tensors that lie one after the other in an update; () where they are unknown.
        clean: (M, d) updates of the attackers on their clean data, for an attack that `wants_clean`; else None.
        success: for backdoors, models (n, d) -> (n,) the share of the attackers' own victims that are misclassified as
            they wish; None outside the simulator.
        workshop: for attacks that train by themselves, () -> their data and the model as a function; None outside the
            simulator.
        noise: what `normal` draws first from ``rng``, drawn already, for an attack with `noise_ahead`; else None.
    """

    own: Array
    rng: np.random.Generator
    others: Array | None = None
    reference: Array | None = None
    clients: int = 0
    pipeline: Pipeline | None = None
    memory: Mapping[str, Array] = field(default_factory=dict[str, Array])
    layers: Sequence[int] = ()
    clean: Array | None = None
    success: Callable[[Array], Array] | None = None
    workshop: Callable[[], Workshop] | None = None
    noise: DrawnAhead | None = None

    @property
    def rule(self) -> Rule | None:
        """The rule in use; None unless the attack knows it."""
        return None if self.pipeline is None else self.pipeline.rule

    @property
    def M(self) -> int:
        """Number of malicious clients."""
        return int(self.own.shape[0])

    @property
    def K(self) -> int:
        """Number of clients in all."""
        return self.clients or self.M + (0 if self.others is None else int(self.others.shape[0]))

    @property
    def honest(self) -> Array:
        """The honest updates that the attackers know: everybody else's, or those that they computed themselves."""
        return self.own if self.others is None or self.others.shape[0] == 0 else self.others

    @property
    def xp(self) -> Any:
        """The array library of the updates."""
        return array_namespace(self.own)


@dataclass(frozen=True)
class Phase:
    """A part of a malicious client's local training; every phase starts with a fresh optimiser.

    ``select`` is "all" (every sample that `DataAttack.poison` returned) or "poisoned" (those of its mask alone).
    A phase that selects no sample is skipped.
    """

    epochs: int
    select: Select = "all"


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """An attack: a frozen dataclass of its settings, validated on creation.

    Class attributes, for `attacks()` and for the simulator:

    - ``name``: its snake_case name on the command line;
    - ``summary``: one line for people;
    - ``reference``: where it comes from;
    - ``knows``: "own" (each attacker its own update), "malicious" (attackers pool theirs), "all" (everybody's updates)
      or "rule" (these, and the rule in use);
    - ``identical``: all attackers send the same vector;
    - ``training``: what an attacker computes in a round, in local trainings of an honest client;
    - ``keeps``: what it needs to hold beside its own update, with d coordinates and K clients, M of them malicious.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    knows: ClassVar[Knowledge] = "own"
    identical: ClassVar[bool] = False
    training: ClassVar[float] = 1.0
    keeps: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Refuse settings that are not finite numbers, or outside the bounds that `setting` gave them."""
        if self.knows not in KNOWS:  # a misspelt word would let the attack see less than it says
            raise ValueError(f"{type(self).__name__}: knows must be one of {', '.join(KNOWS)}, got {self.knows!r}")
        check_bounds(self)
        for one in fields(self):
            if isinstance(value := getattr(self, one.name), float):
                number(self, one.name, value)

    def require(self, name: str, **bounds: float) -> None:
        """Raise ValueError unless the setting is within bounds (None is), for those that depend on other settings."""
        if (value := getattr(self, name)) is not None:
            number(self, name, value, **bounds)


class UpdateAttack(Attack):
    """An attack on the updates that the malicious clients send.

    An attack is a value and holds no state: what it wants to know in the next round it gives to `remember`, and finds
    it in ``view.memory``. The simulator saves it with the run, so a resumed run continues unchanged.
    """

    #: the simulator trains every attacker on its clean data, too, and gives the result as ``view.clean``
    wants_clean: ClassVar[bool] = False
    #: the first random numbers of the attack are one (M, d) array of `normal`: on a GPU the simulator draws it while
    #: the clients train, because millions of numbers per attacker take a while
    noise_ahead: ClassVar[bool] = False

    def forge(self, view: View) -> Array:
        """(M, d) updates that the malicious clients send instead of ``view.own``, same dtype and device."""
        if view.M == 0:
            return view.own
        xp = view.xp
        forged = self.craft(view)
        shape, rows = getattr(forged, "shape", None), tuple(view.own.shape)
        if shape is None or tuple(shape) not in (rows, rows[1:]):
            raise ValueError(
                f"{type(self).__name__}.craft returned {_describe(forged)}; expected one row for each attacker, "
                f"{rows}, or one vector that all send, {rows[1:]}"
            )
        if forged.ndim == 1:  # one vector, which all attackers send
            forged = xp.broadcast_to(forged[None, :], view.own.shape)
        return xp.asarray(forged, dtype=view.own.dtype, copy=True)

    @abstractmethod
    def craft(self, view: View) -> Array:
        """The forged updates of M >= 1 attackers, (M, d), or (d,) if all send the same."""

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """Arrays by name for the next round in which there are attackers; nothing unless the attack says otherwise."""
        return {}


class DataAttack(Attack):
    """An attack on the training data of the malicious clients."""

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """How a malicious client spends its local epochs; one plain phase unless the attack says otherwise."""
        return (Phase(epochs),)

    @abstractmethod
    def poison(
        self, images: Array, labels: Array, *, rng: np.random.Generator, attacker: int = 0
    ) -> tuple[Array, Array, Array]:
        """The data that malicious client number ``attacker`` trains on.

        Args:
            images: (n, c, h, w) raw pixels, uint8.
            labels: (n,) integers.
            rng: the only source of randomness.
            attacker: 0 .. M - 1, the client's number among the malicious ones (distributed backdoors).

        Returns:
            images, labels and mask, (n',): which samples are poisoned.
        """


def check_poison(attack: DataAttack, images: Array, result: Any) -> tuple[Array, Array, Array]:
    """What `poison` returned for these images, or a ValueError that says what is wrong with it."""
    who = f"{type(attack).__name__}.poison"
    if not isinstance(result, tuple) or len(result) != 3:
        raise ValueError(f"{who} returned {_describe(result)}; expected a tuple of images, labels and mask")
    poisoned, labels, mask = result
    wanted, pixels = tuple(images.shape[1:]), tuple(np.shape(poisoned))
    if pixels[1:] != wanted or getattr(poisoned, "dtype", None) != images.dtype:
        form = f"{_describe(poisoned)} of {getattr(poisoned, 'dtype', 'no dtype')}"
        raise ValueError(f"{who} returned images that are {form}; expected (n, {str(wanted)[1:]} of {images.dtype}")
    for name, one in (("labels", labels), ("mask", mask)):
        if np.shape(one) != pixels[:1]:
            raise ValueError(f"{who} returned {name} that are {_describe(one)}; expected {pixels[0]}, one per image")
    return poisoned, labels, mask


def check_memory(attack: UpdateAttack, memory: Any) -> Mapping[str, Array]:
    """What `remember` returned, numbers as arrays, or a ValueError: a resumed run must find the same in its file."""
    who = f"{type(attack).__name__}.remember"
    if not isinstance(memory, Mapping) or not all(isinstance(name, str) for name in memory):
        raise ValueError(f"{who} returned {_describe(memory)}; expected a dict of arrays by name")
    arrays: dict[str, Array] = {
        name: v if hasattr(v, "dtype") and hasattr(v, "shape") else _as_array(v) for name, v in memory.items()
    }
    for name, one in arrays.items():
        kind = getattr(one.dtype, "name", str(one.dtype))  # torch.float32 has no name
        if kind.removeprefix("torch.").rstrip("0123456789") not in ("bool", "int", "uint", "float"):
            raise ValueError(
                f"{who} returned a {type(memory[name]).__name__} as {name!r}; expected an array of numbers, "
                f"of a real type that NumPy has, got {kind}"
            )
    return {name: one.detach() if hasattr(one, "detach") else one for name, one in arrays.items()}


def _as_array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.array(None)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)}"
    return f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__name__}"


class Backdoor(DataAttack):
    """A data attack with a hidden goal: images with the trigger are to be classified as ``target``.

    Attack success rate: the share of `victims` of the test set that, after `stamp`, are predicted as ``target``.
    """

    target: int

    @abstractmethod
    def victims(self, images: Array, labels: Array) -> Array:
        """(n,) mask of the samples that the attacker wants to be misclassified."""

    @abstractmethod
    def stamp(self, images: Array) -> Array:
        """A copy of the raw images with the whole trigger."""
