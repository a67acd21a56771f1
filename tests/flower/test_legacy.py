"""The strategy for Flower's older API: the same guarantees on FitRes objects."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flower_messages import model, update
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy

from honestly.flower import LegacyRobustFedAvg
from honestly.rules import Krum, Mean

NAMES = list(model())


def proxy(cid: str) -> Any:
    return Mock(spec=ClientProxy, cid=cid)


def result(cid: int, arrays: list[np.ndarray] | None = None, size: Any = 100, **changes: Any) -> tuple[Any, FitRes]:
    arrays = list(update(cid).values()) if arrays is None else arrays
    fit = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), size, {"loss": 0.1 * cid} | changes)
    return proxy(str(cid)), fit


def nan() -> tuple[Any, FitRes]:
    return result(99, [np.full_like(x, np.nan) if x.dtype.kind == "f" else x for x in update(9).values()])


def garbage() -> tuple[Any, FitRes]:
    who, fit = result(99)
    fit.parameters = Parameters(tensors=[b"garbage", *fit.parameters.tensors[1:]], tensor_type="numpy.ndarray")
    return who, fit


def pickled() -> tuple[Any, FitRes]:
    who, fit = result(99)
    fit.parameters = Parameters(tensors=fit.parameters.tensors, tensor_type="pickle")
    return who, fit


def nothing() -> tuple[Any, FitRes]:
    who, fit = result(99)
    fit.parameters = None  # type: ignore[assignment]
    return who, fit


FAULTS = {
    "nan": (nan, "NaN"),
    "garbage": (garbage, "no readable header"),
    "another serialisation": (pickled, "'pickle'"),
    "no parameters": (nothing, "cannot be read"),
    "one array less": (lambda: result(99, list(update(9).values())[1:]), ""),
    "wrong shape": (lambda: result(99, [np.zeros((2, 2), np.float32), *list(update(9).values())[1:]]), "shape"),
    "huge size": (lambda: result(99, size=10**12), "times the median"),
    "negative size": (lambda: result(99, size=-5), "reports -5"),
    "extra metric": (lambda: result(99, vote=1), "extra key 'vote'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_result_excludes_its_client_only(fault: str) -> None:
    make, words = FAULTS[fault]
    good = [result(k) for k in range(6)]
    strategy = LegacyRobustFedAvg(rule=Mean())
    value, metrics = strategy.aggregate_fit(1, [*good[:2], make(), *good[2:]], [])
    assert list(strategy.history[-1].excluded) == ["99"]
    assert words in strategy.history[-1].excluded["99"]
    assert metrics["refused/99"] == 1
    expected, _ = LegacyRobustFedAvg(rule=Mean()).aggregate_fit(1, good, [])
    assert value is not None
    assert expected is not None
    for a, b in zip(parameters_to_ndarrays(value), parameters_to_ndarrays(expected), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_liars_are_named_and_failures_count(caplog: pytest.LogCaptureFixture) -> None:
    good = [result(k) for k in range(7)]
    liars = [result(50 + k, [-4 * x if x.dtype.kind == "f" else x for x in update(k).values()]) for k in range(2)]
    broken = proxy("77"), FitRes(Status(Code.FIT_NOT_IMPLEMENTED, "no fit"), Parameters([], ""), 0, {})
    strategy = LegacyRobustFedAvg()
    value, metrics = strategy.aggregate_fit(1, [*good, *liars], [broken, RuntimeError("connection lost")])
    assert strategy.history[-1].accused == ("50", "51")
    assert metrics["honesty/50"] < 0.5  # type: ignore[operator]
    assert strategy.history[-1].excluded == {"77": "error FIT_NOT_IMPLEMENTED: no fit"}
    assert value is not None
    arrays = parameters_to_ndarrays(value)
    assert np.abs(arrays[0] - 1).max() < 0.5
    assert arrays[NAMES.index("bn.num_batches_tracked")].dtype == np.int64


def test_the_old_model_is_kept_without_a_majority_and_where_failures_are_not_accepted() -> None:
    asked = Mock(num_available=Mock(return_value=6), sample=Mock(return_value=[proxy(str(k)) for k in range(6)]))
    strategy = LegacyRobustFedAvg()
    strategy.configure_fit(1, ndarrays_to_parameters(list(model().values())), asked)
    value, metrics = strategy.aggregate_fit(1, [result(k) for k in range(3)], [])
    assert value is None
    assert metrics["kept-old-model"] == 1
    assert strategy.history[-1].excluded["5"] == "sent no reply"
    strict = LegacyRobustFedAvg(accept_failures=False)
    assert strict.aggregate_fit(1, [result(k) for k in range(3)], [RuntimeError()]) == (None, {})
    assert strict.aggregate_evaluate(1, [], []) == (None, {})
    with pytest.raises(ValueError, match="needs at least"):
        LegacyRobustFedAvg(rule=Krum(f=4)).configure_fit(1, Parameters([], ""), asked)


def test_one_liar_does_not_set_the_reported_loss() -> None:
    def report(cid: int, loss: float, size: int = 10) -> tuple[Any, EvaluateRes]:
        return proxy(str(cid)), EvaluateRes(Status(Code.OK, ""), loss, size, {"accuracy": 0.9})

    strategy = LegacyRobustFedAvg()
    reports = [*(report(k, 0.1) for k in range(4)), report(9, -1e9, 9000)]
    assert strategy.aggregate_evaluate(1, reports, []) == (0.1, {"accuracy": 0.9})
    seen: list[Any] = []
    strategy = LegacyRobustFedAvg(evaluate_metrics_aggregation_fn=lambda pairs: seen.append(pairs) or {"n": len(pairs)})
    assert strategy.aggregate_evaluate(1, reports, [])[1] == {"n": 5}
    assert max(size for size, _ in seen[0]) == 30


def test_the_users_function_does_not_get_the_evaluation_of_a_liar() -> None:
    seen: list[Any] = []
    strategy = LegacyRobustFedAvg(evaluate_metrics_aggregation_fn=lambda pairs: seen.append(pairs) or {"n": len(pairs)})
    liars = [result(50 + k, [-4 * x if x.dtype.kind == "f" else x for x in update(k).values()]) for k in range(2)]
    strategy.aggregate_fit(1, [*(result(k) for k in range(7)), *liars], [])
    assert strategy.history[-1].accused == ("50", "51")
    reports = [
        (proxy(str(cid)), EvaluateRes(Status(Code.OK, ""), 0.1, 10, {"accuracy": 0.9})) for cid in [*range(7), 50, 99]
    ]
    assert strategy.aggregate_evaluate(1, reports, [])[1] == {"n": 8}  # 99 was not trained with, so nobody doubts it


def test_clients_without_a_size_do_not_end_the_round_where_the_users_function_needs_one() -> None:
    strategy = LegacyRobustFedAvg(fit_metrics_aggregation_fn=lambda pairs: {"n": sum(size for size, _ in pairs)})
    value, metrics = strategy.aggregate_fit(1, [result(1), result(2, size=None)], [])
    assert value is not None
    assert "n" not in metrics


def test_the_servers_own_evaluation_is_in_the_history() -> None:
    """Text and bytes, which Flower's metrics may be, are not for the files."""
    strategy = LegacyRobustFedAvg(evaluate_fn=lambda *_: (0.25, {"accuracy": 0.9, "note": "fine", "raw": b"1"}))
    assert strategy.evaluate(0, ndarrays_to_parameters(list(model().values())))
    strategy.aggregate_fit(1, [result(k) for k in range(4)], [])
    assert strategy.evaluate(1, ndarrays_to_parameters(list(model().values()))) == (
        0.25,
        {"accuracy": 0.9, "note": "fine", "raw": b"1"},
    )
    assert strategy.history[-1].evaluation == {"loss": 0.25, "accuracy": 0.9}
