"""FLDetector: removes clients whose updates do not follow from their earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.result import ClientId, Float
from honestly.rules._lib.kmeans import clusters_by_gap, kmeans
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class FLDetectorMemory:
    """What FLDetector remembers: the last gradients, the last steps of the model, every client's scores.

    Attributes:
        ids, gradients: the clients of the last round and their gradients `-(w_k - reference)`, (K, d).
        step: (d,) how the model moved in the last round.
        mean: (d,) the mean gradient of the last round.
        steps, changes: (n, d) the last changes of the model and of the mean gradient, for L-BFGS.
        scores: id -> the last normalised distances to the prediction.
        removed: clients that were found to lie; they stay removed.
    """

    ids: tuple[ClientId, ...] = ()
    gradients: Float = field(default_factory=lambda: np.zeros((0, 0)))
    step: Float = field(default_factory=lambda: np.zeros(0))
    mean: Float = field(default_factory=lambda: np.zeros(0))
    steps: Float = field(default_factory=lambda: np.zeros((0, 0)))
    changes: Float = field(default_factory=lambda: np.zeros((0, 0)))
    scores: Mapping[ClientId, tuple[float, ...]] = field(default_factory=dict[ClientId, tuple[float, ...]])
    removed: tuple[ClientId, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FLDetector(Rule):
    """The mean of the clients whose gradients can be predicted from those of the round before.

        prediction:  g_k^t = g_k^(t-1) + H (w^t - w^(t-1)),   H by L-BFGS from the last ``window`` rounds
        score:       d_k = ||prediction - g_k^t|| over their mean;  s_k = mean of the last ``window`` of them
        If the gap statistic sees more than one cluster of scores, k-means makes two: those of the higher are removed.

    g = -(w_k - reference). Made against attackers whose lies differ from round to round. Before there are ``window``
    rounds to learn from, and without attackers, it is the mean. Conventions: a removed client stays removed; the
    authors also restart the training, which is left to the caller; clients that were not there in the last round
    are believed; half of the known clients or more are never removed, over all rounds; distances are divided by their
    mean (the paper: by their sum, which is the same unless clients come and go). It keeps K + 2 ``window`` + 2 whole
    updates in memory. Removed clients have weight 0 and are listed in `diagnostics["removed"]`.

    Args:
        window: rounds to learn from; the authors' 10.
        memory: what earlier rounds left in `diagnostics["memory"]`; `rule.after(out.diagnostics)` carries it on.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> from honestly.rules.geometry import Coordinates
        >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> seen = GramGeometry(X @ X.T, mixed_coordinates=lambda A: Coordinates((X,), (np.zeros(2),)))
        >>> FLDetector().mix(seen).matrix
        array([[0.5, 0.5]])

    Reference: Zhang et al., FLDetector: Defending FL Against Model Poisoning via Detecting Malicious Clients, KDD 2022.
    """

    window: int = setting(10, whole=True, least=1)
    memory: FLDetectorMemory | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "fl_detector"
    summary: ClassVar[str] = "removes clients whose updates do not follow from their earlier ones"
    reference: ClassVar[str] = "Zhang et al., KDD 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"memory", "reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for those who were never removed."""
        ids = tuple(geometry.ids) or tuple(range(geometry.K))
        old = self.memory or FLDetectorMemory()
        g = -np.concatenate([np.asarray(part, dtype=np.float64) for part in geometry.coordinates().updates], axis=1)
        if old.gradients.shape[1] != g.shape[1]:
            old = FLDetectorMemory(removed=old.removed)  # a model of another shape: nothing to compare with
        scores = self._score(old, ids, g)
        removed = (*old.removed, *self._caught(scores, len(old.steps), len(old.removed)))
        believed = np.array([name not in removed for name in ids])
        if not believed.any():
            believed[:] = True
        weights = believed / believed.sum()
        memory = self._remember(old, ids, g, weights, scores, removed)
        return Mix.of_weights(weights, diagnostics={"memory": memory, "removed": removed})

    def _score(
        self, old: FLDetectorMemory, ids: tuple[ClientId, ...], g: Float
    ) -> Mapping[ClientId, tuple[float, ...]]:
        """The scores with this round's distances."""
        place = {name: i for i, name in enumerate(old.ids)}
        known = [k for k, name in enumerate(ids) if name in place and name not in old.removed]
        if len(old.steps) < self.window or not known:
            return old.scores
        predicted = old.gradients[[place[ids[k]] for k in known]] + hessian_times(old.steps, old.changes, old.step)
        apart = np.linalg.norm(predicted - g[known], axis=1)
        total = float(apart.sum())
        rounding = 1e-6 * float(np.linalg.norm(g[known], axis=1).sum())
        # not shares of the sum: in a round with few clients every share is large
        apart = apart * (len(known) / total) if total > rounding else np.ones(len(known))
        fresh = {ids[k]: (*old.scores.get(ids[k], ()), float(a)) for k, a in zip(known, apart, strict=True)}
        return {**old.scores, **{name: row[-self.window :] for name, row in fresh.items()}}

    def _caught(self, scores: Mapping[ClientId, tuple[float, ...]], learned: int, before: int) -> tuple[ClientId, ...]:
        """The clients of the higher of two clusters of scores, unless half would be removed with those of `before`."""
        names = tuple(scores)
        if learned < self.window or len(names) < 3:
            return ()
        s = np.array([[float(np.mean(scores[name]))] for name in names])
        if float(np.ptp(s)) <= 1e-9 * float(s.max()) or clusters_by_gap(s, len(names)) < 2:
            return ()
        label = kmeans(s, 2)
        high = int(np.argmax([s[label == c].mean() for c in (0, 1)]))
        caught = tuple(name for name, c in zip(names, label.tolist(), strict=True) if c == high)
        return caught if 2 * (before + len(caught)) < before + len(names) else ()

    def _remember(
        self, old: FLDetectorMemory, ids: tuple[ClientId, ...], g: Float, weights: Float,
        scores: Mapping[ClientId, tuple[float, ...]], removed: tuple[ClientId, ...],
    ) -> FLDetectorMemory:  # fmt: skip
        """The memory after this round, without the updates of removed clients."""
        mean = weights @ g
        steps, changes = old.steps, old.changes
        if len(old.ids):
            steps = np.vstack([steps.reshape(-1, g.shape[1]), old.step])[-self.window :]
            changes = np.vstack([changes.reshape(-1, g.shape[1]), mean - old.mean])[-self.window :]
        histories = {name: row for name, row in scores.items() if name not in removed}
        return FLDetectorMemory(
            ids=ids, gradients=g, step=-mean, mean=mean, steps=steps, changes=changes, scores=histories, removed=removed
        )


def hessian_times(S: Float, Y: Float, v: Float) -> Float:
    """(d,) `H v` for the Hessian that L-BFGS makes of steps S and changes of the gradient Y, (n, d) each.

        H v = sigma v - [sigma S, Y]^T [[sigma S S^T, L], [L^T, -D]]^-1 [sigma S v; Y v],  sigma = y_n.s_n / s_n.s_n

    L is the part of `S Y^T` below the diagonal, D its diagonal. Directions in which nothing is known are left out.

    Example:
        >>> hessian_times(np.eye(2), np.diag([2.0, 3.0]), np.array([1.0, 1.0]))
        array([2., 3.])
    """
    last = float(S[-1] @ S[-1])
    if not last > 0:
        return np.zeros_like(v)
    sigma = float(Y[-1] @ S[-1]) / last
    SY = S @ Y.T
    L = np.tril(SY, -1)
    middle = np.block([[sigma * (S @ S.T), L], [L.T, -np.diag(np.diagonal(SY))]])
    right = np.concatenate([sigma * (S @ v), Y @ v])
    p = np.linalg.lstsq(middle, right, rcond=1e-10)[0]
    return sigma * v - np.concatenate([sigma * S, Y]).T @ p
