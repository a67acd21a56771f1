"""Bayesian robust aggregation: which clients to believe, inferred from their mutual distances alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from honestly.result import ClientId, Float, Status
from honestly.rules._bayesian_paper import paper_mix
from honestly.rules._neighbourhoods import separated
from honestly.rules._posterior import TINY, Posterior, em, leave_one_out, smallest_of
from honestly.rules._streamed import Representatives, survey
from honestly.rules._votes import centred, copies, likeness, merging, shared_votes
from honestly.rules.base import Geometry, GramGeometry, Mix, Rule
from honestly.rules.memory import Memory
from honestly.rules.neighbours import majority
from honestly.rules.settings import choice

MEDIAN_STEPS, SETTLED = 10, 1e-7  # Weiszfeld steps to the centre about which votes are counted
ROUNDING = 1e-13  # of the squared norms: what rounding leaves of a squared distance of 0
STEPS, TOLERANCE = 100, 1e-7  # of the EM on a Gram matrix
PASSES, COARSE = 4, 1e-2  # of the EM where every step is a pass over the data

NOTHING_INFERRED = (Status.CLOSED_FORM, Status.MAJORITY_IDENTICAL)

Groups: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Bayesian(Rule):
    """The mean of the clients, each weighted by the probability that it is honest and by its share of a vote.

        weights      a_k ~ v_k pi_k                                         about  c = sum_k a_k w_k
        honesty      pi = argmax  sum_k pi_k l_k - KL(pi || eps)            subject to  sum_k pi_k >= h
        evidence     l_k = 4 ln(2 s^2 / r_k^2),   r_k = |w_k - c|,        s^2 = h-th smallest r_k^2
        votes        v_k = 1 / sum_j max(0, cos_kj)^4                       cos: of errors about the geometric median

    with h = floor(K/2) + 1, r_k taken to the mean of the others, and near-identical updates merged into one client
    beforehand; clients far nearer than plain liars are given some room. No parameter needs to be set; the unit, the
    origin and the axes do not matter. Fewer than half of the clients can neither be believed alone nor move the answer
    by more than a bounded number of honest spreads, however far away they are. Two clients are averaged: there is no
    majority among them.

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
        found = _streamed(geometry, prior) if geometry.streaming else _from_gram(_with_distances(geometry), prior)
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
    group: Groups | None  # None: no copies
    status: Status
    steps: int
    diagnostics: Mapping[str, Any]

    @property
    def seen(self) -> Float:
        """Probability from this round's evidence alone, at even odds: what a memory may keep."""
        evidence: Float = self.diagnostics["evidence"]
        return self.pi if self.status in NOTHING_INFERRED else 0.5 + 0.5 * np.tanh(0.5 * evidence)

    def mix(self, ids: Sequence[ClientId], remembered: Mapping[str, Any]) -> Mix:
        """The result for the engine."""
        honesty, groups = self.pi, ()
        if self.group is not None:
            size = np.bincount(self.group)
            members: list[list[int]] = [np.flatnonzero(self.group == g).tolist() for g in np.flatnonzero(size > 1)]
            groups = tuple(tuple(ids[k] for k in group) for group in members)
            honesty = self.pi if self.status is Status.MAJORITY_IDENTICAL else self.pi / size[self.group]
        return Mix.of_weights(
            self.weights,
            honesty=honesty,
            status=self.status,
            steps=self.steps,
            diagnostics={"groups": groups, **self.diagnostics, **remembered},
        )


def _with_distances(geometry: Geometry) -> GramGeometry:
    return geometry if isinstance(geometry, GramGeometry) else GramGeometry(geometry.gram)


def _from_gram(clients: GramGeometry, prior: Float | None) -> _Found:
    """Copies, geometric median, votes, EM."""
    group = copies(clients, ROUNDING)
    special = _without_inference(clients.K, group)
    if special is not None:
        return special
    if group is not None:
        A = merging(group)
        clients = GramGeometry(A @ clients.gram @ A.T)
        prior = None if prior is None else A @ prior
    h = majority(clients.K)
    median = geometric_median(clients, h)
    errors = centred(clients.gram, median)
    votes = shared_votes(likeness(errors))
    r2 = leave_one_out(np.maximum(errors.diagonal(), 0.0), median)
    start, apart = separated(clients, errors, h, median, smallest_of(r2, h))
    if apart is not None:
        prior = apart if prior is None else apart + prior
    first = r2 if start is median else None
    found = em(clients, start, votes, prior=prior, h=h, steps=STEPS, tolerance=TOLERANCE, roomy=True, r2=first)
    share = 1.0 if group is None else np.bincount(group)[group].astype(np.float64)
    return _all_clients(found, votes, group, share)


