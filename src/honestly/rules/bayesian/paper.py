"""The published rule, Eq. 11-16 and Algorithm 1 of the paper, from residuals alone."""

from __future__ import annotations

import numpy as np

from honestly.result import Float, Status
from honestly.rules.rule import Geometry, Mix

START = 0.95  # Algorithm 1 starts at pi = 1, which Eq. 16 never leaves; the authors' code starts its inner loop here
INNER, OUTER, TOLERANCE = 100, 100, 1e-3  # as in the authors' code


def paper_mix(geometry: Geometry, *, scale_free: bool) -> Mix:
    """Algorithm 1; `scale_free` leaves `ln(2 pi sigma^2)` out of Eq. 14.

    Convergence is a change of the mean by less than a thousandth of sigma, where the authors compare with the length of
    the mean: that depends on the origin.
    """
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
        a = pi / pi.sum()
        old, r2 = r2, geometry.residuals(a)
        # |new mean - old mean|^2 = sum_k a_k (r_k(old)^2 - r_k(new)^2)
        moved = float(a @ (old - r2))
        sigma2 = float(a @ r2)
        if moved <= TOLERANCE**2 * sigma2:
            status = Status.CONVERGED
            break
    if sigma2 <= 0.0:
        status = Status.MAJORITY_IDENTICAL
    report = {"spread": float(np.sqrt(sigma2)), "eps": 1.0 - float(pi.mean())}
    return Mix.of_weights(a, honesty=pi, status=status, steps=steps, diagnostics=report)


def fixed_point(log_p: Float) -> Float:
    """Eq. 16 iterated from `pi = START`: `pi_k = 1 / (1 + eps / (1 - eps) / p_k)`, `eps = 1 - mean(pi)`."""
    pi = np.full(len(log_p), START)
    for _ in range(INNER):
        mean = float(pi.mean())
        if not 0.0 < mean < 1.0:
            break
        logit = np.log(mean / (1.0 - mean)) + log_p
        new = 1.0 / (1.0 + np.exp(np.clip(-logit, -700.0, 700.0)))
        change = float(np.abs(new - pi).max())
        pi = new
        if change < TOLERANCE:
            break
    return pi
