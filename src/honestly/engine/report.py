"""What a decision says about each client: weights, honesty, verdicts, diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.engine.pipeline import Decision
from honestly.engine.screening import Screen
from honestly.result import BELIEVED, DISBELIEVED, Float, Status, Verdict
from honestly.rules.rule import ColumnRule, Geometry, GramGeometry, Rule

#: Two clients contradict one another if their updates point in opposite directions (cosine below this), or one is this
#: many times as long as the other.
OPPOSED, TIMES_AS_LONG = -0.5, 10.0


def describe(screen: Screen, rule: Rule, decision: Decision, geometry: Geometry, *, explain: bool) -> dict[str, Any]:
    """The fields of `Aggregate` that do not depend on the value, computed while a device may still be at work."""
    mix, measured = decision.mix, isinstance(geometry, GramGeometry) and geometry.gram.strides[0] > 0
    diagnostics = {**mix.diagnostics, **screen.source.notes}
    weights: Float | None = None
    if not isinstance(rule, ColumnRule):
        own = decision.matrix[0]
        total = float(own.sum())
        weights = screen.spread(own / total if total > 0 else own)
        if abs(1 - total) > 1e-9:
            diagnostics["reference_weight"] = 1 - total
        elif measured and not explain:
            diagnostics.setdefault("distance", screen.spread(np.sqrt(_squared_distances(geometry, decision)), np.nan))
    evidence: Any = diagnostics.get("layers")
    if isinstance(evidence, np.ndarray) and decision.mixing is None and len(evidence) == len(screen.usable):
        diagnostics["layers"] = screen.spread(evidence, np.nan)
        diagnostics["layer_names"] = tuple(geometry.layer_names)
    for name in ("claimed_shares", "used_shares"):
        if name in diagnostics:
            diagnostics[name] = screen.spread(diagnostics[name])
    honesty = None if decision.honesty is None else screen.spread(decision.honesty)
    verdicts, explanations = _verdicts(screen, decision, geometry if measured else None)
    status = mix.status
    if status.ok and measured and _contradict(geometry):  # last: this may take a pass that finds faults
        status = Status.CONTRADICTION
    return {
        "weights": weights,
        "honesty": honesty,
        "status": status,
        "steps": mix.steps,
        "verdicts": verdicts,
        "explanations": explanations,
        "diagnostics": diagnostics,
    }


def _squared_distances(geometry: Geometry, decision: Decision) -> Float:
    """(k,) squared distances of the clients to the result, over the layers that are judged."""
    rows = decision.by_layer
    if rows is None or len(rows) == 1:
        return geometry.residuals(decision.matrix[0])
    mixed = np.einsum("lk,lkj->lj", rows, geometry.layers)
    norms = np.diagonal(geometry.layers, axis1=1, axis2=2)
    apart = norms - 2 * mixed + (mixed * rows).sum(axis=1, keepdims=True)
    return np.maximum(apart[geometry.judged].sum(axis=0), 0.0)


def _verdicts(
    screen: Screen, decision: Decision, geometry: Geometry | None
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """One verdict and one sentence for each of the K clients."""
    mix, honesty = decision.mix, decision.honesty
    verdicts: Sequence[Verdict] | None = mix.verdicts if decision.mixing is None else None  # else they are of mixtures
    why: Sequence[str] | None = mix.explanations if decision.mixing is None else None
    still = _unchanged_clients(screen, geometry)
    if verdicts is not None and why is not None and not screen.reasons and not still.any():
        return tuple([Verdict(verdict) for verdict in verdicts]), tuple(why)
    by_client: dict[int, tuple[Verdict, str]] = {k: (Verdict.EXCLUDED, reason) for k, reason in screen.reasons.items()}
    for j, k in enumerate(screen.usable):
        if verdicts is not None:
            verdict = Verdict(verdicts[j])
        else:
            verdict = Verdict.TRUSTED if honesty is None or honesty[j] >= 0.5 else Verdict.ACCUSED
        sentence = why[j] if why is not None else _sentence(verdict, None if honesty is None else float(honesty[j]))
        if still[j] and verdict is not Verdict.ACCUSED:
            verdict, sentence = Verdict.ABSTAINED, "sent the reference unchanged"
        by_client[k] = verdict, sentence
    ordered = [by_client[k] for k in range(screen.K)]
    return tuple(verdict for verdict, _ in ordered), tuple(sentence for _, sentence in ordered)


def _sentence(verdict: Verdict, honesty: float | None) -> str:
    if honesty is None:
        return "took part; the rule does not judge single clients"
    return f"{BELIEVED if verdict is Verdict.TRUSTED else DISBELIEVED}: honest with probability {honesty:.3f}"


def _unchanged_clients(screen: Screen, geometry: Geometry | None) -> np.ndarray:
    """(k,) which clients sent the reference unchanged, if others did not."""
    nobody = np.zeros(len(screen.usable), bool)
    if geometry is None or screen.reference is None or not isinstance(geometry, GramGeometry):
        return nobody
    if not callable(geometry.about_reference):
        still = geometry.gram_about_reference.diagonal() == 0
    else:  # the matrix has another centre: check a few columns first, then the clients that seem unchanged
        sample = screen.passes.sample([*screen.usable, screen.reference])
        still = (sample[:-1] == sample[-1]).all(axis=1)
        for j in np.flatnonzero(still):
            about = screen.passes.gram([screen.usable[j]], screen.reference)
            still[j] = not about[geometry.judged].any()
    return nobody if still.all() else still


def _contradict(geometry: Geometry) -> bool:
    """Whether there are two clients, and they cannot both be right."""
    if geometry.K != 2:
        return False
    G = geometry.gram_about_reference
    short, long = sorted(np.sqrt(np.maximum(G.diagonal(), 0.0)))
    if long == 0:
        return False
    return bool(short * TIMES_AS_LONG < long or G[0, 1] < OPPOSED * short * long)
