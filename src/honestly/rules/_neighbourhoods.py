"""Two clusters or one? Means of nearest neighbours tell: averaging shrinks honest differences and leaves a shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.result import Float
from honestly.rules._posterior import em, leave_one_out
from honestly.rules.base import GramGeometry, squared_distances

PLAIN = 10.0  # r^2 / s^2 at which a neighbourhood is as likely honest as not: only a plain separation counts


def separated(G: Float, D: Float, h: int, otherwise: Float) -> tuple[Float, Float]:
    """Weights of a centre to start the EM from, and each client's prior log-odds, from 0 to `-2 ln n`.

    Every client is replaced by the mean of its h nearest clients, itself included. Honest neighbourhoods overlap nearly
    completely, so that their means nearly coincide; those of a shifted group keep most of the shift. The EM on these
    means, from their tightest majority, gives the prior. Where no group is plainly apart, it changes nothing. Squared
    distances below half the sampling variance of such a mean, `s^2 (1/h - 1/n + 1/h^2)`, are raised to it.

    Arguments:
        G: (n, n) Gram matrix; D: its squared distances.
        h: the smallest majority.
        otherwise: weights of a robust centre, returned if nothing is plainly apart.
    """
    n = len(G)
    N = np.zeros((n, n))
    np.put_along_axis(N, np.argsort(D, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    near = GramGeometry(N @ G @ N.T)
    start = tightest(squared_distances(near.gram), h)
    r2 = leave_one_out(GramGeometry(G).residuals(otherwise), otherwise)
    s2 = float(np.partition(r2, h - 1)[h - 1])
    floored = Floored(near, 0.5 * s2 * (1.0 / h - 1.0 / n + 1.0 / h**2))
    q = em(floored, start, np.ones(n), prior=np.zeros(n), h=h, steps=100, tolerance=1e-7, slack=PLAIN)
    if q.pi.min() == 1.0:
        return otherwise, np.zeros(n)
    return q.weights @ N, -2.0 * np.log(n) * (1.0 - q.pi)


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
