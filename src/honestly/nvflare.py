"""Robust averaging for NVIDIA FLARE: `RobustAggregator` instead of its weighted mean (extra `[nvflare]`)."""

# pyright: basic, reportMissingImports=false
# FLARE has no type stubs

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

if find_spec("nvflare") is None:
    raise ModuleNotFoundError("honestly.nvflare needs FLARE: pip install 'honestly[nvflare]'", name="nvflare")

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants

from honestly.federation import Doubt, History, Referee, Reply, Sizes
from honestly.federation.settings import referee_of


class RobustAggregator(ModelAggregator):
    """A `ModelAggregator` that tells you which clients to believe. A bad model excludes its client and never the round.

    Pass it to a recipe (`FedAvgRecipe(..., aggregator=RobustAggregator())`) or name it in a job's configuration. The
    arguments are plain values, kept under their own names, because FLARE writes them into the job.

    Args:
        rule: a rule, with its settings and mixers if need be: "krum:f=2", "nnm:f=2+multi_krum:f=2,keep=8".
        settings: more settings of the rule, such as `{"f": 2}`.
        pre: mixers applied before those of `rule`: text, or a list of texts and `[name, settings]` pairs.
        quorum: more than this share of the clients that answered must be usable, or the old model is kept.
        doubt: "keep" also keeps the old model if the rule says that its result may be wrong; "accept" only marks the
            round.
        history: a folder on the server that gets `rounds.jsonl` and `rounds.csv` after every round; "" for none.
        forgetting: above 0, suspicion is carried from round to round (rule "bayesian"); the share that is kept per
            round.
        buffers: how to treat BatchNorm's running means and variances: "follow" (averaged with the weights found on
            the parameters), "judge" (as parameters), "ignore" (the server's own stay); or the names of the buffers.
        server: the server's optimiser, such as "fedadam:lr=0.1", "fedyogi", "fedadagrad" or "fedavgm:momentum=0.9"; ""
            for none. Its moments are kept in `history` and survive a restart if clients send weights.
        sizes: "use" weighs clients by the steps that they report, up to a cap, so no minority of them gets a majority
            of the weight; "ignore" counts every client once.
        names: from client name to the name that logs and the history use, such as `{"site-1": "Uppsala"}`.
        run: the name of the run, for the history and the title of its report; FLARE's job id if you give none.

    The verdicts stay on the server: in its log, in `history` and in `rounds`. They are not put into the model's
    metadata, which FLARE sends to all clients, including the liars.

    Example:
        >>> from honestly.nvflare import RobustAggregator
        >>> RobustAggregator(rule="multi_krum", settings={"f": 2}).settings
        {'f': 2}
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
        server: str = "",
        sizes: Sizes = "use",
        names: dict[str, str] | None = None,
        run: str = "",
    ) -> None:
        super().__init__()
        self.rule = rule
        self.settings = settings
        self.pre = pre
        self.quorum = quorum
        self.doubt: Doubt = doubt
        self.history = history
        self.forgetting = forgetting
        self.buffers = buffers
        self.server = server
        self.sizes: Sizes = sizes
        self.names = names
        self.run = run
        self._models: list[FLModel] = []
        # make it once now, so a wrong argument raises here; the folder is made later, on the server
        self._referee: Referee | None = None
        self._make(folder="")

    def _make(self, folder: str) -> Referee:
        return referee_of(
            rule=self.rule, settings=self.settings, pre=self.pre, quorum=self.quorum, doubt=self.doubt, history=folder,
            forgetting=self.forgetting, buffers=self.buffers, server=self.server, sizes=self.sizes, names=self.names,
            run=self.run, log=self._report,
        )  # fmt: skip

    @property
    def referee(self) -> Referee:
        """The judge of the rounds, which holds the rule's memory and the history."""
        if self._referee is None:
            self._referee = self._make(folder=self.history)
        return self._referee

    @property
    def rounds(self) -> History:
        """The rounds so far."""
        return self.referee.history

    def accept_model(self, model: FLModel) -> None:
        """Store a client's model for the round. It is checked when all models have arrived."""
        self._models.append(model)

    def aggregate_model(self) -> FLModel:
        """The robust average, or an empty difference to keep the old model."""
        models, self._models = self._models, []
        self.rounds.run = self.rounds.run or self._job()
        kind = _usual(ParamsType, [model.params_type for model in models])
        replies = [self._reply(i, model, kind) for i, model in enumerate(models)]
        reference = self._global_weights() if kind == ParamsType.FULL else None
        value, record = self.referee.judge(
            self._round(models), replies, reference=reference, difference=kind == ParamsType.DIFF
        )
        metrics = dict(record.metrics) or None
        if value is None:
            return FLModel(params_type=ParamsType.DIFF, params={}, metrics=metrics)
        return FLModel(params_type=kind, params=_like(value, reference), metrics=metrics)

    def reset_stats(self) -> None:
        """A new round begins; the rule's memory and the history stay."""
        self._models = []

    def _reply(self, i: int, model: FLModel, kind: Any) -> Reply:
        client: Any = f"(client {i} without a name)"
        try:
            meta = model.meta if isinstance(model.meta, dict) else {}
            client = str(meta.get("client_name", client))
            if not isinstance(model.params, Mapping) or not model.params:
                return Reply(client, fault="sent no parameters")
            if model.params_type != kind:
                return Reply(client, fault=f"sent {model.params_type}, the others {kind}")
            size = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
            metrics = model.metrics if isinstance(model.metrics, Mapping) else None
            return Reply(client, update=dict(model.params), size=size, metrics=metrics)
        except Exception as error:  # an exception caused by one client's model concerns only that client
            return Reply(client, fault=f"cannot be read ({type(error).__name__}: {str(error)[:200]})")

    def _global_weights(self) -> dict[str, Any] | None:
        """The model that was sent out, which FLARE keeps in its context; None if it is not there."""
        try:
            learnable = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) if self.fl_ctx else None
            weights = learnable.get("weights") if isinstance(learnable, Mapping) else None
            return dict(weights) if isinstance(weights, Mapping) and weights else None
        except Exception as error:
            self._report(logging.WARNING, f"the global model cannot be read ({error}); the majority's layout is used")
            return None

    def _job(self) -> str:
        job = self.fl_ctx.get_job_id() if self.fl_ctx else None
        return job if isinstance(job, str) else ""

    def _round(self, models: Sequence[FLModel]) -> int:
        """FLARE's number of the round: from its context, else what most models say, else one more than the last."""
        number = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) if self.fl_ctx else None
        if not isinstance(number, int):
            number = _usual(int, [model.current_round for model in models])
        if not isinstance(number, int):
            number = self.rounds[-1].number + 1 if self.rounds else 0
        return number

    def _report(self, level: int, text: str) -> None:
        if self.fl_ctx is not None:
            (self.warning if level >= logging.WARNING else self.info)(text)
        else:
            logging.getLogger("honestly.nvflare").log(level, text)


def _usual(kind: type, values: Sequence[Any]) -> Any:
    """The value that most have; a client may send anything in place of it."""
    counts = Counter(value for value in values if isinstance(value, kind))
    return counts.most_common(1)[0][0] if counts else None


def _like(value: dict[str, Any], reference: Mapping[str, Any] | None) -> dict[str, Any]:
    """The new model in the order and NumPy dtypes of the old one."""
    if reference is None or set(reference) != set(value):
        return value

    def cast(name: str) -> Any:
        new, old = value[name], reference[name]
        return new.astype(old.dtype, copy=False) if isinstance(new, np.ndarray) and isinstance(old, np.ndarray) else new

    return {name: cast(name) for name in reference}
