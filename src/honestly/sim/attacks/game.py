"""A rule's answer to attackers who move in the span of a few vectors, from a small Gram matrix instead of the updates.

Every client is a row of coefficients W over a basis B of n vectors, `X - mean = W B`. The rule sees
`G = W (B B^T) W^T`, and how far its weights A move the aggregate, `||A W B||^2`, follows from the same n x n matrix: a
candidate costs what the rule costs on K x K numbers, whatever d is. Coordinate-wise rules get the real values of a
sample of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from honestly.result import Float
from honestly.rules.base import ColumnRule, GramGeometry, Rule
from honestly.sim.attacks.base import Array, View, gram, host, mean, norm, normal, spread, std


@dataclass(frozen=True)
class Game:
    """One round in coefficients: honest clients are fixed, the attackers choose their rows.

    Attributes:
        basis: (n, d) honest updates about their mean, the mean, the attackers' own updates about it, a random vector,
            minus the standard deviation, and one noise vector for each attacker; the last three as long as the spread.
        products: (n, n) Gram matrix of the basis.
        spread: root mean squared distance of the honest updates to their mean (never 0).
    """

    view: View
    rule: Rule
    basis: Array
    products: Float
    spread: float
    sample: Float  # (n, c) some columns of the basis
    sample_mean: Float  # (c,) the honest mean there

    @classmethod
    def of(cls, view: View, rule: Rule, *, columns: int) -> Game:
        """The game of one round against the rule."""
        xp, honest = view.xp, view.honest
        mu, d = mean(honest), int(view.own.shape[1])
        s = spread(honest) or norm(mu) or 1.0
        aside = [_of_length(v, s) for v in (normal(view, (d,)), -std(honest))]
        noise = normal(view, (view.M, d)) * (s / np.sqrt(d))
        rows = [honest - mu[None, :], mu[None, :], view.own - mu[None, :], xp.stack(aside), noise]
        basis = xp.concat(rows, axis=0)
        chosen = np.arange(d) if d <= columns else np.sort(view.rng.choice(d, size=columns, replace=False))
        at = xp.asarray(chosen, device=view.own.device)
        return cls(view, rule, basis, gram(basis), s, host(basis[:, at]), host(mu[at]))

    @property
    def H(self) -> int:
        """Number of honest clients."""
        return int(self.view.honest.shape[0])

    def at(self, block: str, index: int = 0) -> Float:
        """(n,) coefficients of one vector of the basis, by the name of its block."""
        start = {"honest": 0, "mean": self.H, "own": self.H + 1, "random": self.H + 1 + self.view.M}
        start |= {"std": start["random"] + 1, "noise": start["random"] + 2}
        row = np.zeros(len(self.products))
        row[start[block] + index] = 1.0
        return row

    def each(self, block: str) -> Float:
        """(M, n) coefficients of a block with one vector for each attacker."""
        return np.stack([self.at(block, m) for m in range(self.view.M)])

    def directions(self) -> dict[str, Float]:
        """Coefficients of directions as long as the honest spread; those that have no length are left out."""
        C = self.products[: self.H, : self.H]
        eigenvectors = np.linalg.eigh(C)[1]
        found = {
            "against": -self.at("mean"),
            "along": self.at("mean"),
            "random": self.at("random"),
            "std": self.at("std"),
            "farthest": self.at("honest", int(np.diagonal(C).argmax())),
        }
        for i in range(1, min(2, self.H - 1) + 1):
            v = eigenvectors[:, -i]
            v = v * np.sign(v[np.abs(v).argmax()])  # the sign is arbitrary: fix it
            found[f"principal{i}"] = np.concatenate([v, np.zeros(len(self.products) - self.H)])
        lengths = {name: float(np.sqrt(max(c @ self.products @ c, 0.0))) for name, c in found.items()}
        long = [name for name, length in lengths.items() if length > 1e-6 * self.spread]
        return {name: found[name] * (self.spread / lengths[name]) for name in long}

    def moved(self, rows: Float) -> float:
        """How far the aggregate is from the honest mean, in squared honest spreads, if attackers send these rows."""
        clients = np.concatenate([np.eye(self.H, len(self.products)), rows])
        reference = -self.at("mean")  # updates are differences to the reference, so it lies at minus the mean
        geometry = GramGeometry(
            clients @ self.products @ clients.T,
            tuple(range(len(clients))),
            reference_row=clients @ self.products @ reference,
            reference_norm=float(reference @ self.products @ reference),
        )
        geometry = self._with_signs(geometry, clients)
        for mixer in self.view.pre:
            clients, geometry = self._mixed(mixer.mix(geometry), clients, geometry)
        offset = self._mixed(self.rule.mix(geometry).matrix, clients, None)[0]
        if isinstance(self.rule, ColumnRule):
            values = np.sort(offset @ self.sample + self.sample_mean, axis=0)
            gap = np.asarray(self.rule.reduce(values, cast(Any, np))) - self.sample_mean
            d = int(self.view.own.shape[1])
            squared = float(gap @ gap) * d / max(len(gap), 1)
        else:
            squared = float((offset @ self.products * offset).sum())
        return squared / self.spread**2 if np.isfinite(squared) else np.inf

    def _mixed(self, A: Float, W: Float, geometry: GramGeometry | None) -> tuple[Float, Any]:
        """Coefficients and geometry of `A X`; what the rows of A lack to 1 is the reference's share."""
        share = 1.0 - A.sum(axis=1)
        mixed = A @ W - share[:, None] * self.at("mean")
        return mixed, None if geometry is None else self._with_signs(geometry.mixed(A), mixed)

    def _with_signs(self, geometry: GramGeometry, W: Float) -> GramGeometry:
        """The geometry with what sign-based rules ask for, estimated on the sample of columns."""
        if not hasattr(geometry, "signs"):
            return geometry
        values = W @ self.sample + self.sample_mean

        def signs() -> Float:
            return np.stack([(values > 0).sum(1), (values == 0).sum(1), (values < 0).sum(1)], axis=1).astype(np.float64)

        change: dict[str, Callable[[], Float]] = {"signs": signs}
        return replace(geometry, **cast(Any, change))

    def vectors(self, rows: Float) -> Array:
        """(M, d) the updates that these rows stand for."""
        xp, own = self.view.xp, self.view.own
        coefficients = xp.asarray(rows, dtype=own.dtype, device=own.device)
        return coefficients @ self.basis + mean(self.view.honest)[None, :]


def _of_length(x: Array, length: float) -> Array:
    size = norm(x)
    return x * (length / size) if size > 0.0 else x
