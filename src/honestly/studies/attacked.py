"""One attacked round and the score of a rule in it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property
from honestly.result import Float
from honestly.sim.attacks.span import Span
from honestly.studies.layers.measure import accused_by
from honestly.studies.scores import detection_auc
from honestly.studies.specs import Contestant


@dataclass(frozen=True)
class Case:
    """One rule in one attacked round.

    Attributes:
        attack: its word; "none" for no attacker.
        believed: the f that the rule was told; None for a rule that needs none.
        guessed: True if ``believed`` was given to the study, False if it is the true number (or the largest accepted).
        kappa: squared distance of the aggregate to the honest mean in honest variances.
        auc: probability that an honest client is believed more than a malicious one.
        accused: share of the honest clients that the rule turned against (its verdict, or else honesty below 1/2; for
            a rule without honesty, a weight below a tenth of an equal share); None for coordinate-wise rules.
        missed: share of the malicious clients that it did not turn against.
        estimated: how many usable clients a rule that infers honesty accused.
        honesty: of each client, attackers last; None unless inferred.
        seconds: the rule's own time.
        layer: the largest kappa of a layer, and ``where`` it is; None for a population without layers.
        tries: how many lies an attacker that searches tried.
    """

    population: str
    recorded: bool
    seed: int
    clients: int
    malicious: int
    attack: str
    rule: str
    believed: int | None
    guessed: bool
    kappa: float
    auc: float | None
    accused: float | None
    missed: float | None
    estimated: float | None
    honesty: list[float] | None
    seconds: float
    layer: float | None = None
    where: str | None = None
    tries: int | None = None

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class AttackedRound:
    """The updates that a server got: honest clients first, attackers last; ``tries`` of an attacker that searches."""

    honest: Float
    forged: Float
    root: Float
    tries: int | None = None

    @cached_property
    def usable(self) -> npt.NDArray[np.bool_]:
        """(K,) False for a client with NaN or Inf, which is refused before any rule sees it."""
        return np.all(np.isfinite(np.concatenate([self.honest, self.forged])), axis=1)

    @cached_property
    def mean(self) -> Float:
        """(d,) mean of the honest clients."""
        return self.honest.mean(axis=0)

    @cached_property
    def variance(self) -> float:
        """Mean squared distance of the honest clients to their mean."""
        return float(np.square(self.honest - self.mean).sum(axis=1).mean())

    @cached_property
    def span(self) -> Span:
        """The usable clients about the honest mean, the mean, and the root."""
        X = np.concatenate([self.honest, self.forged])[self.usable]
        basis = np.concatenate([X - self.mean, self.mean[None, :], (self.root - self.mean)[None, :]])
        n = len(X)
        return Span(basis @ basis.T, n, basis, self.mean, len(self.mean), n + 1)

    @cached_property
    def ranked(self) -> Float:
        """The sorted columns of all usable clients, shared by the coordinate-wise rules."""
        return self.span.sort_columns(np.eye(len(self.span.products) - 2, len(self.span.products)))

    def score(self, contestant: Contestant, f: int) -> dict[str, Any]:
        """Score the rule."""
        K, M = len(self.usable), len(self.forged)
        pipeline, believed = contestant.build(K=K, f=f, root=self.root)
        n = int(self.usable.sum())
        shared = self.ranked if pipeline.reduces_clients else None
        span = self.span  # made on first use: not the rule's time
        start = time.perf_counter()
        answer = span.answer(pipeline, np.eye(n, n + 2), shared)
        seconds = time.perf_counter() - start
        honesty = None if pipeline.mixers or answer.mix.honesty is None else self._to_all(answer.mix.honesty)
        weights = None if answer.weights is None else self._to_all(answer.weights)
        belief = honesty if honesty is not None else weights
        liar = np.arange(K) >= K - M
        accused = missed = auc = against = None
        if belief is not None and answer.weights is not None:
            against = np.ones(K, dtype=bool)  # a client that was refused is not believed either
            against[self.usable] = accused_by(
                answer.mix, None if honesty is None else honesty[self.usable], answer.weights
            )
            accused = float(against[~liar].mean())
            missed = float((~against[liar]).mean()) if M else None
            auc = detection_auc(belief, liar.tolist())
        return {
            "believed": believed if contestant.needs_f else None,
            "kappa": answer.displacement / self.variance if np.isfinite(answer.displacement) else float("inf"),
            "auc": auc,
            "accused": accused,
            "missed": missed,
            "estimated": None if honesty is None or against is None else float(against[self.usable].sum()),
            "honesty": None if honesty is None else [round(float(p), 6) for p in honesty],
            "seconds": seconds,
            "tries": self.tries,
        }

    def _to_all(self, values: Float) -> Float:
        full = np.zeros(len(self.usable))
        full[self.usable] = values
        return full
