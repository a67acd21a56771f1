"""Algebra of weighted sums of products `B_k A_k` through their small Gram matrices, of size R = sum of the ranks.

With the factors of K clients side by side, `B = [B_1 ... B_K]` (scaled) and `A = [A_1; ...; A_K]`, every result has the
form `B T_B T_A A`, and all that is to be known of it follows from `M_A = A A^T` and `M_B = B^T B`:

    <B_i A_i, B_j A_j> = trace((B_i^T B_j)(A_j A_i^T)) = sum of the entries of block (i, j) of M_A * M_B
    ||B E A||_F^2      = trace(E^T M_B E M_A)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from honestly.result import Float

#: A product this much smaller than its factors, ||B A|| / (||B|| ||A||), is rounding: the factors cancel each other.
VANISHING = 1e-6


def sum_blocks(products: Float, ranks: Sequence[int]) -> Float:
    """(K, K) sums over the r_i x r_j blocks of an R x R matrix."""
    starts = np.concatenate([[0], np.cumsum(ranks)[:-1]]).astype(int)
    return np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)


def vanishing(squares: Float, a: Float, b: Float) -> np.ndarray:
    """Which products are zero or nothing but rounding, from `||B A||^2`, `||A||^2` and `||B||^2`."""
    return np.isfinite(squares) & np.isfinite(a * b) & (squares <= VANISHING**2 * a * b)


def balanced(
    MA: Float, MB: Float, ranks: Sequence[int], weights: Float, which: Sequence[bool] | np.ndarray
) -> tuple[Float, Float]:
    """(T_A, T_B), block-diagonal: `T_A A` and `B T_B` are factors of each `w_k B_k A_k` that are equally long.

    `B_k C` and `C^-1 A_k` have the same product for every C, so a client may send factors of any size, and even ones
    that cancel each other. Beside them those of all others would be lost in rounding. Products that are nothing but
    rounding become zero. Of clients that are not in `which` the factors stay as they are, B times the weight.
    """
    TA, TB = np.zeros_like(MA), np.zeros_like(MB)
    stop = 0
    for rank, weight, chosen in zip(ranks, weights, which, strict=True):
        start, stop = stop, stop + rank
        block = slice(start, stop), slice(start, stop)
        a, b = MA[block], MB[block]
        if not chosen:
            TA[block], TB[block] = np.eye(rank), weight * np.eye(rank)
        elif not vanishing(np.asarray((a * b).sum()), np.trace(a), np.trace(b)):
            root = np.sqrt(abs(weight))
            a, b = best_factors(np.ones(rank), a, b, rank)
            TA[block], TB[block] = root * a, np.copysign(root, weight) * b
    return TA, TB


def squared_norm(E: Float, MA: Float, MB: Float) -> float:
    """`||B E A||_F^2`."""
    return float(max(0.0, ((MB @ E @ MA) * E).sum()))


def best_factors(D: Float, MA: Float, MB: Float, rank: int) -> tuple[Float, Float]:
    """(T_A, T_B), (rank, R) and (R, rank), of the best approximation of `B diag(D) A` of that rank.

    `A = S_A^(1/2)`-whitened rows: with `M_A = U_A L_A U_A^T` the rows of `L_A^(-1/2) U_A^T A` are orthonormal, likewise
    the columns of `B U_B L_B^(-1/2)`, so the singular values of the product are those of the small matrix between.
    """
    LA, UA = _eigen(MA)
    LB, UB = _eigen(MB)
    core = (np.sqrt(LB)[:, None] * (UB.T * D[None, :])) @ (UA * np.sqrt(LA)[None, :])
    P, sigma, QT = np.linalg.svd(core, full_matrices=False)
    few = min(rank, len(sigma))
    root = np.sqrt(sigma[:few])
    TA, TB = np.zeros((rank, len(D))), np.zeros((len(D), rank))
    TA[:few] = root[:, None] * ((QT[:few] / np.sqrt(LA)[None, :]) @ UA.T)
    TB[:, :few] = (UB / np.sqrt(LB)[None, :]) @ (P[:, :few] * root[None, :])
    return TA, TB


def _eigen(M: Float) -> tuple[Float, Float]:
    """Eigenvalues and vectors of a Gram matrix, without those that are zero but for rounding."""
    values, vectors = np.linalg.eigh(M)
    large = values > len(M) * np.finfo(np.float64).eps * max(values[-1], np.finfo(np.float64).tiny)
    return values[large], vectors[:, large]
