"""A run as pages show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from honestly.lazy import cached_property
from honestly.runs.record import RoundRecord
from honestly.show.chart import MOST_ROWS, Heatmap, drawn_rows
from honestly.show.maps import belief_map, truth_map, weight_map

if TYPE_CHECKING:
    from honestly.sim.experiment import Experiment


@dataclass(frozen=True)
class RunView:
    """A run and its title.

    Attributes:
        title: its name on the page.
        records: one for each round.
        clients: the clients' names.
        known: True if it is known who attacked; nobody knows in a real federation.
        details: further information by name.
    """

    title: str
    records: Sequence[RoundRecord]
    clients: Sequence[str]
    known: bool = True
    details: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, title: str, experiment: Experiment, records: Sequence[RoundRecord]) -> RunView:
        """A run of the simulator."""
        names = [str(k) for k in range(experiment.clients)]
        return cls(title, records, names, True, {"id": experiment.id, "experiment": experiment.canonical})

    def maps(self) -> list[Heatmap]:
        """Who attacked, if anybody did and it is known, which clients the rule believed, and weights that tell more."""
        return self._maps

    @cached_property
    def _maps(self) -> list[Heatmap]:
        truth = truth_map(self.records, self.clients) if self.known else None
        maps = [truth, belief_map(self.records, self.clients), weight_map(self.records, self.clients)]
        drawn = [one for one in maps if one is not None]
        if len(drawn) < 2 or len(self.clients) <= MOST_ROWS:
            return drawn
        both = drawn_rows(np.concatenate([one.values for one in drawn], axis=1))
        return [replace(one, chosen=both) for one in drawn]
