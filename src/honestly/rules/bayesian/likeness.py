"""Who lies: far clients that err alike, or that oppose what the others agree on. Length alone convicts nobody.

The model of an error is a length, which may be anything, times a direction: one of the client's own, or one that it
shares with other liars. Directions of independent clients have cosines of about 1 / sqrt(d), d being the effective
dimension of the view. If k has a mean cosine x with m others, the likelihood of a shared direction against that of
chance is -(d m / 2) ln(1 - x^2) nats, about (d m / 2) x^2, less what it costs to have searched among n clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.bayesian.average import shortened
from honestly.rules.bayesian.sizes import ClientSizes, in_own_unit, usual_agreement
from honestly.rules.bayesian.views import TINY, Views, cosines, kth, pairs

COMMON = 0.1  # mean cosine that honest clients may have for their data's sake
SEARCH = 3.4  # ln n nats of evidence that any n clients have by chance, the best group of them being looked for
OPPOSED = 2.5  # the same for opposition, where nothing is looked for but the client and the view
NEAR = 0.8, 3.0  # r^2 / s^2 up to NEAR + NEAR / sqrt(d) is near: nobody is accused there
TIGHT = 16.0  # effective dimension from which a view convicts by itself
AGREE = 0.7  # in a looser one a tight view must agree to this share of the evidence it would need by itself
SAME = 0.93  # mean cosine from which a loose view needs no other: clients that are merely behind stay below it
LOOSEST = 5.0  # below it all clients that are behind may err alike
QUANTILE, CHI2 = 0.75, 1.323  # of (cos - mean)^2, and of chi^2_1: the liars' pairs are among the rest
POWER_STEPS, MEMBER = 6, 0.5  # to the top eigenvector; the share of its largest entry that a member has
FARAWAY = 25.0  # r^2 / s^2 beyond which a client says nothing about how unlike honest errors are
ABSURD = 1e6  # r^2 / s^2 from which no client is merely behind
ROUNDS = 5  # of convicting and moving the centre


@dataclass(frozen=True)
class Judgement:
    """Who is accused, and why.

    Attributes:
        accused: (n,) bool.
        evidence: (V, n) nats for a lie in each view; negative where there is none.
        view: (n,) the view that speaks most clearly against each client.
        group: (n, n) bool, row k: with whom k errs alike there.
        opposed: (n,) bool: it is opposition that tells against k.
        dimension: (V,) effective dimensions.
        views: the views about the centre of those who are not accused.
        crowded: more were to be accused than may lie.
        rounds: how often somebody was convicted or acquitted.
        settled: the last round changed nothing.
    """

    accused: npt.NDArray[np.bool_]
    evidence: Float
    view: npt.NDArray[np.intp]
    group: npt.NDArray[np.bool_]
    opposed: npt.NDArray[np.bool_]
    dimension: Float
    views: Views
    crowded: bool
    rounds: int
    settled: bool

    @property
    def against(self) -> Float:
        """(n,) nats, the view that speaks most clearly."""
        return self.evidence.max(0)


def judge(
    views: Views, h: int, prior: Float | None, reference: Float | None, size: ClientSizes | None = None
) -> Judgement:
    """Convict, move the centre to the others, look again; until nothing changes.

    Arguments:
        views: the clients about a robust centre.
        h: the smallest majority; at most n - h are accused.
        prior: (n,) log-odds of honesty, at most 0: what earlier rounds left.
        reference: (V, n, n) Gram matrices about the previous model, where opposition has a meaning; or None.
        size: what is used of the clients' sizes; None: all the same.
    """
    n = views.r2.shape[1]
    accused, crowded, settled, rounds, recentred = np.zeros(n, bool), False, False, 0, False
    while True:
        found = look(views, ~accused, reference, size)
        against = found.against if prior is None else found.against - prior
        guilty = against > 0.0
        if int(guilty.sum()) > n - h:  # more than may lie: those with the most evidence against them
            crowded = True
            guilty = np.zeros(n, bool)
            guilty[np.argsort(-against, kind="stable")[: n - h]] = True
        side = camp(views, guilty)
        if int(side.sum()) >= h and not recentred:  # a majority errs alike: it is the centre that errs
            recentred, accused, rounds = True, np.zeros(n, bool), rounds + 1
            views = Views.about(views.gram, np.broadcast_to(side / side.sum(), views.centre.shape), h)
            continue
        settled = bool((guilty == accused).all())
        if settled or rounds == ROUNDS or h == n:
            break
        accused, rounds = guilty, rounds + 1
        free = (~accused).astype(np.float64)
        centre = views.centre * free
        total = centre.sum(1, keepdims=True)
        centre = np.where(total > 1e-3, centre / np.maximum(total, 1e-3), free / free.sum())
        centre, _ = shortened(views.gram, centre, free, h, found.dimension)
        views = Views.about(views.gram, centre, h)
    return Judgement(
        accused,
        found.evidence,
        found.view,
        found.group,
        found.opposed,
        found.dimension,
        views,
        crowded,
        rounds,
        settled,
    )


def camp(views: Views, guilty: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(n,) who stands nearer to the mean of the guilty than to the centre, over all layers together.

    Liars that are nearer to one another than honest clients are can capture the centre. All the honest then err alike,
    and the clearest of them look guilty; the others stand on their side.
    """
    guilty = guilty & (views.r2[0] <= FARAWAY * views.s2[0])  # a decoy far away must not draw the line
    m = int(guilty.sum())
    if m < 2:
        return np.zeros(len(guilty), bool)
    products = views.errors[0] @ guilty
    own = np.where(guilty, views.errors[0].diagonal(), 0.0)
    towards = (products - own) / np.where(guilty, m - 1, m)  # e_k . mean error of the other guilty
    apart = float(towards[guilty].mean())
    return (towards > 0.5 * apart) & (views.r2[0] <= FARAWAY * views.s2[0]) & (apart > 0.0)


