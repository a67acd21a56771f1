"""The strategy for Flower's older API (`flwr.server.strategy`, `start_server` and `Server`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.common import EvaluateRes, FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from honestly.federation import Doubt, History, Referee, Reply, Round, Sizes
from honestly.federation.names import Naming
from honestly.federation.npy import BadArrayError, read_npy, write_npy
from honestly.rules.rule import Mixer, Rule

NUMPY = "numpy.ndarray"
logger = logging.getLogger("flwr")


class LegacyRobustFedAvg(FedAvg):
    """Robust FedAvg for the older API, which tells you which clients to believe; see `RobustFedAvg` for the new one.

    Args:
        rule, pre, quorum, doubt, history, sizes, names, run: as for `RobustFedAvg`. Clients are known by
            `ClientProxy.cid`. The older API has no run id: give `run` for a title of the report.
        buffers: as for `RobustFedAvg`. Arrays have no names here. If the model has BatchNorm, pass the torch module,
            whose `state_dict` has them in the same order.
        fedavg_kwargs: every keyword argument of `flwr.server.strategy.FedAvg`. Your own metrics function gets
            only the believed clients, with sizes capped at three times their median. Without one, metrics are medians.

    Example:
        >>> from honestly.flower import LegacyRobustFedAvg
        >>> LegacyRobustFedAvg(rule="median", min_available_clients=10)
        LegacyRobustFedAvg(rule=Median())
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
        self._referee = Referee(
            rule, pre=pre, quorum=quorum, doubt=doubt, history=history, buffers=buffers, sizes=sizes, names=names,
            run=run, log=logger.log,
        )  # fmt: skip
        self._model: Parameters | None = None
        self._invited: tuple[int, tuple[str, ...]] = (-1, ())

    def __repr__(self) -> str:
        return f"LegacyRobustFedAvg(rule={self._referee.rule!r})"

    @property
    def history(self) -> History:
        """The rounds so far."""
        return self._referee.history

    @property
    def rule(self) -> Rule:
        """The rule with its current memory."""
        return self._referee.rule

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Sample clients as FedAvg does; remember the model and who was asked."""
        instructions = super().configure_fit(server_round, parameters, client_manager)
        self._model = parameters
        self._invited = server_round, tuple(proxy.cid for proxy, _ in instructions)
        if instructions:
            self._referee.check(len(instructions))
        return instructions

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The robust average of the results, or None to keep the old model, and the verdict on every client."""
        number, clients = self._invited
        clients = clients if number == server_round else ()
        if (not results and not clients) or (failures and not self.accept_failures):
            return None, {}
        replies = [_reply(proxy, result, _arrays) for proxy, result in results]
        replies += [
            Reply(proxy.cid, fault=_failure(failed), absent=True) for proxy, failed in _named_failures(failures)
        ]
        value, record = self._referee.judge(server_round, replies, reference=self._reference(), asked=clients)
        metrics: dict[str, Any] = record.metrics
        if self.fit_metrics_aggregation_fn is not None:
            metrics = self._call(self.fit_metrics_aggregation_fn, _believed_results(results, record), metrics)
        model = None if value is None else Parameters(tensors=self._tensors(value), tensor_type=NUMPY)
        return model, metrics | record.named_metrics()

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """The median loss and metrics, each client weighted by how far its last update was believed."""
        if not results or (failures and not self.accept_failures):
            return None, {}
        replies = [_reply(proxy, result, None, {"loss": result.loss}) for proxy, result in results]
        metrics, excluded = self._referee.evaluation(server_round, replies)
        loss = metrics.pop("loss", None)
        if self.evaluate_metrics_aggregation_fn is not None:
            believed = self._referee.believed(proxy.cid for proxy, _ in results) - excluded.keys()
            trusted = [(proxy, result) for proxy, result in results if proxy.cid in believed]
            metrics = self._call(self.evaluate_metrics_aggregation_fn, trusted, metrics)
        return loss, metrics

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """What the server's `evaluate_fn` says of the model; its numbers are added to the history."""
        report = super().evaluate(server_round, parameters)
        if report is not None:
            numbers = {name: value for name, value in report[1].items() if isinstance(value, int | float)}
            self._referee.record_evaluation(server_round, {"loss": report[0], **numbers})
        return report

    def _reference(self) -> list[Any] | None:
        try:
            return None if self._model is None else _arrays(self._model)
        except BadArrayError:
            return None

    def _tensors(self, value: list[Any]) -> list[bytes]:
        """The new model as Flower's bytes, in the dtypes of the old one; `value` is emptied to save memory."""
        reference = self._reference()
        dtypes = [np.dtype(x.dtype) for x in (value if reference is None else reference)]
        value.reverse()
        return [write_npy(value.pop().astype(dtype, copy=False)) for dtype in dtypes]

    def _call(
        self, function: Any, results: Sequence[tuple[ClientProxy, Any]], fallback: dict[str, Any]
    ) -> dict[str, Any]:
        if not results:
            return fallback
        try:
            sizes = sorted(result.num_examples for _, result in results)
            cap = 3 * sizes[(len(sizes) - 1) // 2]
            return dict(function([(min(result.num_examples, cap), result.metrics) for _, result in results]))
        except Exception:
            logger.exception("%s failed; the medians of the metrics are used instead", function)
            return fallback


def _reply(proxy: ClientProxy, result: Any, read: Any, more: dict[str, Any] | None = None) -> Reply:
    try:
        update = None if read is None else read(result.parameters)
        metrics = dict(result.metrics or {}) | (more or {})
    except BadArrayError as fault:
        return Reply(proxy.cid, fault=str(fault))
    except Exception as error:  # an exception caused by one client's reply concerns only that client
        return Reply(proxy.cid, fault=f"cannot be read ({type(error).__name__}: {str(error)[:200]})")
    return Reply(proxy.cid, update=update, size=result.num_examples, metrics=metrics)


def _arrays(parameters: Parameters) -> list[Any]:
    if parameters.tensor_type != NUMPY:
        raise BadArrayError(f"tensors are serialised as {parameters.tensor_type!r}, expected {NUMPY!r}")
    arrays: list[Any] = []
    for i, tensor in enumerate(parameters.tensors):
        try:
            arrays.append(read_npy(tensor))
        except BadArrayError as fault:
            raise BadArrayError(f"array {i} {fault}") from None
    return arrays


def _named_failures(failures: Sequence[Any]) -> list[tuple[ClientProxy, Any]]:
    return [failure for failure in failures if isinstance(failure, tuple)]


def _failure(result: FitRes) -> str:
    return f"error {result.status.code.name}: {result.status.message[:200]}"


def _believed_results(results: Sequence[tuple[ClientProxy, FitRes]], record: Round) -> list[tuple[ClientProxy, FitRes]]:
    votes = record.votes()
    return [(proxy, result) for proxy, result in results if votes.get(proxy.cid, 0.0) > record.least_vote]
