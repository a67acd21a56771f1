"""The lightest subset of a weighted complete graph, exactly, by branch and bound on arrays of partial subsets.

`SubsetRule` is the base of the rules that average such a subset.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from honestly.result import Float, Status
from honestly.rules._lib.minority import Minority
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import integer

Indices = npt.NDArray[np.intp]

# Partial subsets that are expanded together: enough for NumPy to be efficient, few enough to dive for good subsets.
_CHUNK = 2048


@dataclass(frozen=True)
class Subset:
    """`members`, sorted; the sum of W over their pairs; whether it was proved the smallest; partial subsets looked
    at; elementary operations spent."""

    members: Indices
    weight: float
    exact: bool
    nodes: int
    work: int


def concentrate(D: Float, m: int, steps: int = 20) -> Indices:
    """A good m-subset: from each client's m nearest, repeat "the m nearest to their mean"; the tightest of all ends."""
    K = len(D)
    inside = np.zeros((K, K))
    np.put_along_axis(inside, np.argsort(D, axis=1, kind="stable")[:, :m], 1.0, axis=1)
    for _ in range(steps):
        # |w_k - mean(S)|^2 is (D 1_S)_k / m up to a constant of S
        new = np.zeros_like(inside)
        np.put_along_axis(new, np.argsort(inside @ D, axis=1, kind="stable")[:, :m], 1.0, axis=1)
        if np.array_equal(new, inside):
            break
        inside = new
    weights = ((inside @ D) * inside).sum(axis=1)
    return np.flatnonzero(inside[int(np.argmin(weights))])


def lightest_subset(W: Float, m: int, work: int, start: Indices | None = None, ceiling: float = np.inf) -> Subset:
    """m indices with the smallest `sum of W_ij over pairs i < j`, for symmetric W >= 0 with a zero diagonal.

    A partial subset S that still needs t of the clients R left over weighs at least

        W(S) + sum of the t smallest over r in R of  W(r, S) + 1/2 (sum of the t - 1 smallest W(r, r'), r' in R)

    Only subsets below `ceiling` are looked for; if there is none, the weight found is not below it. Gives up (`exact`
    is False) after `work` elementary operations, about 5e-8 s each, and then returns the best subset found.
    """
    K = len(W)
    first = concentrate(W, m) if start is None else start
    best, members = _weight(W, first), np.sort(first)
    if best == 0.0 or m == K:
        return Subset(members, best, True, 1, 0)
    best = min(best, ceiling)
    # Members first, then the others by their distance: the first dive repeats the good subset, the others prune early.
    distance = W[:, first].sum(axis=1)
    rank = np.lexsort((distance, ~np.isin(np.arange(K), first)))
    V = W[np.ix_(rank, rank)]
    halves: dict[int, Float] = {}

    # A node: which of the first `level` clients are in, how many, W(S), and W(r, S) for every r.
    stack = [(0, np.zeros((1, K), dtype=bool), np.zeros(1, dtype=np.intp), np.zeros(1), np.zeros((1, K)))]
    nodes = spent = 0
    while stack:
        level, chosen, size, weight, cross = stack.pop()
        alive = weight < best
        if not alive.all():
            chosen, size, weight, cross = chosen[alive], size[alive], weight[alive], cross[alive]
        if not len(size):
            continue
        nodes += len(size)
        spent += len(size) * K
        if level + 1 not in halves:
            halves[level + 1] = _half_sums(V[level + 1 :, level + 1 :])
            spent += 4 * (K - level) ** 2
        if spent > work:
            return Subset(members, best, False, nodes, spent)
        joined = chosen.copy()
        joined[:, level] = True
        chosen = np.concatenate([joined, chosen])
        weight = np.concatenate([weight + cross[:, level], weight])
        cross = np.concatenate([cross + V[level], cross])
        size = np.concatenate([size + 1, size])
        level += 1
        bound = _bounds(m - size, weight, cross[:, level:], halves[level])
        complete = (size == m) & (bound < best)
        if complete.any():
            i = int(np.argmin(np.where(complete, weight, np.inf)))
            best, members = float(weight[i]), np.sort(rank[chosen[i]])
            if best == 0.0:
                return Subset(members, best, True, nodes, spent)
        keep = np.flatnonzero((size < m) & (bound < best))
        keep = keep[np.argsort(-bound[keep], kind="stable")]  # the most promising chunk ends on top of the stack
        for i in range(0, len(keep), _CHUNK):
            part = keep[i : i + _CHUNK]
            stack.append((level, chosen[part], size[part], weight[part], cross[part]))
    return Subset(members, best, True, nodes, spent)


def _weight(W: Float, members: Indices) -> float:
    return 0.5 * float(W[np.ix_(members, members)].sum())


def _half_sums(W: Float) -> Float:
    """H[t, r]: half the sum of the t - 1 smallest weights between r and the other clients left."""
    n = len(W)
    others = W.copy()
    np.fill_diagonal(others, np.inf)
    ranked = np.sort(others, axis=1)[:, : max(n - 1, 0)]
    sums = np.zeros((n + 1, n))
    if n > 1:
        sums[2:] = 0.5 * np.cumsum(ranked, axis=1).T
    return sums


def _bounds(need: npt.NDArray[np.intp], weight: Float, cross: Float, halves: Float) -> Float:
    """The lower bound of each node; inf where too few clients are left."""
    bound = np.full(len(need), np.inf)
    left = cross.shape[1]
    bound[need == 0] = weight[need == 0]
    for t in range(max(1, int(need.min(initial=0))), min(left, int(need.max(initial=0))) + 1):
        rows = np.flatnonzero(need == t)
        if len(rows):
            costs = cross[rows] + halves[t]
            if t < left:
                costs = np.partition(costs, t - 1, axis=1)[:, :t]
            bound[rows] = weight[rows] + costs.sum(axis=1)
    return bound


@dataclass(frozen=True, kw_only=True)
class SubsetRule(Minority, Rule):
    """The mean of the K - f clients that are best by some measure, found by a search of limited length."""

    work: int

    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(self, "work", self.work, least=1)

    @abstractmethod
    def search(self, gram: Float, m: int) -> tuple[Subset, dict[str, float]]:
        """The best m clients, and their measure by its name."""

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the subset."""
        self.check(geometry.K)
        m = geometry.K - self.f
        subset, measure = self.search(geometry.gram, m)
        weights = np.zeros(geometry.K)
        weights[subset.members] = 1.0 / m
        return Mix.of_weights(
            weights,
            status=Status.CONVERGED if subset.exact else Status.STEP_LIMIT,
            steps=subset.nodes,
            diagnostics={**measure, "exact": subset.exact, "selected": subset.members},
        )
