"""Two clusters or one? Means of nearest neighbours tell: averaging shrinks honest differences and leaves a shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.result import Float
from honestly.rules._posterior import em
from honestly.rules.base import GramGeometry

PLAIN = 10.0  # r^2 / s^2 at which a neighbourhood is as likely honest as not: only a plain separation counts


def separated(clients: GramGeometry, errors: Float, h: int, otherwise: Float, s2: float) -> tuple[Float, Float | None]:
    """Weights of a centre to start the EM from, and each client's prior log-odds, from 0 to `-2 ln n`.

    Every client is replaced by the mean of its h nearest clients, itself included. Honest neighbourhoods overlap nearly
    completely, so that their means nearly coincide; those of a shifted group keep most of the shift. The EM on these
    means, from their tightest majority, gives the prior. Where no group is plainly apart, it changes nothing, and the
    prior is None. Squared distances below half the sampling variance of such a mean, `s^2 (1/h - 1/n + 1/h^2)`, are
    raised to it.

    Arguments:
        clients: the n clients.
        errors: their Gram matrix about that robust centre.
        h: the smallest majority.
        otherwise: weights of a robust centre, returned if nothing is plainly apart.
        s2: the squared radius of the majority about that centre.
    """
    n = clients.K
    N = nearest(clients, h)
    near = GramGeometry(N.dot(errors).dot(N.T))
    floor = 0.5 * s2 * (1.0 / h - 1.0 / n + 1.0 / h**2)
    # No mixture is farther from a neighbourhood than the farthest one: the EM below could only believe all of them.
    if 2.0 * float(near.gram.diagonal().max() - near.gram.min()) <= PLAIN * floor * (1.0 - 1.0 / h) ** 2:
        return otherwise, None
    start = tightest(near.distances, h)
    q = em(Floored(near, floor), start, np.ones(n), prior=None, h=h, steps=100, tolerance=1e-7, slack=PLAIN)
    if q.pi.min() == 1.0:
        return otherwise, None
    return q.weights @ N, -2.0 * np.log(n) * (1.0 - q.pi)


def nearest(clients: GramGeometry, h: int) -> Float:
    """(n, n) matrix whose row k averages the h clients nearest to k, itself included; of equals, the first."""
    N = (clients.distances <= clients.ranked[:, h - 1 : h]).astype(np.float64)
    N /= h
    if N.sum() > clients.K + 0.5 / h:  # equal distances: more than h are as near as the h-th
        N[...] = 0.0
        np.put_along_axis(N, np.argsort(clients.distances, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    return N


@dataclass(frozen=True)
class Floored:
    """Residuals that are at least `floor`."""

    near: GramGeometry
    floor: float

    @property
    def K(self) -> int:
        """Number of neighbourhoods."""
        return self.near.K

    def residuals(self, a: Float) -> Float:
        """`max(r^2, floor)`."""
        return np.maximum(self.near.residuals(a), self.floor)


def tightest(D: Float, h: int) -> Float:
    """Weights of the mean of the tightest ball around a client that holds h clients."""
    near = np.partition(D, h - 1, axis=1)[:, :h]
    k = int(np.lexsort((near.sum(axis=1), near.max(axis=1)))[0])
    a = np.zeros(len(D))
    a[np.argsort(D[k], kind="stable")[:h]] = 1.0 / h
    return a
