"""What a rule is: settings that validate themselves, and a mixing matrix computed from the clients' geometry.

Every rule is `value = reduce(A @ X)`: `A`, m x K, comes from the K x K geometry alone (`Rule.mix`); `reduce` is nothing
for a weighted mean (m = 1) or a function of the sorted values of each coordinate (`ColumnRule.reduce`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from honestly.result import ClientId, Float, Status


class Geometry(Protocol):
    """All that a rule may know of K clients `w_k`: their mutual distances, never their coordinates.

    Excluded clients are not part of it: every row is finite.
    """

    @property
    def K(self) -> int:
        """Number of clients."""
        ...

    @property
    def ids(self) -> Sequence[ClientId]:
        """The clients' names, for rules with a memory."""
        ...

    @property
    def sizes(self) -> Float | None:
        """(K,) sizes that the clients reported, if the caller passed them. Attackers lie about them."""
        ...

    @property
    def gram(self) -> Float:
        """(K, K) `G = C C^T` of the centred updates. The centre is unknown: only differences have a meaning."""
        ...

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`, where the reference is the previous model, or 0 if none was given."""
        ...

    def residuals(self, a: Float) -> Float:
        """`||w_k - sum_j a_j w_j||^2` for weights (K,) that sum to 1, or a row of residuals for each row of (m, K)."""
        ...


def squared_distances(gram: Float) -> Float:
    """`D_kj = ||w_k - w_j||^2 = G_kk - 2 G_kj + G_jj`, exactly 0 on the diagonal and never negative."""
    norms = np.diagonal(gram)
    distances = np.maximum(norms[:, None] - 2.0 * gram + norms[None, :], 0.0)
    distances = 0.5 * (distances + distances.T)
    np.fill_diagonal(distances, 0.0)
    return distances


@dataclass(frozen=True)
class GramGeometry:
    """The geometry of K clients whose Gram matrix is known."""

    gram: Float
    ids: Sequence[ClientId] = ()
    sizes: Float | None = None
    # <w_k - centre, reference - centre> and |reference - centre|^2; None if the centre is the reference itself
    reference_row: Float | None = None
    reference_norm: float = 0.0

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.gram)

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`."""
        if self.reference_row is None:
            return self.gram
        row = self.reference_row
        return self.gram - row[:, None] - row[None, :] + self.reference_norm

    def residuals(self, a: Float) -> Float:
        """`r_k^2 = G_kk - 2 (G a)_k + a^T G a`."""
        mixed = a @ self.gram
        norm = (mixed * a).sum(axis=-1, keepdims=True)
        return np.maximum(np.diagonal(self.gram) - 2.0 * mixed + norm, 0.0)

    def mixed(self, A: Float) -> GramGeometry:
        """The geometry of the mixtures `A @ X` (rows of A sum to 1): `G' = A G A^T`."""
        row = None if self.reference_row is None else A @ self.reference_row
        names = tuple(range(len(A))) if len(A) != self.K else self.ids
        return GramGeometry(A @ self.gram @ A.T, names, None, row, self.reference_norm)


@dataclass(frozen=True)
class Mix:
    """What a rule decided: `value = matrix @ X + reference * (reference's weight)`, and what it learned."""

    matrix: Float  # (m, K); m = 1 for a weighted mean
    honesty: Float | None = None  # (K,)
    reference_weight: float = 0.0
    status: Status = Status.CLOSED_FORM
    steps: int = 0
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_weights(cls, weights: Float, **found: Any) -> Mix:
        """A weighted mean."""
        return cls(matrix=np.asarray(weights, dtype=np.float64)[None, :], **found)


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A rule: a frozen dataclass of its settings, validated when it is made.

    Class attributes say what it needs, for `hn.rules()` and for the engine:

    - ``name``: its snake_case name on the command line;
    - ``summary``: one line for people;
    - ``reference``: where it comes from;
    - ``needs``: any of "f" (the number of attackers must be told), "reference", "root", "memory", "randomness", "sizes";
    - ``streams``: it only asks the geometry for `residuals`, so that K^2 d work can be avoided for thousands of clients;
    - ``infers_honesty``: its result has ``honesty``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    streams: ClassVar[bool] = False
    infers_honesty: ClassVar[bool] = False

    def minimum(self) -> int:
        """The fewest clients that the rule can work with; the engine refuses a round with fewer."""
        return 1

    @abstractmethod
    def mix(self, geometry: Geometry) -> Mix:
        """The mixing matrix for these clients."""


class ColumnRule(Rule):
    """A rule that reduces each coordinate by itself, from its sorted values (after mixing, if `mix` mixes)."""

    gram_needed: ClassVar[bool] = False

    def mix(self, geometry: Geometry) -> Mix:
        """Coordinate-wise rules keep every client: the identity, never formed by the engine."""
        return Mix(np.eye(geometry.K))

    @abstractmethod
    def reduce(self, ranked: Any, xp: Any) -> Any:
        """One value per coordinate from `ranked`, (m, b): row i holds the i-th smallest value of each coordinate."""


@dataclass(frozen=True, kw_only=True)
class Mixer(ABC):
    """A pre-aggregation: replaces K updates by m mixtures, `X' = A X`, before the rule sees them."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()

    def minimum(self) -> int:
        """The fewest clients that the mixer can work with."""
        return 1

    @abstractmethod
    def mix(self, geometry: Geometry) -> Float:
        """(m, K) mixing matrix whose rows sum to 1."""
