"""Bayesian robust aggregation: which clients to believe, inferred from their mutual distances alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from honestly.result import ClientId, Float, Status
from honestly.rules._bayesian_paper import paper_mix
from honestly.rules._neighbourhoods import separated
from honestly.rules._posterior import Posterior, em, leave_one_out
from honestly.rules._streamed import Representatives, survey
from honestly.rules._votes import copies, cosines_about, merging, shared_votes
from honestly.rules.base import Geometry, GramGeometry, Mix, Rule, squared_distances
from honestly.rules.memory import Memory
from honestly.rules.neighbours import majority
from honestly.rules.settings import choice

MEDIAN_STEPS = 10  # Weiszfeld steps to the centre about which votes are counted
STEPS, TOLERANCE = 100, 1e-7  # of the EM on a Gram matrix
PASSES, COARSE = 4, 1e-2  # of the EM where every step is a pass over the data


@dataclass(frozen=True, kw_only=True)
class Bayesian(Rule):
    """The mean of the clients, each weighted by the probability that it is honest and by its share of a vote.

        weights      a_k ~ v_k pi_k                                         about  c = sum_k a_k w_k
        honesty      pi = argmax  sum_k pi_k l_k - KL(pi || eps)            subject to  sum_k pi_k >= h
        evidence     l_k = 4 ln(2 s^2 / r_k^2),   r_k = |w_k - c|,        s^2 = h-th smallest r_k^2
        votes        v_k = 1 / sum_j max(0, cos_kj)^4                       cos: of errors about the geometric median

    with h = floor(K/2) + 1, r_k taken to the mean of the others, and near-identical updates merged into one client
    beforehand. No parameter needs to be set; the unit, the origin and the axes do not matter. Fewer than half of the
    clients can neither be believed alone nor move the answer by more than a bounded number of honest spreads, however
    far away they are. Two clients are averaged: there is no majority among them.

    Of m copies at most one is an opinion of its own, so that each is reported with 1/m of the group's probability.
    ``diagnostics`` has "groups" (copies, by id), "evidence" (log-odds l), "votes" (v), "spread" (s) and "eps".

    Arguments:
        variant: "robust", or "paper": the published rule, Eq. 11-16 and Algorithm 1, kept for comparison.
        scale_free: only for the paper's rule: leave out `ln sigma^2`, so that the unit of the updates does not matter.
        memory: what earlier rounds left; `rule.after(out.diagnostics)` carries it on. None: every round by itself.

    Example:
        >>> from honestly.rules.base import GramGeometry
        >>> X = np.random.default_rng(0).normal(size=(9, 1000))
        >>> X[6] += 10.0
        >>> X[7] = X[8]
        >>> mix = Bayesian().mix(GramGeometry(X @ X.T))
        >>> mix.honesty.round(1)
        array([1. , 1. , 1. , 1. , 1. , 1. , 0. , 0.5, 0.5])
        >>> mix.diagnostics["groups"]
        ((7, 8),)

    Reference: Karakulev et al., Bayesian robust aggregation for federated learning, 2025; hardened as in
    docs/explanation/bayesian.md.
    """

    variant: Literal["robust", "paper"] = "robust"
    scale_free: bool = True
    memory: Memory | None = None

    name: ClassVar[str] = "bayesian"
    summary: ClassVar[str] = "mean weighted by each client's inferred probability of being honest; nothing to tune"
    reference: ClassVar[str] = "Karakulev et al. 2025, hardened (docs/explanation/bayesian.md)"
    streams: ClassVar[bool] = True
    infers_honesty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        choice(self, "variant", self.variant, ("robust", "paper"))
        if self.scale_free not in (True, False):
            raise ValueError(f"Bayesian: scale_free must be True or False, got {self.scale_free!r}")
        if self.memory is not None and self.variant == "paper":
            raise ValueError('Bayesian: memory must be None for variant="paper", got a Memory')

    def mix(self, geometry: Geometry) -> Mix:
        """Weights `v_k pi_k`, and what was inferred."""
        if self.variant == "paper":
            return paper_mix(geometry, scale_free=self.scale_free)
        ids = tuple(geometry.ids) or tuple(range(geometry.K))
        prior = None if self.memory is None else self.memory.prior(ids)
        found = _streamed(geometry, prior) if geometry.streaming else _from_gram(geometry.gram, prior)
        remembered = {} if self.memory is None else {"memory": self.memory.with_round(ids, found.seen)}
        return found.mix(ids, remembered)

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The same rule with the memory of this round."""
        return self if self.memory is None else replace(self, memory=diagnostics["memory"])