@dataclass(frozen=True)
class Look:
    """The evidence about one centre; see `Judgement`."""

    evidence: Float
    dimension: Float
    members: npt.NDArray[np.bool_]  # (V, n) the group that errs most alike in each view
    opposing: npt.NDArray[np.bool_]  # (V, n)

    @property
    def against(self) -> Float:
        """(n,) nats."""
        return self.evidence.max(0)

    @property
    def view(self) -> npt.NDArray[np.intp]:
        """(n,) the view that speaks most clearly."""
        return self.evidence.argmax(0)

    @property
    def group(self) -> npt.NDArray[np.bool_]:
        """(n, n) with whom each errs alike there."""
        return self.members[self.view]

    @property
    def opposed(self) -> npt.NDArray[np.bool_]:
        """(n,) whether it is opposition that tells there."""
        return self.opposing[self.view, np.arange(len(self.view))]


def look(views: Views, free: npt.NDArray[np.bool_], reference: Float | None, size: ClientSizes | None = None) -> Look:
    """The evidence against every client in every view."""
    n = len(free)
    C = cosines(views.errors)
    t = in_own_unit(views.r2 / views.s2[:, None], None if size is None else size.vote)
    d = dimension(C, free & (t[0] <= FARAWAY))
    chance = 1.0 / np.sqrt(d)[:, None]
    far = t > NEAR[0] + NEAR[1] * chance
    cost = SEARCH * math.log(n)
    members = top_group(C, far, chance)
    own, m, together = likeness(C, members)
    alike = np.minimum(own, together)
    known = far & (m >= 1.0)
    x = np.where(known, _nats(alike, COMMON, m * d[:, None]) - cost, -cost)
    # the same with a lower bar: whether a tight view agrees with what a loose one says
    half = np.where(known & (m >= 2.0), _nats(alike, AGREE * COMMON, m * d[:, None]) - AGREE**2 * cost, -cost)
    tight = d >= TIGHT
    support = half[tight].max(0, initial=-cost)
    loose = np.where(alike > SAME, x, np.minimum(x, support))
    x = np.where(tight[:, None], x, np.where(d[:, None] >= LOOSEST, loose, -cost))
    opposing = np.zeros_like(far)
    if reference is not None:
        o = opposition(reference, views.centre)
        usual = -kth(o, n // 2 + 1)[:, None]  # where most clients go one way; else there is nothing to oppose
        plain = far & (usual > COMMON) & (o > COMMON) & (d[:, None] >= LOOSEST)
        usual = usual_agreement(usual, size)
        against = np.where(plain, 0.5 * d[:, None] * np.square(o + usual) - OPPOSED * math.log(n), -cost)
        opposing = against > x
        x = np.maximum(x, against)
    x[0] = np.where(t[0] > ABSURD, np.log(np.maximum(t[0], 1.0)), x[0])
    return Look(x, d, members > 0.0, opposing)


def dimension(C: Float, free: npt.NDArray[np.bool_]) -> Float:
    """(V,) `d = 1.323 / q`, q the upper quartile of (cos - mean cos)^2 over the pairs of these clients."""
    V, n, _ = C.shape
    who = np.flatnonzero(free)
    if len(who) < 2:
        return np.ones(V)
    i, j = pairs(len(who))
    spread = C.reshape(V, n * n)[:, who[i] * n + who[j]]
    spread -= spread.mean(1, keepdims=True)
    np.square(spread, out=spread)
    rank = int(QUANTILE * len(i))
    return CHI2 / np.maximum(np.partition(spread, rank, axis=1)[:, rank], 1e-9)


def top_group(C: Float, far: npt.NDArray[np.bool_], chance: Float) -> Float:
    """(V, n) 1 for the far clients that err most alike: the top eigenvector of likeness beyond chance."""
    S = C - chance[:, :, None]
    np.maximum(S, 0.0, out=S)
    S *= far[:, :, None]
    y = far.astype(np.float64)
    for _ in range(POWER_STEPS + 1):
        y = np.matmul(S, y[:, :, None])[:, :, 0]
        y *= far
        y /= np.maximum(y.max(1, keepdims=True), TINY)
    return (y > MEMBER).astype(np.float64)


def likeness(C: Float, members: Float) -> tuple[Float, Float, Float]:
    """Each client's mean cosine with the other members, how many these are, and the members' mean among themselves."""
    size = members.sum(1, keepdims=True)
    m = size - members
    own = np.matmul(C, members[:, :, None])[:, :, 0] / np.maximum(m, 1.0)
    together = (own * members).sum(1, keepdims=True) / np.maximum(size, 1.0)
    return own, m, together


def opposition(reference: Float, centre: Float) -> Float:
    """(V, n) minus the cosine of each client's update with the mean of the others', as seen from the previous model."""
    own2 = np.maximum(reference.diagonal(0, 1, 2), TINY)
    g = np.matmul(reference, centre[:, :, None])[:, :, 0]
    others2 = (g * centre).sum(1, keepdims=True) - 2.0 * centre * g + np.square(centre) * own2
    g -= centre * own2
    return np.clip(-(g / np.sqrt(np.maximum(others2, TINY))) / np.sqrt(own2), -1.0, 1.0)


def _nats(cosine: Float, common: float, count: Float) -> Float:
    """`-(count / 2) ln(1 - x^2)`, x the cosine beyond what is common: nearly `count x^2 / 2` where it is small."""
    x = np.maximum(cosine - common, 0.0)
    return -0.5 * count * np.log1p(-np.square(x))
