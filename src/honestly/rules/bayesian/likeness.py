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
from honestly.rules.bayesian.average import among, shorten_errors
from honestly.rules.bayesian.sizes import ClientSizes, in_own_unit, usual_agreement
from honestly.rules.bayesian.views import TIE, TINY, Views, cosines, kth, pairs

COMMON = 0.1  # mean cosine that honest clients may have for their data's sake
SEARCH = 3.4  # ln n nats of evidence that any n clients have by chance, the best group of them being looked for
OPPOSED = 2.5  # the same for opposition, where nothing is looked for but the client and the view
NEAR = 0.8, 3.0  # r^2 / s^2 up to NEAR + NEAR / sqrt(d) is near, and so is a majority: nobody is accused there
TIGHT = 16.0  # effective dimension from which a view convicts by itself
AGREE = 0.7  # in a looser one a tight view must agree to this share of the evidence it would need by itself
SAME = 0.93  # mean cosine from which a loose view needs no other: clients that are merely behind stay below it
LOOSEST = 5.0  # below it all clients that are behind may err alike
QUANTILE, CHI2 = 0.75, 1.323  # of (cos - mean)^2, and of chi^2_1: the liars' pairs are among the rest
POWER_STEPS, MEMBER = 6, 0.5  # to the top eigenvector; the share of its largest entry that a member has
SUSPECTED = -0.1  # log-odds of honesty, from earlier rounds, from which likeness tells without a companion
FARAWAY = 25.0  # r^2 / s^2 beyond which a client says nothing about how unlike honest errors are
LONGER = 25.0  # r_j^2 / r_k^2 beyond which j, who errs much farther, says nothing about k
ABSURD = 1e6  # r^2 / s^2 from which no client is merely behind, if r^2 is also LONGER times what the others moved
ROUNDS = 5  # of convicting and moving the centre


