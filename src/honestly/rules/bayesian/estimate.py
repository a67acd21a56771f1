"""The estimator in order: views, judgement, average, guard. Gram matrices in, weights and reasons out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.result import Float, Status
from honestly.rules.bayesian.average import among, copies, shared_votes, shorten_errors
from honestly.rules.bayesian.centre import survey
from honestly.rules.bayesian.guard import guard
from honestly.rules.bayesian.likeness import Judgement, judge
from honestly.rules.bayesian.sizes import ClientSizes, votes_by_size
from honestly.rules.bayesian.views import TINY, distances, effective_dimension, kth

NO_UNIT = 1e-12  # of a majority's squared norms: where a majority is nearer than that, a layer has no unit


@dataclass(frozen=True)
class Reasons:
    """Why n clients are accused.

    Attributes:
        group: (n, n) bool, row k: the clients that err alike with k in the view with the most evidence against it.
        opposed: (n,) bool: it is opposition that tells against k there.
        absurd: (n,) bool: k is so far away that nothing else is needed.
        rounds: how often somebody was convicted or acquitted.
    """

    group: npt.NDArray[np.bool_]
    opposed: npt.NDArray[np.bool_]
    absurd: npt.NDArray[np.bool_]
    rounds: int


@dataclass(frozen=True)
class Estimate:
    """What was found about n clients in L layers.

    Attributes:
        weights: (L, n) rows that sum to 1.
        accused: (n,) bool.
        against: (n,) nats for a lie.
        evidence: (n, L) the same by layer; NaN in layers by which nobody is judged.
        kept: (n, L) by which factor an error was shortened; 1 is not at all, 0 that a majority sent the same and this
            client did not.
        distance: (n, L) distance to the centre in units of the majority's spread; 0 where there is no unit.
        votes: (n,) share of a vote.
        groups: clients that sent nearly the same, by position.
        spread: the majority's, over all layers.
        status: how it ended.
        reasons: why clients are accused; None if nobody was judged.
        pulled: in how many layers the guard changed the answer.
    """

    weights: Float
    accused: npt.NDArray[np.bool_]
    against: Float
    evidence: Float
    kept: Float
    distance: Float
    votes: Float
    groups: tuple[tuple[int, ...], ...]
    spread: float
    status: Status
    reasons: Reasons | None
    pulled: int


def estimate(
    layers: Float,
    judged: npt.NDArray[np.bool_],
    *,
    tolerated: int,
    prior: Float | None = None,
    reference: Float | None = None,
    size: ClientSizes | None = None,
) -> Estimate:
    """Whom to believe and how far, in every layer.

    Args:
        layers: (L, n, n) Gram matrices.
        judged: (L,) False for layers that follow (buffers): averaged and guarded, but nobody is judged by them.
        tolerated: how many clients may lie, f.
        prior: (n,) log-odds of honesty from earlier rounds.
        reference: (L, n, n) Gram matrices about the previous model, where opposition has a meaning: `layers`, if they
            are about it, or others, whose distances may be less precise.
        size: what is used of the clients' sizes; None: all the same.
    """
    G = np.ascontiguousarray(layers, dtype=np.float64)
    L, n, _ = G.shape
    h = n - tolerated
    D = distances(G)
    radius = kth(D, h)
    weights, unit = without_unit(G, D, radius, h)
    known, follows = np.flatnonzero(unit & judged), np.flatnonzero(unit & ~judged)
    nothing = np.full((n, L), np.nan)
    if tolerated == 0:
        weights = np.full((L, n), 1.0 / n) if size is None else np.tile(size.vote / size.vote.sum(), (L, 1))
        return undecided_estimate(weights, Status.CLOSED_FORM)
    if not len(known) and not len(follows):
        return undecided_estimate(weights, Status.MAJORITY_IDENTICAL)
    measured = np.concatenate([known, follows])
    all_of_them = len(measured) == L and not len(follows)
    views, d = survey(G, h, D, radius) if all_of_them else survey(G[measured], h, D[measured], radius[measured])
    J = len(known)
    about = None if reference is None or reference is layers else reference[known]
    if J > 1:  # all layers together: a Gaussian with d directions of variance s^2 / d in each
        shares = d[:J] / views.s2[:J]
        if about is not None:
            about = np.concatenate([np.tensordot(shares, about, 1)[None], about])
        views = survey(np.tensordot(shares, views.gram[:J], 1)[None], h)[0] + views
        J += 1
    about = views.gram[:J] if reference is layers else about
    verdict = judge(views[:J], h, prior, about, size) if J else None
    free = np.ones(n) if verdict is None else (~verdict.accused).astype(np.float64)
    factor, far = (weights > 0.0).T.astype(np.float64), np.zeros((n, L))  # so far, of the layers without a unit
    if not free.all():
        weights[~unit] = among(weights[~unit], free)
    if verdict is None:
        d, votes, rest, first = np.empty(0), np.ones(n), views, views.centre
    else:
        d, rest, first = verdict.dimension, views[J:], np.concatenate([verdict.first, views.centre[J:]])
        share = np.full(J, 1.0 / max(J - 1, 1))
        share[0] = 1.0
        votes = shared_votes(np.tensordot(share / verdict.views.s2, verdict.views.errors, 1))
        views = verdict.views + rest
    d = np.concatenate([d, effective_dimension(rest.errors)]) if len(rest.s2) else d
    centre, factors = shorten_errors(views.gram, among(first, free), votes_by_size(votes * free, size), h, d, size)
    skip = len(views.s2) - len(measured)
    weights[measured] = centre[skip:]
    weights, pulled = guard(G, weights, tolerated)
    factor[:, measured] = factors[skip:].T
    far[:, measured] = np.sqrt(views.r2[skip:] / views.s2[skip:, None]).T
    if verdict is None:
        status = Status.MAJORITY_IDENTICAL
    else:
        nothing[:, known] = verdict.evidence[skip:].T
        settled = Status.CONVERGED if verdict.settled else Status.STEP_LIMIT
        status = Status.MAJORITY_BOUND if verdict.contradiction else settled
    spread = float(np.sqrt(views.s2[skip:][: len(known)].sum()))
    return Estimate(
        weights,
        np.zeros(n, bool) if verdict is None else verdict.accused,
        np.full(n, -np.inf) if verdict is None else verdict.against,
        nothing,
        factor,
        far,
        votes,
        copies(distances(views.gram[:1])[0], float(views.s2[0])) if J else (),
        spread,
        status,
        None if verdict is None else reasons_of(verdict),
        pulled,
    )


def reasons_of(verdict: Judgement) -> Reasons:
    """What a judgement gives as reasons."""
    return Reasons(verdict.group, verdict.opposed, verdict.absurd, verdict.rounds)


def without_unit(G: Float, D: Float, radius: Float, h: int) -> tuple[Float, npt.NDArray[np.bool_]]:
    """(L, n) weights of the clients that agree where a majority does, and (L,) whether there is a spread to measure."""
    noise = NO_UNIT * np.maximum(kth(G.diagonal(0, 1, 2), h), TINY)
    unit = radius.min(1) > noise
    weights = np.zeros(G.shape[:2])
    for layer in np.flatnonzero(~unit):
        same = D[layer, radius[layer].argmin()] <= max(float(radius[layer].min()), float(noise[layer]))
        weights[layer] = same / same.sum()
    return weights, unit


def undecided_estimate(weights: Float, status: Status) -> Estimate:
    """Nothing to infer: two clients at most, nobody may lie, or a majority sent the same, and only it has a weight."""
    L, n = weights.shape
    identical = status is Status.MAJORITY_IDENTICAL
    return Estimate(
        weights,
        np.zeros(n, bool),
        np.full(n, -np.inf),
        np.full((n, L), np.nan),
        (weights > 0.0).T.astype(np.float64) if identical else np.ones((n, L)),
        np.zeros((n, L)),
        np.ones(n),
        (),
        0.0,
        status,
        None,
        0,
    )
