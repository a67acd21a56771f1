"""A view of the clients: one layer, or all layers together. In each, a robust centre and the honest spread about it.

All arrays have the view as their first axis, so 60 layers cost about as many NumPy calls as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules._lib.weiszfeld import inverse_weights

TINY = float(np.finfo(float).tiny)
MEDIAN_STEPS = 5  # of Weiszfeld
TIE = 1.0 + 1e-9  # distances that differ by less are equal: the order of the clients must not matter
MEDIAN_COS2 = 0.455  # of independent directions in d dimensions the median of cos^2 is 0.455 / d


@dataclass(frozen=True)
class Views:
    """What is known about V views of n clients.

    Attributes:
        gram: (V, n, n) Gram matrices.
        centre: (V, n) weights of the centre c.
        errors: (V, n, n) Gram matrices of `e_k = w_k - c`.
        r2: (V, n) squared distances to the mean of the others.
        s2: (V,) the h-th smallest of them: the majority's spread.
    """

    gram: Float
    centre: Float
    errors: Float
    r2: Float
    s2: Float

    @classmethod
    def about(cls, gram: Float, centre: Float, h: int) -> Views:
        """The views with these centres."""
        errors = centre_grams(gram, centre)
        r2 = leave_one_out(np.maximum(errors.diagonal(0, 1, 2), 0.0), centre)
        return cls(gram, centre, errors, r2, np.maximum(kth(r2, h), TINY))

    def __add__(self, other: Views) -> Views:
        """These views, then those."""
        if not len(other.s2):
            return self
        parts = ("gram", "centre", "errors", "r2", "s2")
        return Views(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in parts))

    def where(self, chosen: npt.NDArray[np.bool_], other: Views) -> Views:
        """These views where chosen, (V,) bool, the others elsewhere."""

        def pick(name: str) -> Float:
            mine = getattr(self, name)
            return np.where(chosen.reshape(-1, *(1,) * (mine.ndim - 1)), mine, getattr(other, name))

        return Views(self.gram, pick("centre"), pick("errors"), pick("r2"), pick("s2"))

    def __getitem__(self, which: slice) -> Views:
        return Views(self.gram[which], self.centre[which], self.errors[which], self.r2[which], self.s2[which])


def kth(x: Float, h: int) -> Float:
    """The h-th smallest along the last axis."""
    return np.partition(x, h - 1, axis=-1)[..., h - 1]


def majority(views: Views, h: int) -> Float:
    """(V,) the squared distance to the centre within which a majority stands."""
    return kth(views.errors.diagonal(0, 1, 2), h)


def distances(gram: Float) -> Float:
    """(V, n, n) squared distances."""
    norms = gram.diagonal(0, 1, 2)
    D = gram * -2.0
    D += norms[:, :, None]
    D += norms[:, None, :]
    return np.maximum(D, 0.0, out=D)


def residuals(gram: Float, a: Float) -> Float:
    """(V, n) `|w_k - sum_j a_j w_j|^2`."""
    g = np.matmul(gram, a[:, :, None])[:, :, 0]
    return np.maximum(gram.diagonal(0, 1, 2) - 2.0 * g + (g * a).sum(1)[:, None], 0.0)


def centre_grams(gram: Float, a: Float) -> Float:
    """(V, n, n) Gram matrices about `sum_j a_j w_j`."""
    g = np.matmul(gram, a[:, :, None])[:, :, 0]
    g -= 0.5 * (g * a).sum(1)[:, None]
    C = gram - g[:, :, None]
    C -= g[:, None, :]
    return C


def leave_one_out(r2: Float, a: Float) -> Float:
    """Squared distances to the mean of the *others*, `r_k^2 / (1 - a_k)^2`: a client must not vouch for itself."""
    return r2 / np.square(np.maximum(1.0 - a, 0.1))


def tightest(gram: Float, h: int) -> Float:
    """(V, n) weights of the mean of the tightest ball of h points, moved once to the h points nearest to it."""
    D = distances(gram)
    size = kth(D, h) + 1e-6 * D.mean(-1)  # two clients may be one another's h-th nearest
    x = D[np.arange(len(D)), size.argmin(1)]
    return nearest(residuals(gram, nearest(x, h)), h)


def nearest(x: Float, h: int) -> Float:
    """(V, n) equal weights for the h smallest of each row."""
    a = (x <= TIE * kth(x, h)[:, None]).astype(np.float64)
    return a / a.sum(1, keepdims=True)


def medians(gram: Float, radius: Float) -> Float:
    """(V, n) weights of (nearly) the geometric median, by Weiszfeld from weights `(R_min / R_k)^2`."""
    close = np.maximum(radius.min(1, keepdims=True), TINY)
    a = np.square(close / np.maximum(radius, TINY))
    a /= a.sum(1, keepdims=True)
    for _ in range(MEDIAN_STEPS):
        r2 = np.maximum(residuals(gram, a), np.maximum(1e-11 * close, TINY))
        a = inverse_weights(np.sqrt(r2), np.maximum(1.0 - a, 0.1))
    return a


def unit_products(errors: Float) -> Float:
    """(V, n, n) products of the errors over their lengths: cosines, but for rounding, which `clip` has to bound.

    Where rounding leaves nothing of a length, but something of a product, the quotient is infinite.
    """
    inverse = 1.0 / np.sqrt(np.maximum(errors.diagonal(0, 1, 2), TINY))
    with np.errstate(over="ignore"):
        C = errors * inverse[:, :, None]
        C *= inverse[:, None, :]
    return C


def cosines(errors: Float) -> Float:
    """(V, n, n) cosines of the errors, 0 on the diagonal."""
    V, n, _ = errors.shape
    C = unit_products(errors)
    np.clip(C, -1.0, 1.0, out=C)
    C.reshape(V, n * n)[:, :: n + 1] = 0.0
    return C


@lru_cache(maxsize=64)
def pairs(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Both members of each pair of n clients."""
    return np.triu_indices(n, 1)


def effective_dimension(errors: Float) -> Float:
    """(V,) in how many directions independent errors would be as unlike one another, from the median of cos^2."""
    V, n, _ = errors.shape
    i, j = pairs(n)
    if not len(i):
        return np.ones(V)
    inverse = 1.0 / np.sqrt(np.maximum(errors.diagonal(0, 1, 2), TINY))
    c2 = errors.reshape(V, n * n)[:, i * n + j]
    with np.errstate(over="ignore"):  # as in `unit_products`
        c2 *= inverse[:, i]
        c2 *= inverse[:, j]
    np.square(np.clip(c2, -1.0, 1.0, out=c2), out=c2)
    middle = len(i) // 2
    return MEDIAN_COS2 / np.maximum(np.partition(c2, middle, axis=1)[:, middle], 1e-9)
