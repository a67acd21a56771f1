"""RobustAggregator on real FLModel objects, and in NVIDIA FLARE's simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

import honestly
from honestly.nvflare import RobustAggregator

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "nvflare"


def params(k: int, step: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    noise = {"w": rng.normal(size=(6, 5)), "b": rng.normal(size=5)}
    return {name: (1 + step * (1 + 0.2 * x)).astype(np.float32) for name, x in noise.items()} | {"n": np.array(3)}


def model(k: int, values: Any = None, steps: Any = 10, kind: Any = ParamsType.FULL, **meta: Any) -> FLModel:
    return FLModel(
        params=params(k) if values is None else values,
        params_type=kind,
        metrics={"loss": 0.1},
        current_round=4,
        meta={"client_name": f"site-{k}", "NUM_STEPS_CURRENT_ROUND": steps} | meta,
    )


def values_of(found: FLModel) -> dict[str, Any]:
    assert found.params is not None
    return found.params


def nan() -> FLModel:
    values = params(9)
    values["w"][0, 0] = np.nan
    return model(9, values)


def voting() -> FLModel:
    return FLModel(params=params(9), metrics={"loss": 1, "vote": 2}, meta={"client_name": "site-9"})


FAULTS: dict[str, tuple[Any, str]] = {
    "nan": (nan, "NaN"),
    "wrong shape": (lambda: model(9, params(9) | {"w": np.zeros((5, 6), np.float32)}), "shape"),
    "renamed": (lambda: model(9, {"W": params(9)["w"], "b": params(9)["b"], "n": np.array(3)}), "'w' is missing"),
    "extra": (lambda: model(9, params(9) | {"x": np.zeros(2)}), "'x'"),
    "text": (lambda: model(9, params(9) | {"w": "weights"}), "cannot be read|not an array"),
    "no parameters": (lambda: model(9, {}), "no parameters"),
    "a list": (lambda: model(9, [1, 2]), "no parameters"),
    "a difference": (lambda: model(9, kind=ParamsType.DIFF), "DIFF"),
    "huge size": (lambda: model(9, steps=10**12), "times the median"),
    "negative size": (lambda: model(9, steps=-1), "reports -1"),
    "text as size": (lambda: model(9, steps="many"), "'many'"),
    "extra metric": (voting, "vote"),
}  # fmt: skip


def aggregate(models: list[FLModel], aggregator: RobustAggregator | None = None) -> tuple[FLModel, RobustAggregator]:
    aggregator = RobustAggregator(rule="mean") if aggregator is None else aggregator
    aggregator.reset_stats()
    for each in models:
        aggregator.accept_model(each)
    return aggregator.aggregate_model(), aggregator


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_model_excludes_only_its_client(fault: str) -> None:
    make, words = FAULTS[fault]
    good = [model(k) for k in range(5)]
    result, aggregator = aggregate([*good[:2], make(), *good[2:]])
    assert list(aggregator.rounds[-1].excluded) == ["site-9"]
    assert any(word in aggregator.rounds[-1].excluded["site-9"] for word in words.split("|"))
    expected, _ = aggregate(good)
    for name, value in values_of(expected).items():
        np.testing.assert_array_equal(values_of(result)[name], value)
    assert values_of(result)["n"].dtype == np.int64
    assert result.metrics == {"loss": 0.1}
    assert aggregator.rounds[-1].number == 4


def test_liars_are_named_in_the_log_and_not_to_the_clients(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    liars = [model(20 + k, params(20 + k, -4.0)) for k in range(2)]
    aggregator = RobustAggregator(history=str(tmp_path / "history"))
    result, _ = aggregate([*(model(k) for k in range(6)), *liars], aggregator)
    assert aggregator.rounds[-1].accused == ("site-20", "site-21")
    assert np.abs(values_of(result)["w"] - 2.0).max() < 0.5
    assert "site-20" not in str(result.meta)  # FLARE sends the metadata of the model to every client
    assert "site-20 is not believed" in caplog.text
    line = json.loads((tmp_path / "history" / "rounds.jsonl").read_text())
    assert line["accused"] == ["site-20", "site-21"]


def test_names_in_the_log_and_the_history(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    aggregator = RobustAggregator(history=str(tmp_path / "history"), names={"site-9": "Uppsala"})
    aggregate([*(model(k) for k in range(5)), nan()], aggregator)
    assert "client Uppsala [site-9] excluded" in caplog.text
    assert json.loads((tmp_path / "history" / "rounds.jsonl").read_text())["excluded"] == ["Uppsala"]
    assert aggregator.names == {"site-9": "Uppsala"}


def test_steps_are_used_up_to_a_cap() -> None:
    models = [model(k, steps=100) for k in range(7)] + [model(7, steps=2), model(8, steps=10**5)]
    _, aggregator = aggregate(models, RobustAggregator())
    used = aggregator.rounds[-1].used
    assert used is not None
    assert used["site-8"] <= 3 * used["site-0"]
    assert used["site-7"] == pytest.approx(used["site-0"] / 50)
    _, aggregator = aggregate(models, RobustAggregator(sizes="ignore"))
    assert aggregator.rounds[-1].used is None


@pytest.mark.parametrize("name", ["current_round", "params_type"])
def test_what_one_client_says_of_the_round_does_not_stop_it(name: str) -> None:
    aggregator = RobustAggregator()
    for k in range(5):
        aggregator.accept_model(model(k))
    strange = model(9)
    setattr(strange, name, ["a", "list"])
    aggregator.accept_model(strange)
    assert set(values_of(aggregator.aggregate_model())) == {"w", "b", "n"}
    assert aggregator.rounds[-1].number == 4


def test_a_server_step_and_its_moments(tmp_path: Path) -> None:
    def play(aggregator: RobustAggregator, old: dict[str, Any], rounds: int) -> dict[str, Any]:
        for _ in range(rounds):
            context = FLContext()
            context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(old, {}), private=True, sticky=False)
            aggregator.fl_ctx = context
            models = [model(k, {n: old[n] + params(k)[n] if n != "n" else old[n] for n in old}) for k in range(5)]
            result, _ = aggregate(models, aggregator)
            old = values_of(result)
        return old

    start = {name: np.zeros_like(x) if name != "n" else x for name, x in params(0).items()}
    whole = play(RobustAggregator(server="fedavgm:lr=0.5,momentum=0.8"), start, 4)
    settings: dict[str, Any] = {"server": "fedavgm:lr=0.5,momentum=0.8", "history": str(tmp_path)}
    half = play(RobustAggregator(**settings), start, 2)
    again = play(RobustAggregator(**settings), half, 2)
    plain = play(RobustAggregator(), start, 4)
    for name in ("w", "b"):
        np.testing.assert_allclose(again[name], whole[name], rtol=1e-6)
        assert np.abs(plain[name] - whole[name]).max() > 0.1
    assert whole["n"] == 3


def test_a_server_step_on_differences() -> None:
    aggregator = RobustAggregator(server="fedavgm:momentum=0.5")
    for expected in (2.0, 3.0, 3.5):
        result, _ = aggregate(
            [model(k, params(k, 0) | {"w": np.full((6, 5), 2.0)}, kind=ParamsType.DIFF) for k in range(5)], aggregator
        )
        np.testing.assert_allclose(values_of(result)["w"], expected)
        assert result.params_type == ParamsType.DIFF


def test_a_wrong_server_step_is_refused_at_construction() -> None:
    wrong = {
        "adam": "expected one of none, fedavgm",
        "fedadam:rate=1": "'fedadam' has no setting",
        "fedadam:lr=x": "give a number",
        "fedadam:lr=-1": "lr must be a number > 0",
    }
    for server, words in wrong.items():
        with pytest.raises(ValueError, match=words):
            RobustAggregator(server=server)


def test_keeping_the_old_model_is_an_empty_difference_that_flare_can_add() -> None:
    result, aggregator = aggregate([nan(), *(model(k, {}) for k in range(2))])
    assert aggregator.rounds[-1].kept
    old = FLModel(params=params(1))
    new = FLModelUtils.update_model(old, result)
    np.testing.assert_array_equal(values_of(new)["w"], params(1)["w"])
    nothing, _ = aggregate([])
    assert nothing.params == {}


@pytest.mark.parametrize(("run", "name"), [("", "job-17"), ("spring", "spring")])
def test_the_history_names_the_run_or_flares_job(tmp_path: Path, run: str, name: str) -> None:
    aggregator = RobustAggregator(rule="mean", history=str(tmp_path), run=run)
    aggregator.fl_ctx = FLContext()
    aggregator.fl_ctx.set_prop(ReservedKey.RUN_NUM, "job-17")
    aggregate([model(k, params(k)) for k in range(4)], aggregator)
    assert json.loads((tmp_path / "rounds.jsonl").read_text())["run"] == name


def test_the_global_model_decides_layout_order_and_dtype() -> None:
    context = FLContext()
    old = {name: np.zeros_like(value) for name, value in params(0).items()}
    context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(old, {}), private=True, sticky=True)
    aggregator = RobustAggregator(rule="mean")
    aggregator.fl_ctx = context
    wide = [
        model(
            k,
            {name: np.asarray(v, np.float64) if v.dtype.kind == "f" else v for name, v in reversed(params(k).items())},
        )
        for k in range(4)
    ]
    result, _ = aggregate([*wide, model(9, {"other": np.zeros(3)})], aggregator)
    assert list(values_of(result)) == list(old)
    assert {name: v.dtype for name, v in values_of(result).items()} == {name: v.dtype for name, v in old.items()}
    majority, _ = aggregate([model(k, {"other": np.zeros(3)}) for k in range(3)], aggregator)
    assert majority.params == {}


def test_one_client_does_not_choose_the_form_of_the_model() -> None:
    good = [model(k, {"fc.w": params(k)["w"]}) for k in range(4)]
    nested = model(9, {"fc": {"w": params(9)["w"]}})  # lies where "fc.w" does, and no client could load it
    result, aggregator = aggregate([nested, *good])
    assert not aggregator.rounds[-1].excluded
    assert list(values_of(result)) == ["fc.w"]


def test_differences_are_averaged_as_differences() -> None:
    result, _ = aggregate([model(k, kind=ParamsType.DIFF) for k in range(3)])
    assert result.params_type == ParamsType.DIFF
    assert np.abs(values_of(result)["w"] - 2.0).max() < 0.7


@pytest.mark.parametrize("wrong", [{"rule": "nonsense"}, {"quorum": 2}, {"doubt": "x"}, {"settings": {"x": 1}}])
def test_wrong_arguments_are_errors_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        RobustAggregator(**wrong)


def test_arguments_are_plain_and_kept_under_their_names() -> None:
    """FLARE writes a component's arguments into the job by reading the attributes of the same names."""
    arguments: dict[str, Any] = {
        "rule": "multi_krum",
        "settings": {"f": 2},
        "pre": ["nnm"],
        "quorum": 0.4,
        "doubt": "keep",
        "history": "",
    }
    arguments["pre"] = [["nnm", {"f": 1}]]
    aggregator = RobustAggregator(**arguments)
    assert {name: getattr(aggregator, name) for name in arguments} == arguments
    json.dumps(arguments)


