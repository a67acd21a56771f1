"""The strategy for Flower's Message API: FedAvg with a robust average instead of the mean."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from honestly.federation import Doubt, History, Referee, Reply, Sizes
from honestly.federation.names import Naming
from honestly.federation.npy import BadArrayError
from honestly.flower.replies import (
    believed_replies,
    capped_contents,
    evaluate_reply,
    name_run,
    record_of,
    train_reply,
    views,
)
from honestly.rules.rule import Mixer, Rule

logger = logging.getLogger("flwr")


class RobustFedAvg(FedAvg):
    """FedAvg that tells you which clients to believe: a bad reply excludes its client and does not stop the round.

    Args:
        rule: a rule of the package, or its text as on the command line: `hn.Bayesian()`, `"median"`, `"krum:f=2"`,
            `"nnm:f=4+multi_krum:f=4,keep=16"`, ...
        pre: mixers applied before the rule, such as `hn.NNM(f=4)`.
        quorum: more than this share of the sampled nodes must have sent a usable update, or the round keeps the old
            model. 0.5 requires a majority.
        doubt: "keep" keeps the old model also when the rule says that more clients look dishonest than may lie, or
            when refused and disbelieved nodes leave less than `quorum` of those that answered; "accept" (the default)
            takes the answer and marks the round with `attention`.
        history: a folder that gets `rounds.jsonl` and `rounds.csv` after every round, for `honestly report`.
        buffers: how to treat BatchNorm's running means and variances, which are recognised by their names: "follow"
            (the default) averages them with the weights found on the parameters, "judge" treats them as parameters,
            "ignore" keeps the server's own. If their names are unusual, pass the torch module or a list of the names.
        sizes: "use" (the default) weighs clients by `weighted_by_key` (num-examples) up to a cap, so no minority of the
            clients gets a majority of the weight, whatever they claim; "ignore" counts every client once. Medians
            ignore sizes; `hn.Mean` has its own setting.
        names: a mapping from node id to a name, or a function of the id, for the log, the history and the metrics:
            `names={1234567890: "Uppsala"}`. A client without a name is called by its id.
        run: the name of the run, for the history and the title of its report; Flower's run id if you give none.
        fedavg_kwargs: every keyword argument of Flower's FedAvg. Metrics are medians over the believed clients unless
            you pass a `train_metrics_aggr_fn` or `evaluate_metrics_aggr_fn`, which gets only the replies of believed
            clients, with `weighted_by_key` capped at three times its median.

    Attributes:
        history: the rounds so far, each a `honestly.federation.Round`.
        honesty: probability that a node is honest, by node id, in the last round; None if the rule does not infer it.
        excluded: nodes excluded from the last round, by node id, with the reason.
        rule: the rule with its current memory.

    Example:
        >>> from honestly.flower import RobustFedAvg
        >>> strategy = RobustFedAvg(rule="bayesian", fraction_evaluate=0.5, min_available_nodes=10)
        >>> strategy.history
        History(0 rounds)
    """

    def __init__(
        self,
        *,
        rule: Rule | str = "bayesian",
        pre: Sequence[Mixer | str] | Mixer | str = (),
        quorum: float = 0.5,
        doubt: Doubt = "accept",
        history: Any = None,
        buffers: Any = "follow",
        sizes: Sizes = "use",
        names: Naming | None = None,
        run: str = "",
        **fedavg_kwargs: Any,
    ) -> None:
        super().__init__(**fedavg_kwargs)
        self._referee = self._judge_by(
            rule, pre=pre, quorum=quorum, doubt=doubt, history=history, buffers=buffers, sizes=sizes, names=names,
            run=run,
        )  # fmt: skip
        self._train_metrics: Callable[[list[RecordDict], str], MetricRecord] | None
        self._train_metrics = fedavg_kwargs.get("train_metrics_aggr_fn")
        self._evaluate_metrics: Callable[[list[RecordDict], str], MetricRecord] | None
        self._evaluate_metrics = fedavg_kwargs.get("evaluate_metrics_aggr_fn")
        self._model: ArrayRecord | None = None
        self._invited: tuple[int, tuple[int, ...]] = (-1, ())

    def _judge_by(self, rule: Rule | str, **settings: Any) -> Referee:
        return Referee(rule, log=logger.log, **settings)

    @property
    def history(self) -> History:
        """The rounds so far."""
        return self._referee.history

    @property
    def rule(self) -> Rule:
        """The rule with its current memory."""
        return self._referee.rule

    @property
    def honesty(self) -> dict[Any, float] | None:
        """Probability that a node is honest, by node id, in the last round."""
        return self.history[-1].honesty if self.history else None

    @property
    def excluded(self) -> dict[Any, str]:
        """Nodes excluded from the last round, with the reason."""
        return self.history[-1].excluded if self.history else {}

    def summary(self) -> None:
        """Log the settings."""
        logger.info("\t├──> Robust average: %s", str(self._referee.pipeline))
        logger.info("\t│\t└── Quorum: more than %g of the sampled nodes", self._referee.quorum)
        super().summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds. The metrics of the server's `evaluate_fn` are added to the history."""
        call = inspect.signature(super().start).bind(*args, **kwargs)
        function = call.arguments.get("evaluate_fn")
        if function is not None:

            def recorded(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
                metrics = function(server_round, arrays)
                if metrics is not None:
                    self._referee.record_evaluation(server_round, dict(metrics))
                return metrics

            call.arguments["evaluate_fn"] = recorded
        return super().start(*call.args, **call.kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as FedAvg does; remember the model, with which replies are compared, and the sampled nodes."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        name_run(self.history, grid)
        self._model = arrays
        self._invited = server_round, tuple(message.metadata.dst_node_id for message in messages)
        if messages:
            self._referee.check(len(messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The robust average of the replies, or None to keep the old model, and the verdict on every node."""
        number, nodes = self._invited
        nodes = nodes if number == server_round else ()
        messages = list(replies)
        if not messages and not nodes:
            return None, None
        self._check_and_log_replies(messages, is_train=True, validate=False)
        messages = [message for message in messages if not _by_flower(message, nodes)]
        value, record = self._referee.judge(
            server_round,
            [train_reply(message, self.weighted_by_key) for message in messages],
            reference=self._reference(),
            asked=nodes,
        )
        metrics = record.metrics
        if self._train_metrics is not None:
            metrics = self._call(self._train_metrics, believed_replies(messages, record), metrics)
        if value is None:
            return None, MetricRecord({**metrics, **record.named_metrics()})
        arrays = record_of(value, self._model if self._reference() is not None else None)
        self._on_average(arrays)
        return arrays, MetricRecord({**metrics, **record.named_metrics()})

    def _on_average(self, average: ArrayRecord) -> None:
        """Hook for strategies that continue from the robust average."""

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The median of the nodes' metrics, each node weighted by how far its last update was believed."""
        messages = list(replies)
        if not messages:
            return None
        self._check_and_log_replies(messages, is_train=False, validate=False)
        reports: list[Reply] = [evaluate_reply(message, self.weighted_by_key) for message in messages]
        metrics, excluded = self._referee.evaluation(server_round, reports)
        if self._evaluate_metrics is not None:
            believed = self._referee.believed(m.metadata.src_node_id for m in messages) - excluded.keys()
            trusted = [m for m in messages if m.metadata.src_node_id in believed]
            metrics = self._call(self._evaluate_metrics, trusted, metrics)
        return MetricRecord(dict(metrics))

    def _call(
        self,
        function: Callable[[list[RecordDict], str], MetricRecord],
        messages: Sequence[Message],
        fallback: dict[str, Any],
    ) -> dict[str, Any]:
        """The user's metrics function on the believed replies; if it fails, the medians and a line in the log."""
        if not messages:
            return fallback
        try:
            metrics = function(capped_contents(messages, self.weighted_by_key), self.weighted_by_key)
            return dict(MetricRecord(dict(metrics)))  # a plain dict may hold what a record may not
        except Exception:
            logger.exception(
                "%s failed; the medians of the metrics are used instead", getattr(function, "__name__", function)
            )
            return fallback

    def _reference(self) -> dict[str, Any] | None:
        """Views of the model that was sent out; None before the first round or if it holds no NumPy arrays."""
        try:
            return None if self._model is None else views(self._model)
        except BadArrayError:
            return None


def _by_flower(reply: Message, nodes: Sequence[int]) -> bool:
    """Whether Flower itself sends an error in place of a reply that was lost: then its sender is none of the nodes."""
    return bool(nodes) and reply.has_error() and reply.metadata.src_node_id not in nodes
