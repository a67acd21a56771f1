"""Robust averaging for OpenFL: `RobustAggregation` as a task's `aggregation_type`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

if find_spec("openfl") is None:
    raise ModuleNotFoundError("honestly.openfl needs OpenFL: pip install openfl", name="openfl")

from openfl.interface.aggregation_functions.core import AggregationFunction

from honestly.federation import Doubt, History, Reply
from honestly.federation.settings import common_names, referee_of
from honestly.result import AggregationError

logger = logging.getLogger("honestly.openfl")


class RobustAggregation(AggregationFunction):
    """An aggregation function that tells you which collaborators to believe.

    OpenFL asks for one tensor at a time. At the first tensor of a round this function reads the collaborators' whole
    models from OpenFL's database and judges them once. The decision holds for all tensors of the round, so a liar
    cannot be honest in one tensor and lie in the next.

    In `plan.yaml`: `aggregation_type: {template: honestly.openfl.RobustAggregation, settings: {rule: bayesian}}` of the
    training task. OpenFL keeps one instance of each aggregation function in a process, so all tasks share its settings.

    Args:
        rule, settings, pre, quorum, doubt, history, forgetting, buffers, run: plain values, see
            `honestly.federation.settings.referee_of`.

    Attributes:
        rounds: the rounds so far.
    """

    def __init__(
        self,
        rule: str = "bayesian",
        settings: dict[str, Any] | None = None,
        pre: list[Any] | str | None = None,
        quorum: float = 0.5,
        doubt: Doubt = "accept",
        history: str = "",
        forgetting: float = 0.0,
        buffers: str | list[str] = "follow",
        run: str = "",
    ) -> None:
        super().__init__()
        self.referee = referee_of(
            rule=rule, settings=settings, pre=pre, quorum=quorum, doubt=doubt, history=history, forgetting=forgetting,
            buffers=buffers, run=run, log=logger.log,
        )  # fmt: skip
        self._judged: tuple[Any, ...] = ()
        self._values: dict[str, Any] = {}

    @property
    def rounds(self) -> History:
        """The rounds so far."""
        return self.referee.history

    def call(
        self, local_tensors: Sequence[Any], db_iterator: Iterable[Any], tensor_name: str, fl_round: int, tags: Any
    ) -> np.ndarray:
        """The robust average of one tensor; the old one if the collaborators cannot be trusted.

        Args:
            local_tensors: the collaborators' tensors, with their names and weights.
            db_iterator: rows of all tensors that OpenFL holds.
            tensor_name: which tensor is asked for.
            fl_round: the round.
            tags: the tensor's tags, without the collaborator's name.
        """
        names = tuple(sorted(str(local.col_name) for local in local_tensors))
        key = (fl_round, tuple(tags), names)
        if key != self._judged or tensor_name not in self._values:
            self._judge(local_tensors, db_iterator, tensor_name, fl_round, tuple(tags))
            self._judged = key
        return np.asarray(self._values[tensor_name])

    def _judge(
        self, local_tensors: Sequence[Any], rows: Iterable[Any], tensor: str, fl_round: int, tags: tuple[str, ...]
    ) -> None:
        models: dict[str, dict[str, np.ndarray]] = {str(local.col_name): {} for local in local_tensors}
        expected = {frozenset((*tags, name)): name for name in models}
        old: dict[str, np.ndarray] = {}
        for row in rows:
            if row["round"] != fl_round:
                continue
            owner = expected.get(frozenset(row["tags"]))
            if owner is not None:
                models[owner][str(row["tensor_name"])] = row["nparray"]
            elif tuple(row["tags"]) == ("model",):
                old[str(row["tensor_name"])] = row["nparray"]
        for local in local_tensors:  # the requested tensor comes from the arguments, whatever the database has
            models[str(local.col_name)][tensor] = local.tensor
        sent = common_names(models.values())
        reference = {name: values for name, values in old.items() if name in sent}
        replies = [Reply(str(c.col_name), update=models[str(c.col_name)], size=c.weight) for c in local_tensors]
        # tensors without an old value (an optimiser's state) leave no reference to compare with
        value, record = self.referee.judge(
            fl_round + 1, replies, reference=reference if set(reference) == sent else None
        )
        if value is None and tensor not in old:
            raise AggregationError(f"{record.status}; and OpenFL holds no old value of {tensor!r}", record.excluded)
        self._values = old if value is None else value