@dataclass(frozen=True)
class Judgement:
    """Who is accused, and why.

    Attributes:
        accused: (n,) bool.
        evidence: (V, n) nats for a lie in each view; negative where there is none.
        view: (n,) the view that speaks most clearly against each client.
        group: (n, n) bool, row k: the clients that err alike with k there.
        opposed: (n,) bool: it is opposition that tells against k.
        absurd: (n,) bool: k is so far away that nothing else is needed.
        dimension: (V,) effective dimensions.
        views: the views about the centre of those who are not accused.
        first: (V, n) the centres before anybody was accused: what the average starts from.
        contradiction: the evidence speaks against more than may lie, so nobody is accused.
        rounds: how often somebody was convicted or acquitted.
        settled: the last round changed nothing.
    """

    accused: npt.NDArray[np.bool_]
    evidence: Float
    view: npt.NDArray[np.intp]
    group: npt.NDArray[np.bool_]
    opposed: npt.NDArray[np.bool_]
    absurd: npt.NDArray[np.bool_]
    dimension: Float
    views: Views
    first: Float
    contradiction: bool
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

    Every move starts from the first centre. If each started from the last one, the centre would drift: a few wrong
    accusations pull it to the liars, and seen from there more honest clients look guilty. If more clients look guilty
    than may lie, that is a contradiction, and nobody is accused.

    Args:
        views: the clients about a robust centre.
        h: the smallest majority; at most n - h are accused.
        prior: (n,) log-odds of honesty, at most 0: what earlier rounds left.
        reference: (V, n, n) Gram matrices about the previous model, where opposition has a meaning; or None.
        size: what is used of the clients' sizes; None: all the same.
    """
    V, n = views.r2.shape
    first, accused, moved = views, np.zeros(n, bool), np.zeros(V, bool)
    contradiction, settled, rounds = False, False, 0
    while True:
        current = look(views, ~accused, prior, reference, size)
        if contradiction:
            break
        side = camps(views, current)
        erring = (side.sum(1) >= h) & ~moved
        if erring.any():  # a majority errs alike there: it is the centre that errs
            moved, accused = moved | erring, np.zeros(n, bool)
            shares = side / np.maximum(side.sum(1, keepdims=True), 1)
            first = views = Views.about(views.gram, np.where(erring[:, None], shares, first.centre), h)
            continue
        guilty = current.against - (0.0 if prior is None else prior) > 0.0
        contradiction = int(guilty.sum()) > n - h
        settled = bool((guilty == accused).all())
        if not contradiction and (settled or rounds == ROUNDS):
            break
        accused, rounds = guilty & (not contradiction), rounds + 1
        if contradiction:
            views = first
            continue
        free = (~accused).astype(np.float64)
        centre, _ = shorten_errors(views.gram, among(first.centre, free), free, h, current.dimension)
        views = Views.about(views.gram, centre, h)
    return Judgement(
        accused,
        np.minimum(current.evidence, 0.0) if contradiction else current.evidence,
        current.view,
        current.group,
        current.opposed,
        current.absurd,
        current.dimension,
        views,
        first.centre,
        contradiction,
        rounds,
        settled,
    )


def camps(views: Views, current: Look) -> npt.NDArray[np.bool_]:
    """(V, n) who stands nearer to the mean of those who err alike than to the centre; nobody where none does.

    Liars that are nearer to one another than honest clients are can capture the centre. All the honest then err alike,
    and the clearest of them look guilty; the others stand on their side.
    """
    near = views.r2 <= FARAWAY * views.s2[:, None]  # a decoy far away must not draw the line
    guilty = (current.alike & near).astype(np.float64)
    m = guilty.sum(1, keepdims=True)
    products = np.matmul(views.errors, guilty[:, :, None])[:, :, 0]
    products -= guilty * views.errors.diagonal(0, 1, 2)
    towards = products / np.maximum(m - guilty, 1.0)  # e_k . mean error of the other guilty
    apart = (towards * guilty).sum(1, keepdims=True) / np.maximum(m, 1.0)
    return near & (towards > 0.5 * apart) & (apart > 0.0) & (m >= 2.0)


@dataclass(frozen=True)
class Look:
    """The evidence about one centre; see `Judgement`."""

    evidence: Float
    dimension: Float
    members: npt.NDArray[np.bool_]  # (V, n) the group that errs most alike in each view
    alike: npt.NDArray[np.bool_]  # (V, n) the clients against which there is evidence of likeness
    opposing: npt.NDArray[np.bool_]  # (V, n)
    absurd: npt.NDArray[np.bool_]  # (n,)

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
        """(n, n) the clients that err alike with each client there."""
        return self.members[self.view]

    @property
    def opposed(self) -> npt.NDArray[np.bool_]:
        """(n,) whether it is opposition that tells there."""
        return self.opposing[self.view, np.arange(len(self.view))]


def look(
    views: Views,
    free: npt.NDArray[np.bool_],
    prior: Float | None,
    reference: Float | None,
    size: ClientSizes | None = None,
) -> Look:
    """The evidence against every client in every view."""
    n = len(free)
    C = cosines(views.errors)
    t = in_own_unit(views.r2 / views.s2[:, None], None if size is None else size.vote)
    d = dimension(C, free & (t[0] <= FARAWAY))
    chance = 1.0 / np.sqrt(d)[:, None]
    far = t > np.maximum(NEAR[0] + NEAR[1] * chance, TIE)
    cost = SEARCH * math.log(n)
    members = top_group(C, far, chance)
    own, m, together = likeness(C, members, views.r2)
    alike = np.minimum(own, together)
    known = far & (m >= 1.0)
    x = np.where(known, _nats(alike, COMMON, m * d[:, None]) - cost, -cost)
    # the same with a lower bar: whether a tight view agrees with what a loose one says
    half = np.where(known & (m >= 2.0), _nats(alike, AGREE * COMMON, m * d[:, None]) - AGREE**2 * cost, -cost)
    tight = d >= TIGHT
    support = half[tight].max(0, initial=-cost)
    loose = np.where(alike > SAME, x, np.minimum(x, support))
    x = np.where(tight[:, None], x, np.where(d[:, None] >= LOOSEST, loose, -cost))
    bounded = np.minimum(x, companion(x))
    x = bounded if prior is None else np.where(prior <= SUSPECTED, x, bounded)
    convicted = x > 0.0
    copied = copied_clients(C, convicted, chance)
    convicted &= ~copied
    x = np.where(copied, -cost, x)
    opposing = np.zeros_like(far)
    if reference is not None:
        o = opposition(reference, views.centre)
        usual = -kth(o, n // 2 + 1)[:, None]  # where most clients go one way; else there is nothing to oppose
        plain = far & (usual > COMMON) & (o > COMMON) & (d[:, None] >= LOOSEST)
        usual = usual_agreement(usual, size)
        against = np.where(plain, 0.5 * d[:, None] * np.square(o + usual) - OPPOSED * math.log(n), -cost)
        opposing = against > x
        x = np.maximum(x, against)
    absurd = t[0] > ABSURD
    if reference is not None and absurd.any():  # where clients agree closely, one that did not move seems far away
        absurd &= views.r2[0] > LONGER * (views.centre[0] @ reference[0] @ views.centre[0])
    x[0] = np.where(absurd, np.log(np.maximum(t[0], 1.0)), x[0])
    return Look(x, d, members > 0.0, convicted, opposing, absurd)


def copied_clients(C: Float, convicted: npt.NDArray[np.bool_], chance: Float) -> npt.NDArray[np.bool_]:
    """(n,) who errs like others most of which err like at least twice as many: these copied it, and others, too.

    A liar that sends one client's update in one layer and another's in the next, or the mean of several, errs like each
    of them. But they do not err like one another, as those do who push the model in a common direction.
    """
    views = convicted.sum(1) >= 2
    both = convicted[views, :, None] & convicted[views, None, :]
    alike = (both & (C[views] > COMMON + chance[views][:, :, None])).any(0)
    count = alike.sum(1)
    return 2 * (alike & (count >= 2 * count[:, None])).sum(1) > count


def companion(x: Float) -> Float:
    """(V, n) the largest evidence against another client: it takes two to err alike."""
    ranked = np.partition(x, -2, axis=1)
    return np.where(x >= ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])


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


def likeness(C: Float, members: Float, r2: Float) -> tuple[Float, Float, Float]:
    """Each client's mean cosine with the other members, how many these are, and the members' mean among themselves.

    Members that err much farther do not count: a small honest error may point to where large lies go.
    """
    peers = members[:, None, :] * (r2[:, None, :] <= LONGER * r2[:, :, None])
    m = peers.sum(2) - members
    own = (C * peers).sum(2) / np.maximum(m, 1.0)
    size = members.sum(1, keepdims=True)
    total = np.matmul(C, members[:, :, None])[:, :, 0]
    together = (total * members).sum(1, keepdims=True) / np.maximum(size * (size - 1.0), 1.0)
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
