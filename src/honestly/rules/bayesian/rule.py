"""`Bayesian`: the default rule, which infers from the updates, layer by layer, which clients to believe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from honestly.result import Float, Status
from honestly.rules.bayesian.compiled import estimator_for, foresee_weights
from honestly.rules.bayesian.estimate import Estimate, undecided_estimate
from honestly.rules.bayesian.paper import paper_mix
from honestly.rules.bayesian.sizes import client_sizes
from honestly.rules.bayesian.streamed import stream_estimate
from honestly.rules.bayesian.verdicts import verdicts
from honestly.rules.memory import Memory
from honestly.rules.rule import Geometry, GramGeometry, Mix, Rule
from honestly.rules.settings import choice, number
from honestly.rules.sizes import size_shares


@dataclass(frozen=True, kw_only=True)
class Bayesian(Rule):
    """The average of the clients that the rule believes, each layer judged by itself. Nothing has to be set.

    Liars are found by errors in a common direction. A long error on its own is shortened.

    In every layer, and in all together, with a robust centre c, errors e_k = w_k - c and spread s (the h-th smallest
    |e_k|, h = floor(K/2) + 1):

        evidence     l_k = -(m d / 2) ln(1 - (x_k - 0.1)^2) - 3.4 ln K   x_k: mean cosine of e_k with those of m others
        honesty      pi_k = 1 / (1 + exp(max over layers of l_k))   d: effective dimension of the layer
        answer       c + sum_k v_k f_k e_k / sum_k v_k              over the clients that are not accused
        length       f_k = min(1, u s^2 / |e_k|^2)                  far on its own: shortened, not accused
        votes        v_k = 1 / sum_j max(0, cos_kj)^4               copies share a vote

    Then a guard moves the answer, in every layer, to where it is within `f / (K - f' - f)` honest variances of the
    honest mean for each number f' <= f of liars, f = ceil(K/2) - 1. No rule that is told nothing can
    promise a smaller bound. Units, origin, axes and order do not matter. Two clients are averaged, because there is no
    majority among them.

    `Mix.by_layer` has the weights, `diagnostics` has "layers" ((K, L) evidence in nats), "evidence" (log-odds of
    honesty), "votes", "spread", "eps" (share of the accused) and "groups" (near-identical updates, by id).

    Args:
        variant: "robust", or "paper": the published rule, Eq. 11-16 and Algorithm 1, kept for comparison.
        at_most: the largest share of the clients that may lie, if you know it. The promise is then better, with
            f = floor(at_most K). None: any number below half.
        scale_free: only for the paper's rule: leave out `ln sigma^2`, so the unit of the updates does not matter.
        memory: suspicion from earlier rounds; `rule.after(out.diagnostics)` carries it on. None: every round by
            itself.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(9, 1000))
        >>> X[6:] += 2 * rng.normal(size=1000)  # three err alike
        >>> X[0] *= 5.0  # one is far, alone
        >>> mix = Bayesian().mix(GramGeometry(X @ X.T))
        >>> [str(verdict) for verdict in mix.verdicts[:1] + mix.verdicts[5:]]
        ['unusual', 'trusted', 'accused', 'accused', 'accused']

    Reference: Karakulev et al., Bayesian robust aggregation for federated learning, 2025; rebuilt as in
    docs/explanation/bayesian.md.
    """

    variant: Literal["robust", "paper"] = "robust"
    at_most: float | None = None
    scale_free: bool = True
    memory: Memory | None = None

    name: ClassVar[str] = "bayesian"
    summary: ClassVar[str] = "mean of the clients that do not err alike, each layer judged by itself; nothing to tune"
    reference: ClassVar[str] = "Karakulev et al. 2025, rebuilt (docs/explanation/bayesian.md)"
    streams: ClassVar[bool] = True
    infers_honesty: ClassVar[bool] = True
    uses_sizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        choice(self, "variant", self.variant, ("robust", "paper"))
        if self.scale_free not in (True, False):
            raise ValueError(f"Bayesian: scale_free must be True or False, got {self.scale_free!r}")
        if self.at_most is not None:
            number(self, "at_most", self.at_most, least=0.0, below=0.5)
        if not (self.memory is None or hasattr(self.memory, "prior")):  # in a word or a file, memory=0.9 is enough
            raise ValueError(f"Bayesian: memory must be a Memory such as Memory(forgetting=0.9), got {self.memory!r}")
        for setting in ("memory", "at_most"):
            if getattr(self, setting) is not None and self.variant == "paper":
                raise ValueError(
                    f'Bayesian: {setting} must be None for variant="paper", got {getattr(self, setting)!r}'
                )

    def tolerated(self, K: int) -> int:
        """The number of liars among K clients that the rule tolerates: below half, or at most the given share."""
        most = (K - 1) // 2
        return most if self.at_most is None else min(most, int(self.at_most * K + 1e-9))

    def mix(self, geometry: Geometry) -> Mix:
        """Weights for every layer, and what was found about each client."""
        if self.variant == "paper":
            return paper_mix(geometry, scale_free=self.scale_free)
        K = geometry.K
        ids = tuple(geometry.ids) or tuple(range(K))
        prior = None if self.memory is None else self.memory.prior(ids)
        size = client_sizes(geometry.sizes, self.tolerated(K))
        if K <= 2:
            L = len(geometry.layer_sizes)
            estimate = undecided_estimate(np.full((L, K), 1.0 / K), Status.CLOSED_FORM)  # nothing to compare
        elif geometry.streaming:
            estimate = stream_estimate(geometry, self.tolerated, prior, size)
        else:
            estimate = estimator_for(geometry)(
                geometry.layers,
                geometry.judged,
                tolerated=self.tolerated(K),
                prior=prior,
                reference=_about_reference(geometry),
                size=size,
            )
        honesty = 1.0 / (1.0 + np.exp(np.clip(estimate.against - (0.0 if prior is None else prior), -500.0, 500.0)))
        honesty = np.where(estimate.accused, np.minimum(honesty, 0.5 - 1e-9), np.maximum(honesty, 0.5))
        judged, explanations = verdicts(estimate, geometry, ids)
        diagnostics: dict[str, Any] = {
            "groups": tuple(tuple(ids[k] for k in group) for group in estimate.groups),
            "evidence": -estimate.against,
            "votes": estimate.votes,
            "spread": estimate.spread,
            "eps": np.count_nonzero(estimate.accused) / K,
            "layers": estimate.evidence,
            "layer_names": tuple(geometry.layer_names),
            "guarded_layers": estimate.pulled,
        }
        if geometry.sizes is not None:
            diagnostics |= size_shares(geometry.sizes, np.ones(K) if size is None else size.vote)
        if self.memory is not None:
            diagnostics["memory"] = self.memory.with_round(ids, _evidence_probability(estimate))
        steps = 0 if estimate.reasons is None else estimate.reasons.rounds + 1
        return Mix.of_layers(
            estimate.weights,
            geometry.layer_sizes,
            honesty=honesty,
            status=estimate.status,
            steps=steps,
            diagnostics=diagnostics,
            verdicts=judged,
            explanations=explanations,
        )

    def foresee(self, K: int, d: int, layers: Float | None) -> Float | None:
        """The weights alone, if the C program decides and there is nothing to remember."""
        if self.variant == "paper" or self.memory is not None or layers is None or K < 3:
            return None
        return foresee_weights(layers, d, self.tolerated(K))

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The same rule with the memory of this round."""
        return self if self.memory is None else replace(self, memory=diagnostics["memory"])


def _about_reference(geometry: Geometry) -> Float | None:
    """(L, K, K) the Gram matrices of the updates themselves, if they are known without another pass."""
    if not geometry.has_reference or not isinstance(geometry, GramGeometry) or callable(geometry.about_reference):
        return None
    return geometry.layers_about_reference


def _evidence_probability(estimate: Estimate) -> Float:
    """Probability from this round's evidence alone, at even odds: what a memory may keep."""
    return 0.5 - 0.5 * np.tanh(0.5 * estimate.against)
