"""The geometric median, converged, with a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from honestly.result import Float, Status
from honestly.rules._lib.neighbours import majority, majority_mean
from honestly.rules._lib.weiszfeld import inverse_weights
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting
from honestly.rules.sizes import by_size, reported_sizes, size_shares

PASSES, SETTLED = 15, 1e-4


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances to the clients.

        z = argmin_z P(z),    P(z) = sum_k ||w_k - z||
        Weiszfeld:  b_k = 1 / ||w_k - z||,   z <- sum_k b_k w_k / sum_k b_k

    Only residuals are used. Every step has a certificate: let z be the old point, z' the new one, r and r' their
    distances to the clients. u_k = (w_k - z') / r_k sums to 0; cut to length 1 where r'_k > r_k, it is feasible for the
    dual but for a sum of length at most e. A majority h = floor(K/2) + 1 confines the minimum to a ball around z' of
    radius 2 S / (2h - K), S the sum of the h smallest r'. Hence

        P(z') - min P <= gap = sum_k r'_k (1 - r'_k / r_k)_+  +  e * 2 S / (2h - K),    e = sum_k (r'_k / r_k - 1)_+

    The rule stops when gap <= tolerance * S: attackers, however far, enter neither side. Where an iterate comes near a
    client, that client is tested for optimality (Vardi and Zhang) and returned exactly or left behind by their step.
    With trusted sizes s_k all of this holds for P(z) = sum_k s_k ||w_k - z||: sums over clients are weighted by s, and
    the majority is one of their weight.

    Args:
        sizes: "capped" multiplies the weights of the median by the reported sizes, capped, as the engine does for most
            rules. "trusted" weighs the distances by them as they are: only for sizes that nobody can lie about.
        tolerance: the duality gap, relative to S, at which to stop.
        steps: the limit of steps.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0], [4.0, 3.0], [2.0, 1.5]])
        >>> GeometricMedian().mix(GramGeometry(X @ X.T)).matrix @ X
        array([[2. , 1.5]])

    References: Weiszfeld, Tohoku Math. J. 43, 1937; Vardi and Zhang, PNAS 97(4), 2000.
    """

    tolerance: float = setting(1e-9, above=0.0, below=1.0)
    steps: int = setting(1000, whole=True, least=1)
    sizes: Literal["capped", "trusted"] = setting("capped", among=("capped", "trusted"), later=True)

    name: ClassVar[str] = "geometric_median"
    summary: ClassVar[str] = "the point with the smallest sum of distances to the clients"
    reference: ClassVar[str] = "Weiszfeld 1937; Vardi and Zhang 2000"
    streams: ClassVar[bool] = True
    uses_sizes: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """Weights of the geometric median."""
        if self.sizes == "trusted":
            s = reported_sizes(self, geometry)
            s = s / s.max()
            mix = self._minimise(geometry, s)
            return replace(mix, diagnostics={**mix.diagnostics, **size_shares(s, s)})
        mix = self._minimise(geometry, None)
        return mix if geometry.sizes is None else by_size(mix, geometry.sizes)

    def _minimise(self, geometry: Geometry, s: Float | None) -> Mix:
        """The median of clients that weigh s, or all the same."""
        pull = 1.0 if s is None else s
        a = majority_mean(geometry)
        r = np.sqrt(geometry.residuals(a))
        tested: set[int] = set()
        gap = np.inf
        # Where every step is a pass over the data, it ends when no distance changes by more than a ten-thousandth.
        steps, settled = (min(self.steps, PASSES), SETTLED) if geometry.streaming else (self.steps, 0.0)
        for step in range(1, steps + 1):
            nearest, median = int(np.argmin(r)), _median(r)
            # Closer to a client than a thousandth of the median distance: Weiszfeld would slow down or divide by 0.
            if r[nearest] <= 1e-3 * median and nearest not in tested:
                tested.add(nearest)
                optimal, a, r = _leave_client(geometry, nearest, s)
                if optimal:
                    return _make_mix(a, r * pull, 0.0, step, Status.CONVERGED)
            # A client that was left behind keeps a finite pull.
            old = np.maximum(r, 1e-15 * median + np.finfo(float).tiny)
            a = inverse_weights(old, pull)
            r = np.sqrt(geometry.residuals(a))
            S, excess = _nearest_majority(r, s)
            # Changes in the last few bits of a residual mean nothing.
            change = np.where(np.abs(r - old) > 8 * np.finfo(float).eps * old, r / old - 1.0, 0.0)
            e = float((pull * np.maximum(change, 0.0)).sum())
            gap = float((pull * r * np.maximum(-change, 0.0)).sum()) + e * 2.0 * S / excess
            if gap <= self.tolerance * S or np.abs(change).max() <= settled:
                return _make_mix(a, pull * r, gap, step, Status.CONVERGED)
        return _make_mix(a, pull * r, gap, steps, Status.STEP_LIMIT)


def _nearest_majority(r: Float, s: Float | None) -> tuple[float, float]:
    """S, the sum of distances to the nearest clients that outweigh the others, and by how much they do."""
    if s is None:
        h = majority(len(r))
        return float(np.partition(r, h - 1)[:h].sum()), float(2 * h - len(r))
    near = np.argsort(r, kind="stable")
    weight = np.cumsum(s[near])
    few = int(np.argmax(2.0 * weight > weight[-1])) + 1
    return float((s * r)[near[:few]].sum()), float(2.0 * weight[few - 1] - weight[-1])


def _median(r: Float) -> float:
    """`np.median(r)`, which takes longer to check its argument than a step takes."""
    ranked, K = np.sort(r), len(r)
    return float(0.5 * (ranked[(K - 1) // 2] + ranked[K // 2]))


def _make_mix(a: Float, r: Float, gap: float, steps: int, status: Status) -> Mix:
    """The result for distances r, weighted: `gap` bounds how far their sum can be above its minimum."""
    return Mix.of_weights(a, status=status, steps=steps, diagnostics={"sum_of_distances": float(r.sum()), "gap": gap})


def _leave_client(geometry: Geometry, j: int, s: Float | None) -> tuple[bool, Float, Float]:
    """Whether client j is the geometric median; if not, the Vardi-Zhang step away from it.

    With m clients (or clients of weight m) at w_j and `R = sum of (w_k - w_j) / |w_k - w_j|` over the others, w_j is
    optimal if |R| <= m; else the step goes to `(1 - m/|R|) c + m/|R| w_j` with c the Weiszfeld mean of the others.
    """
    at = np.zeros(geometry.K)
    at[j] = 1.0
    r = np.sqrt(geometry.residuals(at))
    pull = np.ones_like(r) if s is None else s
    away = (r > 1e-6 * float(np.median(r))) & (pull > 0.0)  # closer than that, they differ by rounding only
    m = float(pull[~away].sum())
    if not away.any():
        return True, at, r
    b = np.zeros_like(r)
    b[away] = pull[away] / r[away]
    c = b / b.sum()
    R = float(b.sum() * np.sqrt(geometry.residuals(c)[j]))
    if m >= R:
        return True, at, r
    a = (1.0 - m / R) * c + (m / R) * at
    return False, a, np.sqrt(geometry.residuals(a))
