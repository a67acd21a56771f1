"""What a rule is: settings that validate themselves, and a mixing matrix computed from the clients' geometry.

Every rule is `value = reduce(A @ X)`: `A`, m x K, comes from the K x K geometry alone (`Rule.mix`); `reduce` is nothing
for a weighted mean (m = 1) or a function of the sorted values of each coordinate (`ColumnRule.reduce`). What the rows
of `A` lack to 1 is the reference's share: `value = reduce(A @ X + (1 - A 1) reference)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

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
        """The clients' names, for rules with a memory; () stands for 0..K-1."""
        ...

    @property
    def sizes(self) -> Float | None:
        """(K,) sizes that the clients reported, if the caller passed them. Attackers lie about them."""
        ...

    @property
    def streaming(self) -> bool:
        """True if K is so large that a rule should ask for `residuals` (a pass each) rather than for `gram`."""
        ...

    @property
    def gram(self) -> Float:
        """(K, K) `G = C C^T` of the centred updates. The centre is unknown: only differences have a meaning."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether the caller gave the previous model; without it the reference is 0."""
        ...

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`."""
        ...

    @property
    def root_products(self) -> Float | None:
        """(K + 1,) `<w_k - reference, root - reference>` of every client, then `|root - reference|^2`; or None."""
        ...

    def residuals(self, a: Float) -> Float:
        """`||w_k - sum_j a_j w_j||^2` for weights (K,) that sum to 1, or a row of residuals for each row of (m, K)."""
        ...

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The geometry of some of the clients, with its Gram matrix."""
        ...

    def sign_counts(self) -> Float:
        """(K, 3) how many coordinates of `w_k - reference` are > 0, == 0 and < 0."""
        ...


def squared_distances(gram: Float) -> Float:
    """`D_kj = ||w_k - w_j||^2 = G_kk - 2 G_kj + G_jj`, exactly 0 on the diagonal, symmetric and never negative."""
    norms = gram.diagonal()
    distances = norms[:, None] + norms
    distances -= gram + gram.T
    np.maximum(distances, 0.0, out=distances)
    distances.flat[:: len(gram) + 1] = 0.0
    return distances


@dataclass(frozen=True)
class GramGeometry:
    """The geometry of K clients whose Gram matrix is known; what is rarely needed is computed when asked for."""

    gram: Float
    ids: Sequence[ClientId] = ()
    sizes: Float | None = None
    has_reference: bool = False
    about_reference: Callable[[], Float] | None = None  # None: the Gram matrix is centred on the reference itself
    signs: Callable[[], Float] | None = None
    root_products: Float | None = None

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.gram)

    @cached_property
    def distances(self) -> Float:
        """(K, K) squared distances."""
        return squared_distances(self.gram)

    @cached_property
    def ranked(self) -> Float:
        """(K, K) squared distances with every row sorted: its own 0, the nearest neighbour's, ..."""
        return np.sort(self.distances, axis=1)

    @cached_property
    def extent(self) -> tuple[float, float, float]:
        """The shortest and the longest squared distance to a nearest neighbour, and the largest squared norm."""
        nearest = self.ranked[:, 1]
        return float(nearest.min()), float(nearest.max()), float(self.gram.diagonal().max())

    @property
    def streaming(self) -> bool:
        """The Gram matrix is at hand."""
        return False

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`."""
        return self.gram if self.about_reference is None else self.about_reference()

    def residuals(self, a: Float) -> Float:
        """`r_k^2 = G_kk - 2 (G a)_k + a^T G a`."""
        mixed = a @ self.gram
        norm = (mixed * a).sum(axis=-1, keepdims=True)
        mixed *= -2.0
        mixed += self.gram.diagonal()
        mixed += norm
        return np.maximum(mixed, 0.0, out=mixed)

    def sign_counts(self) -> Float:
        """(K, 3) how many coordinates of `w_k - reference` are > 0, == 0 and < 0."""
        if self.signs is None:
            raise ValueError("this geometry has no coordinates, so signs cannot be counted; call hn.aggregate instead")
        return self.signs()

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The geometry of some of the clients."""
        rows = np.asarray(clients)
        about = self.about_reference
        return GramGeometry(
            self.gram[np.ix_(rows, rows)],
            tuple(self.ids[k] for k in rows) if self.ids else (),
            None if self.sizes is None else self.sizes[rows],
            self.has_reference,
            None if about is None else lambda: about()[np.ix_(rows, rows)],
            None if self.signs is None else lambda: self.sign_counts()[rows],
            None if self.root_products is None else self.root_products[[*rows, -1]],
        )

    def mixed(self, A: Float) -> GramGeometry:
        """The geometry of the mixtures `A X + (1 - A 1) reference`: `G' = A G A^T` about the reference."""
        sums = A.sum(axis=1)
        if np.allclose(sums, 1.0, rtol=0, atol=1e-12):
            gram, old = A @ self.gram @ A.T, self.about_reference
            about = None if old is None else lambda: A @ old() @ A.T
        else:  # a clipped mixture leans on the reference, so that its coordinates are needed about the reference
            gram, about = A @ self.gram_about_reference @ A.T, None
        ids = self.ids if len(A) == self.K else tuple(range(len(A)))
        root = self.root_products
        root = None if root is None else np.append(A @ root[:-1], root[-1])
        return GramGeometry(gram, ids, None, self.has_reference, about, None, root)


