"""Measure what an attack does to training (accuracy, attack success) and to single rounds (kappa)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.sim.data import Dataset
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.studies.layers.measure import in_units


@dataclass(frozen=True)
class RoundDamage:
    """One round of training.

    Attributes:
        kappa: squared distance of the server's step to the honest mean, in honest variances.
        layer: the same for the worst layer, in that layer's variance.
        accuracy: of the server's model afterwards, on the test set; None if it was not evaluated.
        asr: attack success of a backdoor.
        misses: attackers that were not accused; None if the rule does not say.
        false_accusations: honest clients that were.
    """

    round: int
    kappa: float
    layer: float
    accuracy: float | None
    asr: float | None
    misses: int | None
    false_accusations: int | None

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def steps(experiment: Experiment, *, data: Dataset | None = None) -> Iterator[RoundDamage]:
    """Train and measure every round. The last clients are malicious, and all clients take part.

    Example:
        >>> e = Experiment.of({"rounds": 1, "clients": 4, "epochs": 1, "rule": "mean"})
        >>> [round(step.kappa, 6) for step in steps(e)]
        [0.0]
    """
    e = experiment
    if e.chosen != "last" or e.participation < 1 or e.dropout > 0:
        raise ValueError("leave out chosen, participation and dropout: all take part, and the last ones attack")
    with TemporaryDirectory() as folder:
        federation = Federation(e, data=data, record=Path(folder))
        sizes = np.array(list(federation.layers.values()))
        before = federation.start().model.theta.double().cpu().numpy()
        for record in federation.rounds():
            number = int(record.numbers["round"])
            place = Path(folder) / f"round-{number:04d}.npz"
            with np.load(place, allow_pickle=False) as file:
                honest = np.asarray(file["honest"], dtype=np.float64)[: e.clients - e.adversary.malicious]
            place.unlink()
            after = record.state.model.theta.double().cpu().numpy()
            kappa, layer = kappas(after - before, honest, sizes)
            before = after
            n = record.numbers
            yield RoundDamage(number, kappa, layer, n["accuracy"], n["asr"], n["misses"], n["false_accusations"])


def kappas(step: Float, honest: Float, sizes: Any) -> tuple[float, float]:
    """Kappa of a server's step (d,) given honest updates (H, d): of the whole update and of the worst layer.

    >>> kappas(np.array([1.0, 0.0, 0.0]), np.array([[1.0, 0, 0], [-1, 0, 2]]), [1, 2])
    (1.0, 1.0)
    """
    mean = honest.mean(axis=0)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    moved = np.add.reduceat(np.square(step - mean), starts)
    variance = np.add.reduceat(np.square(honest - mean).mean(axis=0), starts)
    squared = np.add.reduceat(np.square(mean), starts)
    whole = float(moved.sum() / max(variance.sum(), np.finfo(float).tiny))
    return whole, float(in_units(moved, variance, squared).max())
