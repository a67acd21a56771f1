"""Bayesian robust aggregation: which clients to believe, inferred from their mutual distances alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from honestly.result import Float, Status
from honestly.rules._bayesian_paper import paper_mix
from honestly.rules.base import Geometry, GramGeometry, Mix, Rule, squared_distances


@dataclass(frozen=True, kw_only=True)
class Bayesian(Rule):
    """The mean of the clients, each weighted by the posterior probability that it is honest.

    Arguments:
        variant: "robust" (the default), or "paper": the published rule, Eq. 11-16 and Algorithm 1.
        scale_free: only for the paper's rule: leave out `ln sigma^2`, so that the unit of the updates does not matter.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.base import GramGeometry
        >>> X = np.random.default_rng(0).normal(size=(12, 1000))
        >>> X[9:] += 10.0
        >>> Bayesian().mix(GramGeometry(X @ X.T)).honesty.round(2)
        array([1., 1., 1., 1., 1., 1., 1., 1., 1., 0., 0., 0.])

    Reference: Karakulev et al., Bayesian robust aggregation for federated learning.
    """

    variant: Literal["robust", "paper"] = "robust"
    scale_free: bool = True

    name: ClassVar[str] = "bayesian"
    summary: ClassVar[str] = "mean weighted by each client's inferred probability of being honest; nothing to tune"
    reference: ClassVar[str] = "Karakulev et al. 2025, hardened: docs/bayesian.md"
    infers_honesty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.variant not in ("robust", "paper"):
            raise ValueError(f'variant={self.variant!r} is unknown: use "robust" (the default) or "paper"')

    def mix(self, geometry: Geometry) -> Mix:
        """Weights proportional to honesty."""
        if self.variant == "paper":
            return paper_mix(geometry, scale_free=self.scale_free)
        return robust_mix(geometry)


def robust_mix(geometry: Geometry) -> Mix:
    """The hardened rule: votes, majority anchor, neighbourhood evidence, constrained EM."""
    K = geometry.K
    A = merge_copies(squared_distances(geometry.gram))
    votes = GramGeometry(geometry.gram).mixed(A)
    n = len(A)
    h = n // 2 + 1
    D = squared_distances(votes.gram)
    radius = np.partition(D, h - 1, axis=1)[:, h - 1]
    start = _mean_of(np.argpartition(D[np.argmin(radius)], h - 1)[:h], n)
    s0 = np.partition(votes.residuals(start), h - 1)[h - 1]
    if s0 <= 0.0 or n == 1:
        pi = (votes.residuals(start) <= 0.0).astype(float)
        return _result(A, pi, K, Status.MAJORITY_IDENTICAL, 0, geometry)
    # neighbourhood evidence
    N = np.stack([_mean_of(np.argpartition(row, h - 1)[:h], n) for row in D])
    near = votes.mixed(N)
    Dn = squared_distances(near.gram)
    radius = np.partition(Dn, h - 1, axis=1)[:, h - 1]
    start_n = _mean_of(np.argpartition(Dn[np.argmin(radius)], h - 1)[:h], n)
    floor = s0 * (1 / h - 1 / n + 1 / h**2)
    s0_n = max(float(np.partition(near.residuals(start_n), h - 1)[h - 1]), floor)
    q, _, steps_n, _ = _em(near, start_n, s0_n, np.zeros(n), floor)
    prior = np.log(np.maximum(q, 1.0 / n**2))
    a = (q / q.sum()) @ N
    s0 = np.partition(votes.residuals(a), h - 1)[h - 1]
    pi, s2, steps, bound = _em(votes, a, s0, prior, 0.0)
    status = Status.MAJORITY_BOUND if bound else Status.CONVERGED
    return _result(A, pi, K, status, steps + steps_n, geometry, s2)


def _result(A: Float, pi: Float, K: int, status: Status, steps: int, geometry: Geometry, s2: float = 0.0) -> Mix:
    weights = (pi / pi.sum()) @ A
    member = A > 0
    honesty = pi @ member
    ids = tuple(geometry.ids) or tuple(range(K))
    groups = tuple(tuple(ids[j] for j in np.flatnonzero(row)) for row in member if row.sum() > 1)
    return Mix.of_weights(
        weights,
        honesty=honesty,
        status=status,
        steps=steps,
        diagnostics={"groups": groups, "spread": float(np.sqrt(s2)), "votes": A.max(axis=0)},
    )


def merge_copies(D: Float, tau: float = 0.1) -> Float:
    """(K', K) matrix whose rows average clients that are linked by distances below tau x the median nearest one."""
    K = len(D)
    if K < 3:
        return np.eye(K)
    off = np.sqrt(D) + np.diag(np.full(K, np.inf))
    linked = off < tau * np.median(off.min(axis=1))
    linked |= np.eye(K, dtype=bool) | (off <= 0)
    for _ in range(int(np.ceil(np.log2(K)))):
        linked = linked @ linked
    first = np.argmax(linked, axis=1)
    rows = linked[np.unique(first)].astype(float)
    return rows / rows.sum(axis=1, keepdims=True)


def _mean_of(index: np.ndarray, n: int) -> Float:
    a = np.zeros(n)
    a[index] = 1.0 / len(index)
    return a


def _em(g: GramGeometry, a: Float, s0: float, prior: Float, floor: float) -> tuple[Float, float, int, bool]:
    n = g.K
    pi = np.zeros(n)
    s2, bound = s0, False
    for step in range(1, 101):
        r2 = np.maximum(g.residuals(a), floor)
        if step > 1:
            s2 = float(pi @ r2 / pi.sum())
        l = np.log(n) - r2 / s2 - np.log(s2 / s0) + prior
        new, bound = e_step(l, n // 2 + 1)
        change = np.abs(new - pi).max()
        pi = new
        a = pi / pi.sum()
        if change < 1e-7:
            break
    return pi, s2, step, bound


def e_step(l: Float, h: int) -> tuple[Float, bool]:
    """pi that maximises `sum pi l - KL(pi || eps)` over pi and eps, subject to `sum pi >= h`."""
    n = len(l)
    l = np.clip(l, -700.0, 700.0)
    if np.mean(np.exp(-l)) <= 1.0:
        return np.ones(n), False
    p = np.exp(l)
    low, high = 0.0, 1.0 - h / n
    if high > 0 and np.mean((1 - p) / ((1 - high) * p + high)) <= 0:
        for _ in range(60):
            eps = 0.5 * (low + high)
            if np.mean((1 - p) / ((1 - eps) * p + eps)) > 0:
                low = eps
            else:
                high = eps
        eps = 0.5 * (low + high)
        return (1 - eps) * p / ((1 - eps) * p + eps), False
    low, high = -800.0, 800.0
    for _ in range(60):
        t = 0.5 * (low + high)
        if np.sum(1 / (1 + np.exp(np.clip(-l - t, -700, 700)))) < h:
            low = t
        else:
            high = t
    return 1 / (1 + np.exp(np.clip(-l - t, -700, 700))), True