@dataclass(frozen=True)
class Mix:
    """What a rule decided: `value = reduce(matrix @ X + (1 - row sums) reference)`, and what it learned."""

    matrix: Float  # (m, K); m = 1 for a weighted mean
    honesty: Float | None = None  # (K,)
    status: Status = Status.CLOSED_FORM
    steps: int = 0
    diagnostics: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def reference_weight(self) -> float:
        """The share of the reference in a weighted mean: what the weights lack to 1 (rounding apart)."""
        share = 1.0 - float(self.matrix[0].sum())
        return 0.0 if abs(share) < 1e-9 else share

    @classmethod
    def of_weights(cls, weights: Float, **found: Any) -> Mix:
        """A weighted mean."""
        return cls(matrix=np.asarray(weights, dtype=np.float64)[None, :], **found)


class _Step:
    """What rules and mixers share: a name, what they need, and how many clients."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    #: the formula of `minimum`, for messages
    bound: ClassVar[str] = "1"
    #: False if the step asks for nothing but K, ids and sizes, so that no Gram pass is made for it
    gram_needed: ClassVar[bool] = True

    def minimum(self) -> int:
        """The fewest clients that the step can work with; the engine refuses a round with fewer usable ones."""
        return 1

    def check(self, K: int) -> None:
        """Raise ValueError, naming the bound, if the settings do not fit K clients."""
        require(self, K)

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The same step for the next round, given what this round found: itself, unless it remembers."""
        return self


def require(step: _Step, K: int) -> None:
    """Raise ValueError, naming the bound, if the step needs more than K clients."""
    minimum = step.minimum()
    if minimum > K:
        formula = "" if step.bound == str(minimum) else f"{step.bound} = "
        raise ValueError(f"{step} needs at least {formula}{minimum} clients, got {K}")


@dataclass(frozen=True, kw_only=True)
class Rule(_Step, ABC):
    """A rule: a frozen dataclass of its settings, validated when it is made.

    Class attributes say what it needs, for `hn.rules()` and for the engine:

    - ``name``: its snake_case name on the command line;
    - ``summary``: one line for people;
    - ``reference``: where it comes from;
    - ``needs``: any of "f" (the number of attackers must be told), "reference", "root", "memory", "randomness",
      "sizes", "signs", "trusted client";
    - ``gram_needed``: False if `mix` asks for nothing but K, ids and sizes;
    - ``streams``: it can work from `residuals` alone, so that K^2 d work is avoided for thousands of clients;
    - ``infers_honesty``: its result has ``honesty``;
    - ``root``: the trusted root update, for a rule that has one.
    """

    streams: ClassVar[bool] = False
    infers_honesty: ClassVar[bool] = False
    root: ClassVar[Any] = None

    @abstractmethod
    def mix(self, geometry: Geometry) -> Mix:
        """The mixing matrix for these clients."""


class ColumnRule(Rule):
    """A rule that reduces each coordinate by itself, from its sorted values (after mixing, if `mix` mixes)."""

    gram_needed: ClassVar[bool] = False
    #: True if `reduce` is the mean of the ranks it reads: they come in any order then, which costs less than sorting
    averages: ClassVar[bool] = False

    def mix(self, geometry: Geometry) -> Mix:
        """Coordinate-wise rules keep every client: the identity, never multiplied by the engine."""
        self.check(geometry.K)
        return Mix(np.eye(geometry.K))

    def ranks(self, m: int) -> tuple[int, int]:
        """(first, last) of the sorted rows that `reduce` reads, of m: what it does not read is not sorted out."""
        return 0, m

    @abstractmethod
    def reduce(self, ranked: Any, xp: Any) -> Any:
        """One value per coordinate from `ranked`, (last - first, b): row i holds rank first + i of each coordinate."""


@dataclass(frozen=True, kw_only=True)
class Mixer(_Step, ABC):
    """A pre-aggregation: replaces K updates by m mixtures, `X' = A X`, before the rule sees them."""

    @abstractmethod
    def mix(self, geometry: Geometry) -> Float:
        """(m, K) mixing matrix; what its rows lack to 1 is the reference's share."""
