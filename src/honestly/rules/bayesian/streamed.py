"""The estimator for thousands of clients: a sample is judged exactly, all others by it, in one pass over the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from honestly.result import Float, Status
from honestly.rules._lib.neighbours import every_nth
from honestly.rules.bayesian.average import CHANCE
from honestly.rules.bayesian.centre import survey
from honestly.rules.bayesian.compiled import estimator_for
from honestly.rules.bayesian.estimate import Estimate
from honestly.rules.bayesian.likeness import ABSURD, COMMON, LONGER, NEAR, SEARCH, TIGHT
from honestly.rules.bayesian.sizes import ClientSizes, in_own_unit, votes_by_size
from honestly.rules.bayesian.views import TINY, kth
from honestly.rules.geometry import Geometry

SAMPLE = 256  # clients whose Gram matrices are formed
ANCHORS = 15  # clients to which every client's distance is measured: who is as far from them all is a copy


def stream_estimate(
    geometry: Geometry, tolerated: Callable[[int], int], prior: Float | None, size: ClientSizes | None = None
) -> Estimate:
    """The same estimate, with one row of weights for all layers and without the guard.

    A pass gives every client's distances to a few anchors, and with them a sample in which liars have the share that
    they have among all. The sample gives a centre, effective dimensions and the directions of those who err alike.
    Another pass gives every client's distance, by layer, to the centre and to the mean of the sample's accused. Who
    errs in their direction is accused, too. What a client adds is shortened by its worst layer, so no layer can be
    moved without bound. The anchors are drawn with a seed that depends on K alone: same input, same answer.
    """
    K, h = geometry.K, geometry.K - tolerated(geometry.K)
    judged = geometry.judged if geometry.judged.any() else ~geometry.judged
    anchors = np.random.default_rng(K).choice(K, size=min(ANCHORS, K), replace=False)
    rows = np.zeros((len(anchors), K))
    rows[np.arange(len(anchors)), anchors] = 1.0
    to_anchors = geometry.layer_residuals(rows)  # (anchors, L, K)
    sample = cross_section(to_anchors, h, min(SAMPLE, K))
    few = geometry.subset(sample.tolist())
    some = None if size is None else size.of(sample)
    part = estimator_for(few)(few.layers, few.judged, tolerated=tolerated(few.K), size=some)
    rows = np.zeros((2, K))
    rows[0, sample] = common_weights(part.weights)
    rows[1, sample] = part.accused / part.accused.sum() if part.accused.any() else rows[0, sample]
    distances = geometry.layer_residuals(rows)  # (2, L, K)
    r2 = distances[0]
    s2 = np.maximum(kth(r2, h), TINY)
    unit = s2 > TINY  # in other layers a majority sent the same: nobody is judged by them
    d = survey(few.layers, few.K - tolerated(few.K))[1]
    evidence = np.full((K, len(s2)), np.nan)
    cost = SEARCH * math.log(few.K)
    t = in_own_unit(r2 / np.where(unit, s2, np.inf)[:, None], None if size is None else size.vote)
    scores = np.full(t.shape, -cost)
    if part.accused.any():
        members = sample[part.accused]
        x = _likeness(distances[0], distances[1], members)
        far = t > np.maximum(NEAR[0] + NEAR[1] / np.sqrt(d)[:, None], 1.0)
        far &= LONGER * r2 >= np.median(r2[:, members], axis=1)[:, None]
        nats = 0.5 * len(members) * d[:, None] * np.square(np.maximum(x - COMMON, 0.0)) - cost
        scores = np.where(far & (d >= TIGHT)[:, None], nats, -cost)
    scores = np.where(t > ABSURD, np.log(np.maximum(t, 1.0)), scores)
    evidence[:, judged & unit] = scores[judged & unit].T
    against = scores[judged].max(axis=0)
    accused = against - (0.0 if prior is None else prior) > 0.0
    contradiction = int(accused.sum()) > K - h
    if contradiction:  # more look guilty than may lie, a contradiction: nobody can be accused
        accused, against = np.zeros(K, bool), np.minimum(against, 0.0)
    longest = s2 * (1.0 + 2.0 * np.sqrt(CHANCE / d) + 2.0 * CHANCE / d)
    own = in_own_unit(np.maximum(r2, TINY), None if size is None else size.vote)
    factors = np.minimum(longest[:, None], own) / own
    apart = np.concatenate([distances[:1], to_anchors])[:, judged]
    whole = (apart / np.where(unit, s2, 1.0)[judged][:, None]).sum(axis=1)
    group = _equal(whole)
    votes = _votes(whole[0], whole[1:], anchors, group)
    weights = votes_by_size(votes * factors.min(axis=0) * ~accused, size)
    weights /= weights.sum()
    copies = [tuple(np.flatnonzero(group == g).tolist()) for g in np.flatnonzero(np.bincount(group) > 1)]
    return Estimate(
        np.tile(weights, (len(s2), 1)),
        accused,
        against,
        evidence,
        factors.T,
        np.sqrt(t).T,
        votes,
        tuple(copies),
        float(np.sqrt(s2[judged].sum())),
        Status.MAJORITY_BOUND if contradiction else part.status,
        None,
        0,
    )


def cross_section(to_anchors: Float, h: int, count: int) -> npt.NDArray[np.intp]:
    """`count` clients from all distances, (A, L, K), to the anchor with the nearest majority.

    Of clients in order of their distance every n-th is taken, so those who are far away in some layer have the share
    that they have among all. Clients drawn by their position could be liars for the most part: by chance if nearly half
    of all lie, and always if liars know the positions.
    """
    reach = np.maximum(kth(to_anchors, h), TINY)
    with np.errstate(over="ignore"):  # a majority that sent the same has no spread
        anchor = int((reach / reach.min(axis=0)).max(axis=1).argmin())
        order = np.argsort((to_anchors[anchor] / reach[anchor][:, None]).max(axis=0), kind="stable")
    return np.sort(order[every_nth(len(order), count)])


def common_weights(by_layer: Float) -> Float:
    """(n,) one row for weights of (L, n): who counts for little in one layer counts for little in all.

    A mean of the rows would let a client that is shortened in one layer alone move the centre there without bound.
    """
    least = (by_layer / by_layer.max(axis=1, keepdims=True)).min(axis=0)
    weights = least if least.any() else by_layer.mean(axis=0)
    return weights / weights.sum()


def _likeness(to_centre: Float, to_mean: Float, members: npt.NDArray[np.intp]) -> Float:
    """(L, K) mean cosine of each client's error with the members', from distances to the centre c and their mean b.

    |b - c|^2 = mean |w_k - c|^2 - mean |w_k - b|^2 over the members; a mean of cosines is the cosine with b times
    |b - c| over the members' length.
    """
    length2 = to_centre[:, members].mean(axis=1)
    offset2 = np.maximum(length2 - to_mean[:, members].mean(axis=1), 0.0)[:, None]
    inner = 0.5 * (to_centre + offset2 - to_mean)
    lengths = np.sqrt(np.maximum(to_centre, TINY)) * np.sqrt(np.maximum(length2, TINY))[:, None]
    with np.errstate(over="ignore"):  # rounding may leave nothing of the lengths, but something of a product
        return np.clip(inner / lengths, -1.0, 1.0)


def _equal(distances: Float) -> npt.NDArray[np.intp]:
    """Clients whose distances to the centre and to all anchors are the same up to rounding: copies."""
    order = np.argsort(distances[0], kind="stable")
    ranked = distances[:, order]
    apart = np.abs(np.diff(ranked, axis=1)) > 1e-5 * (ranked[:, 1:] + ranked[:, :-1] + ranked[0, 1:])
    group = np.empty(len(order), dtype=np.intp)
    group[order] = np.concatenate([[0], np.cumsum(apart.any(axis=0))])
    # number the groups by their first client
    _, index, inverse = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(index))[inverse]


def _votes(r2: Float, D: Float, anchors: npt.NDArray[np.intp], group: npt.NDArray[np.intp]) -> Float:
    """(K,) shares of a vote, the sum over all others estimated from the anchors; copies share one."""
    lengths = 2.0 * np.sqrt(np.maximum(r2[:, None] * r2[None, anchors], TINY))
    cosines = np.clip((r2[:, None] + r2[None, anchors] - D.T) / lengths, 0.0, 1.0)
    cosines[group[:, None] == group[anchors][None, :]] = 0.0
    size = np.bincount(group)
    counted = 1.0 / size[group[anchors]]
    others = (cosines**4) @ counted / counted.sum() * len(size)
    return 1.0 / (size[group] * (1.0 + others))
