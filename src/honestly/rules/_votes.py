"""One vote for one opinion: copies are merged, and clients who err together share a vote."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from honestly.result import Float

COPY = 0.1  # nearer than this share of the median distance to a nearest neighbour: a copy


def copies(D: Float, noise: Float | float = 0.0) -> npt.NDArray[np.intp]:
    """(K,) the number of each client's group: clients linked by near-zero distances are one group.

    Independent clients in many dimensions are never near-identical. A link is a distance below a tenth of the median
    distance between a client and its nearest neighbour. (A longer link would merge honest clients with small updates,
    and then a far minority could outvote them.)

    Arguments:
        D: (K, K) squared distances.
        noise: squared distances that rounding alone can make.
    """
    K = len(D)
    group = np.arange(K)
    if K < 3:
        return group
    nearest = D + np.diag(np.full(K, np.inf))
    i, j = np.nonzero(nearest <= np.maximum(COPY**2 * np.median(nearest.min(axis=1)), noise))
    while len(i) and (group[i] != group[j]).any():
        np.minimum.at(group, i, group[j])
    return np.unique(group, return_inverse=True)[1]


def merging(group: npt.NDArray[np.intp]) -> Float:
    """(K', K) matrix whose rows average the groups."""
    member: Float = np.zeros((int(group.max()) + 1, len(group)))
    member[group, np.arange(len(group))] = 1.0
    return member / member.sum(axis=1, keepdims=True)


def shared_votes(cosines: Float) -> Float:
    """`v_k = 1 / sum_j max(0, cos_kj)^4`, cos_kj the cosine of the errors of k and j about the centre.

    Errors of independent clients in many dimensions are nearly orthogonal: v = 1. Of m clients who err together each
    has 1/m, whatever small noise they add. The fourth power forgives the mild likeness of honest clients whose data
    are alike.

    Arguments:
        cosines: (n, m) with m = n clients, or a sample of them.
    """
    alike = np.maximum(cosines, 0.0) ** 4
    return 1.0 / np.maximum(alike.sum(axis=1), 1.0)


def cosines_about(G: Float, a: Float) -> Float:
    """(n, n) cosines between the `w_k - c`, `c = sum_j a_j w_j`; 1 on the diagonal."""
    g = G @ a
    C = G - g[:, None] - g[None, :] + float(a @ g)
    r = np.sqrt(np.maximum(np.diagonal(C), 0.0))
    lengths = r[:, None] * r[None, :]
    cosines = np.divide(C, lengths, out=np.zeros_like(C), where=lengths > 0.0)
    np.fill_diagonal(cosines, 1.0)
    return np.minimum(cosines, 1.0)
