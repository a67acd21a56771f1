"""One round as a game: the honest clients are fixed, the attackers choose coefficients over a small basis."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from honestly.engine import Pipeline
from honestly.result import Float
from honestly.sim.attacks.attack import Array, View
from honestly.sim.attacks.span import Span
from honestly.sim.attacks.vectors import gram, host, mean, norm, normal, of_length, spread, std


@dataclass(frozen=True)
class Game:
    """What the attackers can send, and how far it would move the aggregate.

    Attributes:
        basis: (n, d) honest updates about their mean, the mean, the attackers' own updates about it, a random vector,
            minus the standard deviation, one noise vector for each attacker (the last three as long as the spread), and
            the root update if the rule has one.
        spread: root mean squared distance of the honest updates to their mean (never 0).
        tries: the displacement by each lie that was tried, in the order of the queries.
    """

    view: View
    pipeline: Pipeline
    basis: Array
    span: Span
    spread: float
    tries: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, view: View, pipeline: Pipeline, *, columns: int) -> Game:
        """The game of one round against the rule; coordinate-wise rules see at most this number of columns."""
        xp, honest = view.xp, view.honest
        mu, d = mean(honest), int(view.own.shape[1])
        s = spread(honest) or norm(mu) or 1.0
        aside = [of_length(v, s) for v in (normal(view, (d,)), -std(honest))]
        noise = normal(view, (view.M, d)) * (s / np.sqrt(d))
        rows = [honest - mu[None, :], mu[None, :], view.own - mu[None, :], xp.stack(aside), noise]
        if pipeline.rule.root is not None:
            root = xp.asarray(pipeline.rule.root, dtype=view.own.dtype, device=view.own.device)
            rows.append((root - mu)[None, :])
        basis = xp.concat(rows, axis=0)
        chosen = np.arange(d) if d <= columns else np.sort(view.rng.choice(d, size=columns, replace=False))
        at = xp.asarray(chosen, device=view.own.device)
        n = int(basis.shape[0])
        root_at = None if pipeline.rule.root is None else n - 1
        layers = view.layers if len(chosen) == d else ()
        span = Span(gram(basis), int(honest.shape[0]), host(basis[:, at]), host(mu[at]), d, root_at, layers)
        return cls(view, pipeline, basis, span, s)

    def can_be_asked(self) -> bool:
        """Whether the rule answers here: not if it needs what the game does not have, or more clients."""
        if not np.isfinite(self.span.products).all():  # nothing will be asked
            return True
        try:
            self.span.answer(self.pipeline, np.vstack([np.eye(self.H, self.n), self.each("own")]))
        except ValueError:
            return False
        return True

    @property
    def H(self) -> int:
        """Number of honest clients."""
        return int(self.view.honest.shape[0])

    @property
    def n(self) -> int:
        """Number of vectors in the basis."""
        return len(self.span.products)

    def at(self, block: str, index: int = 0) -> Float:
        """(n,) coefficients of one vector of the basis, by the name of its block."""
        start = {"honest": 0, "mean": self.H, "own": self.H + 1, "random": self.H + 1 + self.view.M}
        start |= {"std": start["random"] + 1, "noise": start["random"] + 2}
        return self.span.at(start[block] + index)

    def each(self, block: str) -> Float:
        """(M, n) coefficients of a block with one vector for each attacker."""
        return np.stack([self.at(block, m) for m in range(self.view.M)])

    def directions(self) -> dict[str, Float]:
        """Coefficients of directions as long as the honest spread; those that have no length are left out."""
        C = self.span.products[: self.H, : self.H]
        if not np.isfinite(self.span.products).all():  # the model is destroyed already
            return {}
        eigenvectors = np.linalg.eigh(C)[1]
        directions = {
            "against": -self.at("mean"),
            "along": self.at("mean"),
            "random": self.at("random"),
            "std": self.at("std"),
            "farthest": self.at("honest", int(np.diagonal(C).argmax())),
        }
        for i in range(1, min(2, self.H - 1) + 1):
            v = eigenvectors[:, -i]
            v = v * np.sign(v[np.abs(v).argmax()])  # the sign is arbitrary: fix it
            directions[f"principal{i}"] = np.concatenate([v, np.zeros(self.n - self.H)])
        lengths = {name: float(np.sqrt(max(c @ self.span.products @ c, 0.0))) for name, c in directions.items()}
        long = [name for name, length in lengths.items() if length > 1e-6 * self.spread]
        return {name: directions[name] * (self.spread / lengths[name]) for name in long}

    def displacement(self, rows: Float) -> float:
        """How far the aggregate is from the honest mean, in squared honest spreads, if attackers send these rows."""
        clients = np.concatenate([np.eye(self.H, self.n), rows])
        moved = self.span.answer(self.pipeline, clients).displacement
        self.tries.append(moved / self.spread**2 if np.isfinite(moved) else np.inf)
        return self.tries[-1]

    def vectors(self, rows: Float) -> Array:
        """(M, d) the updates that these rows stand for."""
        xp, own = self.view.xp, self.view.own
        coefficients = xp.asarray(rows, dtype=own.dtype, device=own.device)
        return coefficients @ self.basis + mean(self.view.honest)[None, :]
