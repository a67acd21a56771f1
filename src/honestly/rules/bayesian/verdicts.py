"""What was found about each client, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from honestly.printable import printable
from honestly.result import ClientId, Float, Verdict
from honestly.rules.bayesian.estimate import Estimate
from honestly.rules.geometry import Geometry

SHORT = 0.5  # the share of an update, over all layers, below which it is unusual
CUT = 0.01  # the same for a single layer: ten times as far as usual there
NOTHING = 1e-12  # the share of a layer up to which nothing of it is left
NAMED = 5  # clients or layers that a sentence names at most
LIKE = "its update is like the others'"
DIFFERENT = (
    "its update is not the one that a majority sent{where}, which is the answer{there}: it counts for nothing{there}"
)


def verdicts(
    estimate: Estimate, geometry: Geometry, ids: Sequence[ClientId]
) -> tuple[tuple[Verdict, ...], Explanations]:
    """One verdict and one sentence per client."""
    sizes = np.where(geometry.judged, geometry.layer_sizes, 0.0)
    total = float(sizes.sum())
    share: Float = estimate.kept @ (sizes / total) if total else np.ones(len(ids))
    ignored = _ignored_layers(estimate, geometry.judged)
    unusual = (share < SHORT) | (estimate.kept[:, geometry.judged] < CUT).any(axis=1)
    statements = tuple(
        [
            Verdict.ACCUSED if guilty else Verdict.UNUSUAL if far else Verdict.TRUSTED
            for guilty, far in zip(estimate.accused.tolist(), unusual.tolist(), strict=True)
        ]
    )
    return statements, Explanations(estimate, statements, ids, tuple(geometry.layer_names), geometry.judged, ignored)


def _ignored_layers(estimate: Estimate, judged: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(n, L) in which layers a majority sent the same and this client did not: the answer has nothing of it there."""
    return (estimate.kept <= NOTHING) & np.isnan(estimate.evidence) & judged


class Explanations(Sequence[str]):
    """One sentence per client, written when it is read: the engine does that while a device averages."""

    def __init__(
        self,
        estimate: Estimate,
        statements: Sequence[Verdict],
        ids: Sequence[ClientId],
        names: Sequence[str],
        judged: npt.NDArray[np.bool_],
        ignored: npt.NDArray[np.bool_],
    ) -> None:
        self._estimate, self._statements, self._ids, self._names = estimate, statements, ids, names
        self._judged, self._ignored = judged, ignored

    def __len__(self) -> int:
        return len(self._statements)

    def __iter__(self) -> Iterator[str]:
        return (LIKE if verdict is Verdict.TRUSTED else self[k] for k, verdict in enumerate(self._statements))

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> tuple[str, ...]: ...

    def __getitem__(self, k: int | slice) -> str | tuple[str, ...]:
        if isinstance(k, slice):
            return tuple(self[i] for i in range(*k.indices(len(self))))
        client = range(len(self))[k]
        if self._statements[client] is Verdict.ACCUSED:
            return _accusation(self._estimate, client, self._ids, self._names)
        if self._statements[client] is Verdict.UNUSUAL:
            ignored = self._ignored[client]
            if ignored.any():
                return _difference(ignored, self._names, self._judged)
            return _distance(self._estimate, client, self._names, self._judged)
        return LIKE


def _accusation(estimate: Estimate, k: int, ids: Sequence[ClientId], names: Sequence[str]) -> str:
    reasons = estimate.reasons
    if reasons is None:
        return "it errs in the same direction as other clients"
    where = _layers(estimate.evidence[k], names)
    if reasons.absurd[k]:
        return "its update is more than a thousand times as far from the others as usual"
    if reasons.opposed[k]:
        return f"its update opposes what the others agree on{where}"
    others = [j for j in np.flatnonzero(reasons.group[k] & estimate.accused).tolist() if j != k]
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


def _difference(ignored: npt.NDArray[np.bool_], names: Sequence[str], judged: npt.NDArray[np.bool_]) -> str:
    if (ignored == judged).all():
        return DIFFERENT.format(where="", there="")
    layers: list[int] = np.flatnonzero(ignored).tolist()
    named = ", ".join(printable(names[i])[:80] for i in layers[:NAMED])
    more = f" and {len(layers) - NAMED} more layers" if len(layers) > NAMED else ""
    return DIFFERENT.format(where=f" in {named}{more}", there=" there")


def _distance(estimate: Estimate, k: int, names: Sequence[str], judged: npt.NDArray[np.bool_]) -> str:
    layer = int(np.where(judged, estimate.distance[k], -1.0).argmax())
    where = f" in {printable(names[layer])[:80]}" if len(names) > 1 else ""
    times = float(estimate.distance[k, layer])
    return f"its update is {times:.2g} times as far from the others as usual{where}, alone: it counts for less"
