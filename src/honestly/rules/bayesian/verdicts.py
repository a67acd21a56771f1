"""What was found about each client, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from honestly.printable import printable
from honestly.result import ClientId, Float, Verdict
from honestly.rules.bayesian.estimate import Estimate
from honestly.rules.geometry import Geometry

SHORT = 0.5  # the share of an update, over all layers, below which it is unusual
CUT = 0.01  # the same for a single layer: ten times as far as usual there
NAMED = 5  # clients or layers that a sentence names at most


def verdicts(
    found: Estimate, geometry: Geometry, ids: Sequence[ClientId]
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """One verdict and one sentence per client."""
    names = tuple(geometry.layer_names)
    sizes = np.where(geometry.judged, geometry.layer_sizes, 0.0)
    total = float(sizes.sum())
    share: Float = found.kept @ (sizes / total) if total else np.ones(len(ids))
    unusual = (share < SHORT) | (found.kept[:, geometry.judged] < CUT).any(axis=1)
    pairs: list[tuple[Verdict, str]] = []
    for k in range(len(ids)):
        if found.accused[k]:
            pairs.append((Verdict.ACCUSED, _accusation(found, k, ids, names)))
        elif unusual[k]:
            pairs.append((Verdict.UNUSUAL, _distance(found, k, names)))
        else:
            pairs.append((Verdict.TRUSTED, "its update is like the others'"))
    return tuple(verdict for verdict, _ in pairs), tuple(sentence for _, sentence in pairs)


def _accusation(found: Estimate, k: int, ids: Sequence[ClientId], names: Sequence[str]) -> str:
    reasons = found.reasons
    if reasons is None:
        return "it errs in the same direction as other clients"
    where = _layers(found.evidence[k], names)
    if reasons.absurd[k]:
        return "its update is more than a thousand times as far from the others as usual"
    if reasons.opposed[k]:
        return f"its update opposes what the others agree on{where}"
    others = [j for j in np.flatnonzero(reasons.group[k] & found.accused).tolist() if j != k]
    if not others:
        return f"it errs in the same direction as other clients{where}"
    named = ", ".join(printable(ids[j])[:60] for j in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"it errs in the same direction as {named}{more}{where}"


def _layers(evidence: Float, names: Sequence[str]) -> str:
    """The layers that speak most clearly, if any does by itself and there are several."""
    if len(names) == 1:
        return ""
    known = np.where(np.isnan(evidence), -np.inf, evidence)
    order: list[int] = np.argsort(-known, kind="stable")[:3].tolist()
    clear = [names[i] for i in order if known[i] > 0.0]
    return (
        ", most of all in " + ", ".join(printable(name)[:80] for name in clear)
        if clear
        else ", over all layers together"
    )


def _distance(found: Estimate, k: int, names: Sequence[str]) -> str:
    layer = int(found.distance[k].argmax())
    where = f" in {printable(names[layer])[:80]}" if len(names) > 1 else ""
    times = float(found.distance[k, layer])
    return f"its update is {times:.2g} times as far from the others as usual{where}, alone: it counts for less"
