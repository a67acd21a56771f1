"""The published rule, Eq. 11-16 and Algorithm 1 of the paper, on the Gram matrix."""

from __future__ import annotations

import numpy as np

from honestly.result import Float, Status
from honestly.rules.base import Geometry, Mix

START = 0.95  # Algorithm 1 starts at pi = 1, which Eq. 16 never leaves; the authors' code starts here
INNER, OUTER, TOLERANCE = 100, 100, 1e-3


def paper_mix(geometry: Geometry, *, scale_free: bool) -> Mix:
    """Algorithm 1; `scale_free` leaves `ln(2 pi sigma^2)` out of Eq. 14."""
    K = geometry.K
    pi = np.ones(K)
    a = np.full(K, 1.0 / K)
    r2 = geometry.residuals(a)
    sigma2 = float(r2.mean())
    steps, status = 0, Status.STEP_LIMIT
    while steps < OUTER and sigma2 > 0.0:
        steps += 1
        log_p = -0.5 * (r2 / sigma2 + (0.0 if scale_free else np.log(2.0 * np.pi * sigma2)))
        pi = fixed_point(log_p)
        new = pi / pi.sum()
        # relative change of the mean: |sum (new - a) w| / |sum a w|, both about the mean of all clients
        moved = _squared_distance(geometry, new, a)
        a, r2 = new, geometry.residuals(new)
        sigma2 = float(pi @ r2 / pi.sum())
        if moved <= TOLERANCE**2 * sigma2:
            status = Status.CONVERGED
            break
    if sigma2 <= 0.0:
        status = Status.MAJORITY_IDENTICAL
    return Mix.of_weights(
        a, honesty=pi, status=status, steps=steps, diagnostics={"spread": float(np.sqrt(sigma2)), "eps": 1 - pi.mean()}
    )


def fixed_point(log_p: Float) -> Float:
    """Eq. 16 iterated from `pi = START`: `pi_k = 1 / (1 + eps / (1 - eps) / p_k)`, `eps = 1 - mean(pi)`."""
    pi = np.full(len(log_p), START)
    for _ in range(INNER):
        mean = pi.mean()
        if mean in (0.0, 1.0):
            break
        logit = np.log(mean / (1.0 - mean)) + log_p
        new = 1.0 / (1.0 + np.exp(np.clip(-logit, -700.0, 700.0)))
        change = np.abs(new - pi).max()
        pi = new
        if change < TOLERANCE:
            break
    return pi


def _squared_distance(geometry: Geometry, a: Float, b: Float) -> float:
    """`|sum_k (a_k - b_k) w_k|^2` from residuals: `sum_k a_k (r_k(b)^2 - r_k(a)^2)`."""
    return max(float(a @ (geometry.residuals(b) - geometry.residuals(a))), 0.0)