@dataclass(frozen=True)
class _Found:
    """What was inferred about each client, copies included."""

    weights: Float
    pi: Float
    seen: Float  # probability from this round's evidence alone, at even odds: what a memory may keep
    group: npt.NDArray[np.intp]
    status: Status
    steps: int
    diagnostics: Mapping[str, Any]

    def mix(self, ids: Sequence[ClientId], remembered: Mapping[str, Any]) -> Mix:
        """The result for the engine."""
        size = np.bincount(self.group)
        members: list[list[int]] = [np.flatnonzero(self.group == g).tolist() for g in np.flatnonzero(size > 1)]
        groups = tuple(tuple(ids[k] for k in group) for group in members)
        shared = 1.0 if self.status is Status.MAJORITY_IDENTICAL else size[self.group]
        return Mix.of_weights(
            self.weights,
            honesty=self.pi / shared,
            status=self.status,
            steps=self.steps,
            diagnostics={"groups": groups, **self.diagnostics, **remembered},
        )


def _from_gram(gram: Float, prior: Float | None) -> _Found:
    """Copies, geometric median, votes, EM."""
    K = len(gram)
    distances = squared_distances(gram)
    norms = np.diagonal(gram)
    group = copies(distances, 1e-13 * (norms[:, None] + norms[None, :]))
    special = _without_inference(K, group)
    if special is not None:
        return special
    prior = np.zeros(K) if prior is None else prior
    if group.max() + 1 < K:
        A = merging(group)
        gram, prior = A @ gram @ A.T, A @ prior
        distances = squared_distances(gram)
    h = majority(len(gram))
    median = geometric_median(gram, distances, h)
    votes = shared_votes(cosines_about(gram, median))
    start, apart = separated(gram, distances, h, median)
    found = em(GramGeometry(gram), start, votes, prior=prior + apart, h=h, steps=STEPS, tolerance=TOLERANCE)
    return _all_clients(found, votes, group, np.bincount(group)[group].astype(np.float64))


def _streamed(geometry: Geometry, prior: Float | None) -> _Found:
    """The same from a few passes: centres and votes from a sample of the clients, the EM on residuals of all."""

    def centres(G: Float) -> tuple[Float, Float, Float]:
        D, h = squared_distances(G), majority(len(G))
        median = geometric_median(G, D, h)
        return median, *separated(G, D, h, median)

    seen = survey(geometry, centres)
    special = _without_inference(geometry.K, seen.group)
    if special is not None:
        return special
    voters = Representatives(geometry, seen.first)
    start: Float = np.bincount(seen.group, weights=seen.start).astype(np.float64)
    prior = seen.apart if prior is None else seen.apart + prior[seen.first]
    found = em(voters, start, seen.votes, prior=prior, h=majority(voters.K), steps=PASSES, tolerance=COARSE)
    # copies are equal to rounding, so that the first of each group may carry the weight of all
    only_first = np.full(geometry.K, np.inf)
    only_first[seen.first] = 1.0
    return _all_clients(found, seen.votes, seen.group, only_first)


def _without_inference(K: int, group: npt.NDArray[np.intp]) -> _Found | None:
    """One or two clients, or a majority that sent the same: nothing is left to infer."""
    size = np.bincount(group)
    nothing = {"evidence": np.zeros(K), "votes": 1.0 / size[group], "spread": 0.0, "eps": 0.0}
    if K <= 2:
        return _Found(np.full(K, 1.0 / K), np.ones(K), np.ones(K), np.arange(K), Status.CLOSED_FORM, 0, nothing)
    if size.max() >= majority(K):
        same = (group == np.argmax(size)).astype(np.float64)
        return _Found(same / same.sum(), same, same, group, Status.MAJORITY_IDENTICAL, 0, nothing)
    return None


def _all_clients(found: Posterior, votes: Float, group: npt.NDArray[np.intp], share: Float) -> _Found:
    """From voters to clients: copies have their group's probability and `1 / share` of its weight."""
    status = Status.CONVERGED if found.converged else Status.STEP_LIMIT
    diagnostics = {
        "evidence": found.evidence[group],
        "votes": votes[group] / np.bincount(group)[group],
        "spread": float(np.sqrt(found.radius)),
        "eps": 1.0 - float(found.pi.mean()),
    }
    return _Found(
        found.weights[group] / share,
        found.pi[group],
        0.5 + 0.5 * np.tanh(0.5 * found.evidence[group]),
        group,
        Status.MAJORITY_BOUND if found.bound else status,
        found.steps,
        diagnostics,
    )


def geometric_median(G: Float, D: Float, h: int) -> Float:
    """Weights of (nearly) the geometric median: no vote can move it far, and it has no second minimum to be lured to.

    Weiszfeld from weights `(R_min / R_k)^2`, R_k the squared radius of the ball around k that holds h clients: far
    clients are out of the way at once.
    """
    R = np.maximum(np.partition(D, h - 1, axis=1)[:, h - 1], np.finfo(float).tiny)
    a = (R.min() / R) ** 2
    a /= a.sum()
    norms = np.diagonal(G)
    for _ in range(MEDIAN_STEPS):
        g = G @ a
        r2 = leave_one_out(np.maximum(norms - 2.0 * g + a @ g, 0.0), a)
        b = 1.0 / np.sqrt(np.maximum(r2 + 1e-9 * np.partition(r2, h - 1)[h - 1], np.finfo(float).tiny))
        a = b / b.sum()
    return a