def test_the_documented_allow_list_accepts_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "how-to" / "nvflare.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```json\n")[1:]]
    documented = json.loads(next(block for block in blocks if "class_allow_list" in block))
    authorizer = ComponentPathAuthorizer()
    resources = tmp_path / "resources.json"
    monkeypatch.setattr(authorizer, "_get_resources_file_path", lambda **where: str(resources))
    ours = {"path": f"{RobustAggregator.__module__}.{RobustAggregator.__qualname__}"}
    resources.write_text("{}")
    monkeypatch.setattr(authorizer, "_report_default_allow_list", lambda **where: None)
    with pytest.raises(UnsafeComponentError, match="not in allow_list"):
        authorizer.authorize_component_config(ours)
    resources.write_text(json.dumps(documented))
    authorizer.authorize_component_config(ours)
    authorizer.authorize_component_config({"path": "nvflare.app_common.np.np_model_persistor.NPModelPersistor"})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_in_the_simulator_with_hostile_sites(tmp_path: Path) -> None:
    source = str(Path(honestly.__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": source, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}

    def run(*options: str) -> str:
        log = tmp_path / "log"
        with log.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, EXAMPLE / "job.py", "--sites", "7", "--rounds", "3", *options],
                cwd=tmp_path, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                popen.wait(180)
            finally:
                if popen.poll() is None:
                    os.killpg(popen.pid, signal.SIGKILL)
                    popen.wait(10)
        return log.read_text(errors="replace")

    said = run("--attacks", "sign_flip,nan,wrong_shape", "--out", "robust")
    assert (tmp_path / "robust" / "result.json").exists(), said[-3000:]
    assert json.loads((tmp_path / "robust" / "result.json").read_text())["accuracy"] > 0.75
    lines = [json.loads(line) for line in (tmp_path / "robust" / "history" / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert "NaN" in line["reasons"]["site-6"]
        assert "shape" in line["reasons"]["site-5"]
        assert "site-7" in line["accused"]
        assert not line["kept"]
    mean = run("--attacks", "sign_flip,nan", "--mean", "--out", "mean")
    result = tmp_path / "mean" / "result.json"
    assert result.exists(), mean[-3000:]
    assert json.loads(result.read_text())["accuracy"] < 0.2  # FLARE's own average of the same sites is NaN
