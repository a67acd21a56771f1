"""The average: every layer's centre, moved by the clients' errors, each shortened and with its share of a vote."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.bayesian.sizes import ClientSizes, in_own_unit
from honestly.rules.bayesian.views import TINY, centre_grams, cosines, kth

CHANCE = 1.0  # t: a chi^2_d / d exceeds 1 + 2 sqrt(t/d) + 2t/d with probability e^-t at most (Laurent and Massart)


def shorten_errors(
    gram: Float, centre: Float, votes: Float, h: int, d: Float, size: ClientSizes | None = None
) -> tuple[Float, Float]:
    """(V, n) weights of `c + sum_k v_k f_k (w_k - c) / sum_k v_k`, and the factors f.

        f_k = min(1, u s^2 / r_k^2),    s^2 = h-th smallest r_k^2,    u = 1 + 2 sqrt(t/d) + 2t/d

    What a client adds is at most `sqrt(u) s` long and falls with its distance, whatever it sends: errors of its own
    average out, and of those who err alike at most half a spread remains. With sizes p, at most 1 and a factor of the
    votes, r_k^2 p_k replaces r_k^2; the factors that are returned are in the unit of the client's noise.
    """
    r2 = np.maximum(centre_grams(gram, centre).diagonal(0, 1, 2), TINY)
    longest = kth(r2, h) * (1.0 + 2.0 * np.sqrt(CHANCE / d) + 2.0 * CHANCE / d)
    f = _factor(longest, r2 if size is None else in_own_unit(r2, size.vote))
    moved = f * (votes / votes.sum())
    weights = moved + (1.0 - moved.sum(1, keepdims=True)) * centre
    return weights, f if size is None else _factor(longest, in_own_unit(r2, size.noise))


def among(centre: Float, free: Float) -> Float:
    """(V, n) the centre's weights without the accused (0 in `free`), unless it is all theirs."""
    weights = centre * free
    total = weights.sum(1, keepdims=True)
    return np.where(total > 1e-3, weights / np.maximum(total, 1e-3), free / free.sum())


def _factor(longest: Float, r2: Float) -> Float:
    return np.minimum(longest[:, None], r2) / r2


def shared_votes(errors: Float) -> Float:
    """(n,) `v_k = 1 / sum_j max(0, cos_kj)^4`, from the (n, n) Gram matrix of errors about the centre.

    Errors of independent clients in many dimensions are nearly orthogonal: v = 1. Of m clients who err together each
    has 1/m, whatever small noise they add. The fourth power forgives the mild likeness of honest clients whose data are
    alike. Heads are counted everywhere else: copies share a vote, they do not lose their heads.
    """
    alike = np.maximum(cosines(errors[None])[0], 0.0) ** 4
    return 1.0 / (1.0 + alike.sum(1))


def copies(D: Float, s2: float) -> tuple[tuple[int, ...], ...]:
    """Groups of clients nearer to one another than a tenth of the spread, by position."""
    near = 0.01 * s2 >= D
    near |= near.T  # rounding may see only one of the two
    if int(near.sum()) == len(D):
        return ()
    group: npt.NDArray[np.intp] = np.arange(len(D))
    i, j = np.nonzero(near)
    while (group[i] != group[j]).any():
        np.minimum.at(group, i, group[j])
    return groups_of(group)


def groups_of(group: npt.NDArray[np.intp]) -> tuple[tuple[int, ...], ...]:
    """Groups of more than one, by position, from the first client of each one's group."""
    if (group == np.arange(len(group))).all():
        return ()
    members = [tuple(np.flatnonzero(group == first).tolist()) for first in np.unique(group)]
    return tuple(some for some in members if len(some) > 1)
