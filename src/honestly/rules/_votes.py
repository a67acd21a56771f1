"""One vote for one opinion: copies are merged, and clients who err together share a vote."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.base import GramGeometry

COPY = 0.1  # nearer than this share of the median distance to a nearest neighbour: a copy


def copies(clients: GramGeometry, noise: float = 0.0) -> npt.NDArray[np.intp] | None:
    """(K,) the number of each client's group: clients linked by near-zero distances are one group; None: no links.

    Independent clients in many dimensions are never near-identical. A link is a distance below a tenth of the median
    distance between a client and its nearest neighbour. (A longer link would merge honest clients with small updates,
    and then a far minority could outvote them.)

    Arguments:
        clients: the K clients.
        noise: the share of two squared norms' sum that rounding alone can make of a squared distance.
    """
    K = clients.K
    if K < 3:
        return None
    shortest, longest, norm = clients.extent
    if shortest > max(COPY**2 * longest, 2.0 * noise * norm):
        return None
    nearest = np.sort(clients.ranked[:, 1])
    link = COPY**2 * 0.5 * float(nearest[(K - 1) // 2] + nearest[K // 2])
    norms = clients.gram.diagonal()
    linked = clients.distances <= np.maximum(link, noise * (norms[:, None] + norms[None, :]))
    linked.flat[:: K + 1] = False
    i, j = np.nonzero(linked)
    if not len(i):
        return None
    group = np.arange(K)
    while (group[i] != group[j]).any():
        np.minimum.at(group, i, group[j])
    return np.unique(group, return_inverse=True)[1]


def merging(group: npt.NDArray[np.intp]) -> Float:
    """(K', K) matrix whose rows average the groups."""
    member: Float = np.zeros((int(group.max()) + 1, len(group)))
    member[group, np.arange(len(group))] = 1.0
    return member / member.sum(axis=1, keepdims=True)


def shared_votes(alike: Float) -> Float:
    """`v_k = 1 / sum_j max(0, cos_kj)^4`, cos_kj the cosine of the errors of k and j about the centre.

    Errors of independent clients in many dimensions are nearly orthogonal: v = 1. Of m clients who err together each
    has 1/m, whatever small noise they add. The fourth power forgives the mild likeness of honest clients whose data
    are alike.

    Arguments:
        alike: (n, m) `max(0, cos)^4` with m = n clients, or a sample of them.
    """
    return 1.0 / np.maximum(alike.sum(axis=1), 1.0)


def centred(G: Float, a: Float) -> Float:
    """(n, n) Gram matrix of the `w_k - c`, `c = sum_j a_j w_j`."""
    g = G.dot(a)
    g -= 0.5 * float(g.dot(a))
    C = G - g
    C -= g[:, None]
    return C


def likeness(C: Float) -> Float:
    """(n, n) `max(0, cos)^4` of the angles between errors with this Gram matrix; 1 on the diagonal."""
    r = np.sqrt(np.maximum(C.diagonal(), 0.0))
    if r.all():
        inverse = 1.0 / r
    else:  # a client at the centre itself errs like nobody
        inverse = np.divide(1.0, r, out=np.zeros_like(r), where=r > 0.0)
    alike = C * inverse
    alike *= inverse[:, None]
    np.maximum(alike, 0.0, out=alike)
    np.minimum(alike, 1.0, out=alike)
    alike *= alike
    alike *= alike
    alike.flat[:: len(C) + 1] = 1.0
    return alike
