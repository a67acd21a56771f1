"""Robust averaging for Fed-BioMed: `RobustAggregator` in place of `FedAverage`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

if find_spec("fedbiomed") is None:
    raise ModuleNotFoundError(
        "honestly.fedbiomed needs Fed-BioMed: pip install 'fedbiomed[researcher]'", name="fedbiomed"
    )

from fedbiomed.researcher.aggregators import Aggregator

from honestly.federation import Doubt, History, Referee, Reply
from honestly.federation.settings import referee_of
from honestly.result import AggregationError
from honestly.rules.memory import Memory


class RobustAggregator(Aggregator):
    """An aggregator that tells you which nodes to believe. Bad parameters exclude their node and never stop the round.

    `Experiment(..., aggregator=RobustAggregator())`. The arguments are plain values, as Fed-BioMed writes them into its
    breakpoints: see `honestly.federation.settings.referee_of`.

    With secure aggregation the researcher sees sums only, and Fed-BioMed does not ask the aggregator: no node is
    judged.

    Attributes:
        rounds: the rounds so far. They stay with the researcher; nothing of them is sent to the nodes.
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
        self.aggregator_name = "RobustAggregator"
        self._options: dict[str, Any] = {
            "rule": rule, "settings": settings, "pre": pre, "quorum": quorum, "doubt": doubt, "history": history,
            "forgetting": forgetting, "buffers": buffers, "run": run,
        }  # fmt: skip
        self.referee: Referee = referee_of(**self._options)

    @property
    def rounds(self) -> History:
        """The rounds so far."""
        return self.referee.history

    def aggregate(
        self, model_params: Mapping[str, Any], weights: Mapping[str, float], *args: Any, **kwargs: Any
    ) -> Any:
        """The robust average of the nodes' parameters; the model before the round if they cannot be trusted.

        Args:
            model_params: the nodes' parameters by node id.
            weights: each node's share of the samples, as it says.
            args: not used.
            kwargs: `global_model`, the parameters before the round, and `n_round`, its number, are used.
        """
        old = kwargs.get("global_model")
        old = dict(old) if isinstance(old, Mapping) and old else None
        number = kwargs.get("n_round")
        number = number + 1 if isinstance(number, int) else len(self.rounds) + 1
        replies = [_reply(node, params, weights) for node, params in model_params.items()]
        value, record = self.referee.judge(number, replies, reference=old)
        if value is not None:
            return value
        if old is None:
            raise AggregationError(f"{record.status}; and Fed-BioMed passed no previous model to keep", record.excluded)
        return old

    def save_state_breakpoint(
        self, breakpoint_path: str | None = None, **aggregator_args_create: Any
    ) -> dict[str, Any]:
        """The settings and the memory of the rule, for Fed-BioMed's breakpoint."""
        memory = getattr(self.referee.rule, "memory", None)
        parameters = {"options": self._options, "memory": memory.to_dict() if isinstance(memory, Memory) else None}
        return {"class": type(self).__name__, "module": self.__module__, "parameters": parameters}

    def load_state_breakpoint(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        """Continue from a breakpoint: Fed-BioMed makes the aggregator without arguments and passes the state."""
        parameters = state["parameters"]
        self._options = {**self._options, **parameters["options"]}
        self.referee = referee_of(**self._options)
        if parameters.get("memory") is not None:
            self.referee.pipeline = self.referee.pipeline.with_rule(memory=Memory.from_dict(parameters["memory"]))


def _reply(node: str, params: Any, weights: Mapping[str, float]) -> Reply:
    if not isinstance(params, Mapping) or not params:
        return Reply(node, fault=f"sent a {type(params).__name__} in place of parameters")
    share = weights.get(node)
    if share is None:
        logging.getLogger("honestly.fedbiomed").warning("node %r has no weight", node)
    return Reply(node, update=dict(params), size=share)
