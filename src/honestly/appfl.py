"""Robust averaging for APPFL: `RobustAggregator` in place of `FedAvgAggregator`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

if find_spec("appfl") is None:
    raise ModuleNotFoundError("honestly.appfl needs APPFL: pip install appfl", name="appfl")

from appfl.algorithm.aggregator import BaseAggregator

from honestly.federation import History, Reply
from honestly.federation.settings import common_names, referee_of

OPTIONS = ("rule", "settings", "pre", "quorum", "doubt", "history", "forgetting", "buffers", "run")
MODEL = ("model_path", "model_name", "model_kwargs")
#: what APPFL itself writes into the aggregator's configuration
THEIRS = ("num_clients", "gradient_based", "optimize_memory", "client_weights_mode", "use_secure_agg")


class RobustAggregator(BaseAggregator):
    """An aggregator that tells you which clients to believe. A bad model excludes its client and never the round.

    Name it in the server's configuration (`aggregator_path: aggregator.py`, `aggregator: RobustAggregator`), where
    `aggregator.py` says `from honestly.appfl import RobustAggregator`. It works with APPFL's synchronous scheduler.

    Args:
        model: the model that training starts with. APPFL passes none to an aggregator that it loads from a file: then
            `model_path`, `model_name` and `model_kwargs` in `aggregator_kwargs` say where it is.
        aggregator_configs: APPFL's `aggregator_kwargs`: `rule`, `settings`, `pre`, `quorum`, `doubt`, `history`,
            `forgetting`, `buffers` and `run`, see `honestly.federation.settings.referee_of`.
        logger: APPFL's logger.

    Attributes:
        rounds: the rounds so far.
    """

    def __init__(self, model: Any = None, aggregator_configs: Any = None, logger: Any = None) -> None:
        options = _plain(aggregator_configs or {})
        unknown = sorted(set(options) - {*OPTIONS, *MODEL, *THEIRS})
        if unknown:
            raise ValueError(f"aggregator_kwargs has {unknown[0]!r}; known are {', '.join((*OPTIONS, *MODEL))}")
        if options.get("gradient_based"):
            raise ValueError("send_gradient is on: RobustAggregator averages models, so turn it off in train_configs")
        if options.get("use_secure_agg"):
            raise ValueError("use_secure_agg hides the clients' models, which RobustAggregator has to see: turn it off")
        self.logger = logger if logger is not None else logging.getLogger("honestly.appfl")
        self.model = model if model is not None else _load_model(options)
        self.global_state: dict[str, Any] | None = None
        self.client_sample_size: dict[Any, int] = {}
        self.referee = referee_of(**{key: options[key] for key in OPTIONS if key in options}, log=self._log)

    @property
    def rounds(self) -> History:
        """The rounds so far."""
        return self.referee.history

    def get_parameters(self, **kwargs: Any) -> dict[str, Any]:
        """The global model, as a copy."""
        state = self._state()
        if state is None:
            raise ValueError(
                "RobustAggregator has no model to start from: APPFL passes none to an aggregator from a file, so "
                "give model_path and model_name in aggregator_kwargs"
            )
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def aggregate(self, local_models: Mapping[Any, Any], **kwargs: Any) -> dict[str, Any]:
        """The robust average of the clients' models; the old model if they cannot be trusted."""
        if "_chunk_idx" in kwargs:
            raise ValueError("a model that comes in chunks cannot be judged as a whole: turn chunking off")
        old = self._state()
        replies = [self._reply(client, model) for client, model in local_models.items()]
        # clients may send a part of the model's state only (APPFL leaves out what is not trained)
        sent = common_names(reply.update for reply in replies)
        reference = None if old is None else {name: tensor for name, tensor in old.items() if name in sent} or None
        value, _ = self.referee.judge(len(self.rounds) + 1, replies, reference=reference)
        if value is not None:
            self.global_state = {**(old or {}), **value}
            if self.model is not None:
                self.model.load_state_dict(self.global_state, strict=False)
        return self.get_parameters()

    def _reply(self, client: Any, model: Any) -> Reply:
        size = self.client_sample_size.get(client)
        if not isinstance(model, Mapping) or not model:
            return Reply(client, fault=f"sent a {type(model).__name__} in place of a model")
        return Reply(client, update=dict(model), size=size)

    def _state(self) -> dict[str, Any] | None:
        if self.global_state is not None:
            return self.global_state
        return None if self.model is None else dict(self.model.state_dict())

    def _log(self, level: int, text: str) -> None:
        (self.logger.warning if level >= logging.WARNING else self.logger.info)(text)


def _plain(options: Any) -> dict[str, Any]:
    if isinstance(options, dict):
        return dict(options)
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(options, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _load_model(options: Mapping[str, Any]) -> Any:
    if "model_path" not in options:
        return None
    from appfl.misc.utils import create_instance_from_file, run_function_from_file

    arguments = options.get("model_kwargs") or {}
    if "model_name" in options:
        return create_instance_from_file(options["model_path"], options["model_name"], **arguments)
    return run_function_from_file(options["model_path"], None, **arguments)
