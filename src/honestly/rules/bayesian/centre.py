"""The centre of a view: two candidates, of which the one with the nearer majority wins."""

from __future__ import annotations

import numpy as np

from honestly.result import Float
from honestly.rules.bayesian.average import shorten_errors
from honestly.rules.bayesian.views import (
    TIE,
    Views,
    distances,
    effective_dimension,
    kth,
    majority,
    medians,
    tightest,
)


def survey(gram: Float, h: int, D: Float | None = None, radius: Float | None = None) -> tuple[Views, Float]:
    """A centre that no minority captures, in every view; and the effective dimensions about it.

    The neighbourhood of a client is the mean of its h nearest. Every neighbourhood holds honest clients. The first
    candidate is the mean of the tightest majority of neighbourhoods, which a group apart does not move. The second is
    the geometric median, moved once by the shortened errors of all, which a clump of near-copies hardly moves. A lie
    that captures a candidate leaves honest clients far from it, so the one with the nearer majority wins.

    Args:
        gram: (V, n, n) Gram matrices.
        h: the smallest majority.
        D: (V, n, n) squared distances, where they are known.
        radius: (V, n) each client's distance to its h-th nearest, where it is known.
    """
    n = gram.shape[1]
    D = distances(gram) if D is None else D
    radius = kth(D, h) if radius is None else radius
    N = (TIE * radius[:, :, None] >= D).astype(np.float64)
    N /= np.matmul(N, np.ones((n, 1)))
    a = tightest(N @ gram @ N.transpose(0, 2, 1), h)
    tight = Views.about(gram, (a[:, None, :] @ N)[:, 0], h)
    middle = Views.about(gram, medians(gram, radius), h)
    moved = shorten_errors(gram, middle.centre, np.ones(n), h, effective_dimension(middle.errors))[0]
    middle = Views.about(gram, moved, h)
    centre = tight.where(majority(tight, h) < majority(middle, h), middle)
    return centre, effective_dimension(centre.errors)
