"""RoDiLoCo: workers are weighted by how well they agreed with the averages of earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.result import ClientId, Float
from honestly.rules._lib.weiszfeld import take_steps
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting

STEPS = 32  # of Weiszfeld, in the first round
MOST_TIMES = 1000.0  # the median length over the length that an update about a reference is divided by
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, kw_only=True)
class RoDiLoCoMemory:
    """What RoDiLoCo remembers: the last average update, (d,), and the trust score of every client."""

    average: Float = field(default_factory=lambda: np.zeros(0))
    scores: Mapping[ClientId, float] = field(default_factory=dict[ClientId, float])


@dataclass(frozen=True, kw_only=True)
class RoDiLoCo(Rule):
    """A weighted mean of unit vectors, by trust, with the median length.

        s_k <- beta s_k + (1 - beta) cos(u_k, last average);    a = softmax(s / temperature)
        v = sum_k a_k u_k / ||u_k||;    value = reference + v median_j ||u_j|| / ||v||

    u_k = w_k - reference. Made for DiLoCo: few workers, few and large steps. The first round, in which there is nothing
    to compare with, gives the geometric median. Nobody is excluded; only weights shrink. The length of an update has no
    effect. The value is as long as a single update, which is longer than a mean where clients disagree. Conventions:
    the geometric median starts from the majority nearest to the mean; a newcomer's score is 0; if the unit vectors
    cancel, the model stays as it is; about a reference, an update shorter than a thousandth of the median length adds
    as much less: made longer than that, the last bit of a single value is the models' rounding. Clipping about the last
    average, which the authors also try, is not a mean of this round's updates and the reference; `centered_clipping`
    starts from the reference instead.

    Args:
        beta: share of the past in a score; the authors' 0.9.
        temperature: of the softmax; the authors' 0.1.
        memory: what earlier rounds left in `diagnostics["memory"]`; `rule.after(out.diagnostics)` carries it on.

    Example:
        >>> from honestly.rules.geometry import Coordinates
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [-9.0, 0.0]])
        >>> seen = GramGeometry(X @ X.T, mixed_coordinates=lambda A: Coordinates((X,), (np.zeros(2),)))
        >>> rule = RoDiLoCo(beta=0.0)
        >>> rule.after(rule.mix(seen).diagnostics).mix(seen).matrix.round(2)
        array([[0.33, 0.35, 0.33, 0.  ]])

    Reference: RoDiLoCo, Byzantine-robust low-communication distributed training, 2026 (its public code).
    """

    beta: float = setting(0.9, least=0.0, below=1.0)
    temperature: float = setting(0.1, above=0.0)
    memory: RoDiLoCoMemory | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "rodiloco"
    summary: ClassVar[str] = "unit vectors weighted by agreement with earlier averages, at the median length"
    reference: ClassVar[str] = "RoDiLoCo, 2026"
    needs: ClassVar[frozenset[str]] = frozenset({"memory", "reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Weights by trust over the lengths."""
        ids = tuple(geometry.ids) or tuple(range(geometry.K))
        U = np.concatenate([np.asarray(part, dtype=np.float64) for part in geometry.coordinates().updates], axis=1)
        old = self.memory or RoDiLoCoMemory()
        lengths = np.sqrt(np.einsum("kd,kd->k", U, U))
        if old.average.shape != U.shape[1:]:  # the first round, or another model
            scores = np.zeros(geometry.K)
            weights = take_steps(geometry, STEPS, lambda r: 1e-8 * float(np.median(r)) or 1e-30)  # geometric median
        else:
            per_length = np.where(lengths > 0, 1.0 / np.where(lengths > 0, lengths, 1.0), 0.0)
            size = float(np.linalg.norm(old.average))
            agree = (U @ old.average) * per_length / (size if size > 0 else 1.0)
            scores = np.array([self.beta * old.scores.get(name, 0.0) for name in ids]) + (1.0 - self.beta) * agree
            trust = np.exp((scores - scores.max()) / self.temperature)
            if geometry.has_reference:
                per_length = np.minimum(per_length, MOST_TIMES / max(float(np.median(lengths)), TINY))
            weights = trust / trust.sum() * per_length
            mixed = float(np.linalg.norm(weights @ U))
            weights = weights * (float(np.median(lengths)) / mixed if mixed > 1e-6 else 0.0)
        scored = {**old.scores, **dict(zip(ids, scores.tolist(), strict=True))}
        memory = RoDiLoCoMemory(average=weights @ U, scores=scored)
        return Mix.of_weights(weights, diagnostics={"memory": memory, "scores": scores})