def _streamed(geometry: Geometry, prior: Float | None) -> _Found:
    """The same from a few passes: centres and votes from a sample of the clients, the EM on residuals of all."""

    def centres(few: GramGeometry) -> tuple[Float, Float, Float | None]:
        h = majority(few.K)
        median = geometric_median(few, h)
        errors = centred(few.gram, median)
        radius = smallest_of(leave_one_out(np.maximum(errors.diagonal(), 0.0), median), h)
        return median, *separated(few, errors, h, median, radius)

    seen = survey(geometry, centres)
    special = _without_inference(geometry.K, seen.group)
    if special is not None:
        return special
    voters = Representatives(geometry, seen.first)
    start: Float = np.bincount(seen.group, weights=seen.start).astype(np.float64)
    prior = seen.apart if prior is None else seen.apart + prior[seen.first]
    r2, h = leave_one_out(seen.r2[seen.first], start), majority(voters.K)
    found = em(voters, start, seen.votes, prior=prior, h=h, steps=PASSES, tolerance=COARSE, roomy=True, r2=r2)
    # copies are equal to rounding, so that the first of each group may carry the weight of all
    only_first = np.full(geometry.K, np.inf)
    only_first[seen.first] = 1.0
    return _all_clients(found, seen.votes, seen.group, only_first)


def _without_inference(K: int, group: Groups | None) -> _Found | None:
    """One or two clients, or a majority that sent the same: nothing is left to infer."""
    if K <= 2:
        nothing = {"evidence": np.zeros(K), "votes": np.ones(K), "spread": 0.0, "eps": 0.0}
        return _Found(np.full(K, 1.0 / K), np.ones(K), None, Status.CLOSED_FORM, 0, nothing)
    size = None if group is None else np.bincount(group)
    if group is None or size is None or size.max() < majority(K):
        return None
    same = (group == np.argmax(size)).astype(np.float64)
    nothing = {"evidence": np.zeros(K), "votes": 1.0 / size[group], "spread": 0.0, "eps": 0.0}
    return _Found(same / same.sum(), same, group, Status.MAJORITY_IDENTICAL, 0, nothing)


def _all_clients(found: Posterior, votes: Float, group: Groups | None, share: Float | float) -> _Found:
    """From voters to clients: copies have their group's probability and `1 / share` of its weight."""
    weights, pi, evidence = found.weights, found.pi, found.evidence
    eps = 1.0 - float(pi.sum()) / len(pi)
    if group is not None:
        weights, pi, evidence = weights[group] / share, pi[group], evidence[group]
        votes = votes[group] / np.bincount(group)[group]
    status = Status.CONVERGED if found.converged else Status.STEP_LIMIT
    return _Found(
        weights,
        pi,
        group,
        Status.MAJORITY_BOUND if found.bound else status,
        found.steps,
        {"evidence": evidence, "votes": votes, "spread": math.sqrt(found.radius), "eps": eps},
    )


def geometric_median(clients: GramGeometry, h: int) -> Float:
    """Weights of (nearly) the geometric median: no vote can move it far, and it has no second minimum to be lured to.

    Weiszfeld from weights `(R_min / R_k)^2`, R_k the squared radius of the ball around k that holds h clients: far
    clients are out of the way at once. It ends early where nothing moves any more. (NumPy calls are what it costs: all
    of them work in place.)
    """
    R = np.maximum(clients.ranked[:, h - 1], TINY)
    closest = float(R.min())
    a = closest / R
    a *= a
    a /= a.sum()
    minus_twice, norms = -2.0 * clients.gram, clients.gram.diagonal().copy()
    floor = np.full_like(a, max(1e-11 * closest, TINY))  # an iterate may come to lie on a client
    least, one = np.full_like(a, 0.1), np.ones_like(a)
    r, others = np.empty_like(a), np.empty_like(a)
    for _ in range(MEDIAN_STEPS):
        minus_twice.dot(a, r)
        middle = -0.5 * float(a.dot(r))
        r += norms
        r += middle
        np.sqrt(np.maximum(r, floor, out=r), out=r)
        np.subtract(one, a, out=others)  # as in `leave_one_out`
        np.maximum(others, least, out=others)
        np.divide(others, r, out=r)
        r /= r.dot(one)
        np.subtract(r, a, out=others)
        a, r = r, a
        if others.dot(others) <= SETTLED**2:
            break
    return a
