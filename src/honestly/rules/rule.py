"""What a rule is: settings that validate themselves, and a mixing matrix computed from the clients' geometry.

Every rule is `value = reduce(A @ X)`: `A`, m x K, comes from the K x K geometry alone (`Rule.mix`); `reduce` is nothing
for a weighted mean (m = 1) or a function of the sorted values of each coordinate (`ColumnRule.reduce`). What the rows
of `A` lack to 1 is the reference's share: `value = reduce(A @ X + (1 - A 1) reference)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

import numpy as np

from honestly.result import Float, Status, Verdict
from honestly.rules._lib.windows import mean_nearest_to_median, mean_of_rows
from honestly.rules.geometry import Geometry
from honestly.rules.gram import GramGeometry, squared_distances
from honestly.rules.settings import check_bounds

__all__ = [
    "AveragingRule",
    "ColumnRule",
    "Geometry",
    "GramGeometry",
    "Mix",
    "Mixer",
    "NearestRule",
    "Rule",
    "TooFewClientsError",
    "require",
    "squared_distances",
]


@dataclass(frozen=True)
class Mix:
    """What a rule decided: `value = reduce(matrix @ X + (1 - row sums) reference)`, and what it learned.

    Attributes:
        matrix: (m, K); m = 1 for a weighted mean.
        honesty: (K,) probability that a client does not lie, for rules that infer it.
        status: how the rule ended.
        steps: iterations that it took.
        diagnostics: what else it found, by name; "layers" is its evidence, (K, L).
        by_layer: (L, K) a row of weights that sum to 1 for each layer, for rules that weigh each by itself; the matrix
            is then their mean, weighted by the layers' numbers of columns.
        verdicts: one per client, for rules that judge; else those with honesty below 1/2 are accused.
        explanations: a sentence per client.
    """

    matrix: Float
    honesty: Float | None = None
    status: Status = Status.CLOSED_FORM
    steps: int = 0
    diagnostics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    by_layer: Float | None = None
    verdicts: Sequence[Verdict] | None = None
    explanations: Sequence[str] | None = None

    @classmethod
    def of_weights(cls, weights: Float, **fields: Any) -> Mix:
        """A weighted mean."""
        return cls(matrix=np.asarray(weights, dtype=np.float64)[None, :], **fields)

    @classmethod
    def of_layers(cls, by_layer: Float, sizes: Float, **fields: Any) -> Mix:
        """A weighted mean with separate weights for each layer; `sizes` are the layers' numbers of columns."""
        rows = np.asarray(by_layer, dtype=np.float64)
        matrix = rows if len(rows) == 1 else (sizes / sizes.sum() @ rows)[None, :]
        return cls(matrix=matrix, by_layer=rows, **fields)


class _Step:
    """What rules and mixers share: a name, what they need, and how many clients."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    #: the formula of `minimum`, for messages
    bound: ClassVar[str] = "1"
    #: False if the step asks for nothing but K, ids and sizes, so no Gram pass is made for it
    gram_needed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bounds(self)

    def minimum(self) -> int:
        """The fewest clients that the step can work with; the engine refuses a round with fewer usable ones."""
        return 1

    def check(self, K: int) -> None:
        """Raise ValueError, naming the bound, if the settings do not fit K clients."""
        require(self, K)

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The same step for the next round, given what this round found: itself, unless it remembers."""
        return self


class TooFewClientsError(ValueError):
    """A step needs more clients, or mixtures of them, than there are; the message names the bound."""

    def __init__(self, message: str, needed: str) -> None:
        super().__init__(message)
        self.needed = needed


def require(step: _Step, K: int) -> None:
    """Raise TooFewClientsError, naming the bound, if the step needs more than K clients."""
    minimum = step.minimum()
    if minimum > K:
        formula = "" if step.bound == str(minimum) else f"{step.bound} = "
        needed = f"{step} needs at least {minimum} clients or mixtures of them, but {K} are left"
        raise TooFewClientsError(f"{step} needs at least {formula}{minimum} clients, got {K}", needed)


