"""The guarantee: the answer is as near to every large set of clients as the answer of any rule without settings can be.

n clients, at most f of them liars, h = n - f. For a set S of at least h clients with mean m_S and variance s_S^2 let
k_S = f / (|S| - f). Some point z has

    |z - m_S|^2 <= k_S s_S^2   for all S,   which is the same as   |sum_S e_k|^2 <= f sum_S |e_k|^2,   e_k = w_k - z

and no rule without settings can promise a smaller bound (docs/explanation/guarantee.md has the proof). The honest
clients are one such S: kappa <= f / (n - f' - f) for any number f' <= f of liars. `guard` moves an answer into these
balls.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.bayesian.views import TINY, centre_grams, distances, unit_products

EXACT = 12  # up to so many clients all subsets are looked at
PULLS = 200  # each brings the answer nearer to every point that lies in all balls
WITHIN = 1.001  # of the bound, in squared distances
PERRON_STEPS = 4
STARTS, SIZES, CLIMBS = 24, 12, 8  # of the search for the worst subset among more than EXACT clients


def guard(gram: Float, a: Float, f: int) -> tuple[Float, int]:
    """(L, n) weights of answers that keep the promise in every layer, and how many layers had to be changed."""
    suspects = np.flatnonzero(certificate(centre_grams(gram, a)) > f) if f else np.empty(0, np.intp)
    if not len(suspects):
        return a, 0
    a, changed = a.copy(), 0
    for layer in suspects:
        start = a[layer]
        shares = pull(gram[layer], start, f)
        changed += shares is not start
        a[layer] = shares
    return a, changed


def certificate(errors: Float) -> Float:
    """(L,) an upper bound of `|sum_S e_k|^2 / sum_S |e_k|^2` over all sets S: at most f, and nothing is to be done.

    With x_k = |e_k| for k in S the ratio is x^T C x / x^T x <= the largest eigenvalue of max(C, 0), C the cosines; and
    that is at most max_k (C y)_k / y_k for every positive y (Collatz and Wielandt).
    """
    C = unit_products(errors)
    np.clip(C, 0.0, 1.0, out=C)
    y = np.maximum(C.sum(2), 1e-12)
    for _ in range(PERRON_STEPS):
        y /= np.maximum(y.max(1, keepdims=True), TINY)
        y = np.maximum(np.matmul(C, y[:, :, None])[:, :, 0], 1e-12)
    return (np.matmul(C, y[:, :, None])[:, :, 0] / y).max(1)


def pull(G: Float, a: Float, f: int) -> Float:
    """Project the answer onto the ball of the worst S until it lies in all of them (weights of one layer).

    The balls are convex and have a point in common, so the projections converge to one. `a` itself if it lies there.
    """
    for _ in range(PULLS):
        with np.errstate(over="ignore", invalid="ignore"):  # products over lengths of which rounding left nothing
            S, gamma = worst_subset(G, a, f)
        if gamma <= WITHIN:
            break
        mean = S / S.sum()
        a = mean + (a - mean) / np.sqrt(gamma)
    return a


def worst_subset(G: Float, a: Float, f: int) -> tuple[Float, float]:
    """The S with the largest `gamma = |z - m_S|^2 / (k_S s_S^2)`, as 0/1, and gamma.

    With N = |sum_S e|^2 and Q = sum_S |e|^2 the variance is (|S| Q - N) / |S|^2, and gamma is
    N (|S| - f) / (f (|S| Q - N)).
    """
    n = len(G)
    E = centre_grams(G[None], a[None])[0]
    q = np.maximum(E.diagonal(), 0.0)
    X = all_subsets(n, n - f) if n <= EXACT else search(E, q, f)
    m, N, Q = X.sum(1), ((X @ E) * X).sum(1), X @ q
    rounding = 1e-12 * m * (X @ np.abs(G.diagonal()) + m * abs(float(a @ G @ a)))
    N = np.where(rounding < N, N, 0.0)
    gamma = N * (m - f) / np.maximum(f * np.maximum(m * Q - N, 0.0), rounding + TINY)
    worst = int(gamma.argmax())
    return X[worst], float(gamma[worst])


@lru_cache(maxsize=16)
def all_subsets(n: int, h: int) -> Float:
    """(N, n) all subsets of at least h of n clients, as 0/1."""
    bits = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(np.float64)
    return bits[bits.sum(1) >= h]


def search(E: Float, q: Float, f: int) -> Float:
    """(N, n) sets among which the worst is likely to be."""
    h = len(q) - f
    X = climb(E, q, starts(E, q, h))
    # Where not every size was tried, each set also finds the size that suits it.
    return X if len(set_sizes(len(q), h)) == f + 1 else np.concatenate([X, resize(E, q, X, f)])


@lru_cache(maxsize=16)
def first_clients(n: int) -> npt.NDArray[np.int64]:
    """Clients from which a search starts."""
    return np.unique(np.linspace(0, n - 1, STARTS).astype(np.int64))


@lru_cache(maxsize=16)
def set_sizes(n: int, h: int) -> npt.NDArray[np.int64]:
    """Sizes of the sets to start from."""
    return np.unique(np.linspace(h, n, SIZES).astype(np.int64))


def starts(E: Float, q: Float, h: int) -> Float:
    """(N, n) sets to start from: the clients nearest to, most unlike and most opposed to each of some clients."""
    n = len(q)
    r = np.sqrt(np.maximum(q, TINY))
    chosen = first_clients(n)
    orders = (distances(E[None])[0], -E / r[:, None] / r, -E)
    order = np.concatenate([np.argsort(y[chosen], axis=1, kind="stable") for y in orders])
    order = np.unique(order, axis=0)
    sizes = set_sizes(n, h)
    X = np.zeros((len(sizes), len(order), n))
    for i, size in enumerate(sizes):
        np.put_along_axis(X[i], order[:, :size], 1.0, axis=1)
    return X.reshape(-1, n)


def climb(E: Float, q: Float, X: Float) -> Float:
    """Alternating maximisation of `rho = N / (m Q)`: u = sum_S e, then the m clients of largest 2 u.e_k - rho m q_k."""
    m = X.sum(1)
    for _ in range(CLIMBS):
        U = X @ E
        rho = (U * X).sum(1) / np.maximum(m * (X @ q), TINY)
        order = np.argsort((rho * m)[:, None] * q - 2.0 * U, axis=1, kind="stable")
        new = np.zeros_like(X)
        np.put_along_axis(new, order, (np.arange(X.shape[1]) < m[:, None]).astype(np.float64), axis=1)
        if (new == X).all():
            break
        X = new
    return X


def resize(E: Float, q: Float, X: Float, f: int) -> Float:
    """Alternating maximisation of `N - f Q`, which is above 0 where gamma > 1, over sets of any size from h on.

    u = sum_S e, then all clients with 2 u.e_k > f q_k, and at least the h clients of largest 2 u.e_k - f q_k.
    """
    h = len(q) - f
    for _ in range(CLIMBS):
        value = f * q - 2.0 * (X @ E)
        new = (value < 0.0).astype(np.float64)
        np.put_along_axis(new, np.argsort(value, axis=1, kind="stable")[:, :h], 1.0, axis=1)
        if (new == X).all():
            break
        X = new
    return X
