"""Spectra of the clients' covariance, from the K x K Gram matrix."""

from __future__ import annotations

import numpy as np

from honestly.result import Float

# Up to this size LAPACK's full decomposition takes a few milliseconds; beyond it Lanczos is faster.
_FULL = 200


def centre_gram(G: Float, a: Float) -> Float:
    """The Gram matrix of `w_k - sum_j a_j w_j`, for weights a that sum to 1."""
    mixed = G @ a
    return G - mixed[:, None] - mixed[None, :] + float(a @ mixed)


def top_eigenpair(M: Float) -> tuple[float, Float]:
    """The largest eigenvalue of a symmetric M and its unit eigenvector."""
    K = len(M)
    if K > _FULL:
        pair = _lanczos(M)
        if pair is not None:
            return pair
    values, vectors = np.linalg.eigh(M)
    return float(values[-1]), vectors[:, -1]


def _lanczos(M: Float, steps: int = 120, tolerance: float = 1e-11) -> tuple[float, Float] | None:
    """Lanczos with full reorthogonalisation from the longest column; None if it has not converged."""
    K = len(M)
    q = M[:, int(np.argmax(np.diagonal(M)))]
    q = q + 1e-3 * float(np.linalg.norm(q)) / np.sqrt(K)  # not orthogonal to everything else by symmetry
    if not np.linalg.norm(q) > 0:
        return None
    Q = np.zeros((steps + 1, K))
    Q[0] = q / np.linalg.norm(q)
    diagonal, beside = np.zeros(steps), np.zeros(steps)
    for n in range(steps):
        r = M @ Q[n]
        diagonal[n] = Q[n] @ r
        for _ in range(2):
            r = r - Q[: n + 1].T @ (Q[: n + 1] @ r)
        beside[n] = np.linalg.norm(r)
        T = np.diag(diagonal[: n + 1]) + np.diag(beside[:n], 1) + np.diag(beside[:n], -1)
        if n % 5 == 4 or beside[n] <= tolerance * abs(diagonal[0]):
            values, vectors = np.linalg.eigh(T)
            if beside[n] * abs(vectors[-1, -1]) <= tolerance * abs(values[-1]):
                v = Q[: n + 1].T @ vectors[:, -1]
                return float(values[-1]), v / np.linalg.norm(v)
            if beside[n] == 0.0:
                return None
        Q[n + 1] = r / beside[n] if beside[n] > 0 else 0.0
    return None