@dataclass(frozen=True, kw_only=True)
class Rule(_Step, ABC):
    """A rule: a frozen dataclass of its settings, validated on creation.

    Class attributes say what it needs, for `hn.list_rules()` and for the engine:

    - ``name``: its snake_case name on the command line;
    - ``summary``: one line for people;
    - ``reference``: where it comes from;
    - ``needs``: any of "f" (the number of attackers must be told), "reference", "root", "memory", "randomness",
      "sizes", "signs", "updates" (whole updates in memory at once), "buffers" (BatchNorm's running
      statistics), "trusted client";
    - ``gram_needed``: False if `mix` asks for nothing but K, ids and sizes;
    - ``streams``: it can work from `residuals` alone, so K^2 d work is avoided for thousands of clients;
    - ``infers_honesty``: its result has ``honesty``;
    - ``uses_sizes``: `mix` reads the clients' sizes itself; else the engine multiplies its weights by sizes, capped;
    - ``root``: the trusted root update, for a rule that has one.
    """

    streams: ClassVar[bool] = False
    infers_honesty: ClassVar[bool] = False
    uses_sizes: ClassVar[bool] = False
    root: ClassVar[Any] = None

    @abstractmethod
    def mix(self, geometry: Geometry) -> Mix:
        """The mixing matrix for these clients."""

    def foresee(self, K: int, d: int, layers: Float | None) -> Float | None:
        """(K,) the weights, bit by bit, of a `mix` of K clients' vectors of length d without sizes or a reference.

        None where they are not known within microseconds. A GPU averages with them while the engine still screens,
        decides and explains; if it decides on others, the work was in vain, nothing more. `layers` is their Gram
        matrix, (1, K, K), or None if the rule needs none.
        """
        return None

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The same rule for the next round: with the memory of this one, if it needs a memory."""
        memory = diagnostics.get("memory") if "memory" in self.needs else None
        return self if memory is None else replace(self, memory=memory)


class ColumnRule(Rule):
    """A rule that reduces each coordinate by itself, from its sorted values (after mixing, if `mix` mixes)."""

    gram_needed: ClassVar[bool] = False
    #: True if `reduce` is the mean of the ranks it reads, see `AveragingRule`
    averages: ClassVar[bool] = False

    def mix(self, geometry: Geometry) -> Mix:
        """Coordinate-wise rules keep every client: the identity, never multiplied by the engine."""
        self.check(geometry.K)
        return Mix(np.eye(geometry.K))

    def ranks(self, m: int) -> tuple[int, int]:
        """(first, last) of the sorted rows that `reduce` reads, of m: others need not be sorted."""
        return 0, m

    def __init_subclass__(cls) -> None:
        """A rule is defined once: it cannot set `averages` and also define a `reduce`, which would never be called."""
        super().__init_subclass__()
        if cls.averages and not getattr(cls.reduce, "__final__", False):
            raise TypeError(f"{cls.__name__} sets averages and defines reduce: derive it from AveragingRule instead")

    @abstractmethod
    def reduce(self, ranked: Any, xp: Any) -> Any:
        """One value per coordinate from `ranked`, (last - first, b): row i holds rank first + i of each coordinate."""


class AveragingRule(ColumnRule):
    """A rule that takes the mean of the ranks it reads: they may come in any order, which costs less than sorting."""

    averages: ClassVar[bool] = True

    @final
    def reduce(self, ranked: Any, xp: Any) -> Any:
        """The mean of the rows that are read."""
        return mean_of_rows(ranked)


class NearestRule(ColumnRule):
    """A rule that takes the mean of the values nearest to the median: a device can do so in the pass that sorts."""

    @abstractmethod
    def nearest(self, m: int) -> int:
        """How many of m values are averaged."""

    @final
    def reduce(self, ranked: Any, xp: Any) -> Any:
        """The mean of the values nearest to the median."""
        return mean_nearest_to_median(ranked, self.nearest(ranked.shape[0]), xp)


@dataclass(frozen=True, kw_only=True)
class Mixer(_Step, ABC):
    """A pre-aggregation: replaces K updates by m mixtures, `X' = A X`, before the rule sees them."""

    @abstractmethod
    def mix(self, geometry: Geometry) -> Float:
        """(m, K) mixing matrix; what its rows lack to 1 is the reference's share."""
