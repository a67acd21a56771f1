"""The adapters for APPFL, Fed-BioMed and OpenFL by the signatures of these packages; and, slowly, by the packages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from stand_ins import LocalTensor, adapter

ROOT = Path(__file__).parents[2]
OLD = {"w": np.zeros((4, 20), "f4"), "b": np.zeros(3, "f4")}


def sent(k: int, factor: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(k)
    return {name: (factor * (1 + 0.3 * rng.normal(size=v.shape))).astype("f4") for name, v in OLD.items()}


def federation() -> dict[str, dict[str, np.ndarray]]:
    """Seven honest clients, two liars, one whose tensor is NaN and one with another layout."""
    found = {f"site-{k}": sent(k) for k in range(7)} | {f"liar-{k}": sent(k, -4.0) for k in range(2)}
    found["nan"] = {**sent(9), "b": np.full(3, np.nan, "f4")}
    found["odd"] = {"w": sent(10)["w"]}
    return found


def tensors(model: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.from_numpy(np.array(values)) for name, values in model.items()}


def check(record: Any) -> None:
    assert set(record.accused) == {"liar-0", "liar-1"}
    assert set(record.excluded) == {"nan", "odd"}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = (torch.nn.Parameter(torch.from_numpy(np.array(OLD[name]))) for name in ("w", "b"))


def test_appfl_averages_the_believed_clients(tmp_path: Path) -> None:
    with adapter("appfl") as module:
        aggregator = module.RobustAggregator(Net(), {"rule": "bayesian", "history": str(tmp_path), "num_clients": 11})
        assert torch.equal(aggregator.get_parameters(init_model=True)["w"], torch.zeros(4, 20))
        models = {client: tensors(model) for client, model in federation().items()}
        for client in models:
            aggregator.set_client_sample_size(client, 100)
        value = aggregator.aggregate(models, round={})
        check(aggregator.rounds[0])
        assert 0.8 < float(value["w"].mean()) < 1.2
        assert torch.equal(aggregator.model.state_dict()["w"], value["w"])
        value["w"].zero_()  # what was handed out is a copy
        assert float(aggregator.get_parameters()["w"].mean()) > 0.8
        kept = aggregator.aggregate({"a": None, "b": {}, "c": {"w": "x"}})
        assert aggregator.rounds[1].kept
        assert float(kept["w"].mean()) > 0.8


def test_appfl_refuses_what_it_cannot_judge(tmp_path: Path) -> None:
    with adapter("appfl") as module:
        make = module.RobustAggregator
        with pytest.raises(ValueError, match="send_gradient"):
            make(Net(), {"gradient_based": True})
        with pytest.raises(ValueError, match="use_secure_agg"):
            make(Net(), {"use_secure_agg": True})
        with pytest.raises(ValueError, match="'ruel'"):
            make(Net(), {"ruel": "mean"})
        with pytest.raises(ValueError, match="model_path"):
            make(None, {}).get_parameters()
        with pytest.raises(ValueError, match="chunk"):
            make(Net(), {}).aggregate({}, _chunk_idx={"a": 0})


def test_fedbiomed_averages_believed_nodes_or_keeps_the_model(tmp_path: Path) -> None:
    with adapter("fedbiomed") as module:
        aggregator = module.RobustAggregator(history=str(tmp_path))
        params = {node: tensors(model) for node, model in federation().items()}
        weights = dict.fromkeys(params, 1 / len(params))
        value = aggregator.aggregate(params, weights, global_model=tensors(OLD), n_round=0, node_ids=list(params))
        check(aggregator.rounds[0])
        assert aggregator.rounds[0].number == 1
        assert 0.8 < float(value["w"].mean()) < 1.2
        assert not aggregator.create_aggregator_args()
        kept = aggregator.aggregate({"a": None, "b": {}}, {}, global_model=tensors(OLD), n_round=1)
        assert torch.equal(kept["w"], torch.zeros(4, 20))
        with pytest.raises(ValueError, match="no previous model to keep"):
            aggregator.aggregate({"a": None}, {})


def test_fedbiomed_resumes_from_a_breakpoint() -> None:
    with adapter("fedbiomed") as module:
        aggregator = module.RobustAggregator(forgetting=0.8, quorum=0.25)
        for number in range(2):
            params = {node: tensors(model) for node, model in federation().items()}
            aggregator.aggregate(params, dict.fromkeys(params, 0.1), global_model=tensors(OLD), n_round=number)
        state = json.loads(json.dumps(aggregator.save_state_breakpoint("folder", global_model=None)))
        assert (state["class"], state["module"]) == ("RobustAggregator", "honestly.fedbiomed")
        again = module.RobustAggregator()
        again.load_state_breakpoint(state)
        assert again.referee.quorum == 0.25
        assert again.referee.rule.memory == aggregator.referee.rule.memory
        assert again.referee.rule.memory.records


def rows(models: dict[str, dict[str, np.ndarray]], number: int = 0) -> list[dict[str, Any]]:
    found = [{"round": number, "nparray": v, "tensor_name": n, "tags": ("model",)} for n, v in OLD.items()]
    for who, model in models.items():
        found += [{"round": number, "nparray": v, "tensor_name": n, "tags": ("trained", who)} for n, v in model.items()]
        found.append({"round": number, "nparray": 0.5, "tensor_name": "loss", "tags": ("metric", who)})
        old = np.full(3, 9e9, "f4")  # of the round before
        found.append({"round": number - 1, "nparray": old, "tensor_name": "b", "tags": ("trained", who)})
    return found


def test_openfl_judges_whole_models_once_per_round(tmp_path: Path) -> None:
    with adapter("openfl") as module:
        function = module.RobustAggregation(history=str(tmp_path))
        models = {who: model for who, model in federation().items() if who != "odd"}
        # "odd" has the tensor that OpenFL asks for, and another one that is not the model's
        models["odd"] = {**sent(10), "extra": np.ones(2, "f4")}
        local = {n: [LocalTensor(who, m[n], 1 / len(models)) for who, m in models.items()] for n in OLD}
        value = {n: function(local[n], iter(rows(models)), n, 0, ("trained",)) for n in OLD}
        assert len(function.rounds) == 1
        check(function.rounds[0])
        assert "extra" in function.rounds[0].excluded["odd"]
        assert 0.8 < float(value["w"].mean()) < 1.2
        assert 0.5 < float(value["b"].mean()) < 1.5
        function(local["w"], iter(rows(models, 1)), "w", 1, ("trained",))
        assert len(function.rounds) == 2


def test_openfl_keeps_the_old_values_or_raises_without_any() -> None:
    with adapter("openfl") as module:
        function = module.RobustAggregation()
        broken = {f"site-{k}": {n: np.full_like(v, np.nan) for n, v in OLD.items()} for k in range(3)}
        local = [LocalTensor(who, model["w"], 1 / 3) for who, model in broken.items()]
        assert np.array_equal(function(local, iter(rows(broken)), "w", 0, ("trained",)), OLD["w"])
        with pytest.raises(ValueError, match="no old value"):
            function(local, iter([]), "w", 1, ("trained",))


@pytest.mark.parametrize("name", ["appfl", "fedbiomed", "openfl"])
def test_without_the_package_the_error_says_what_to_install(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ModuleNotFoundError, match=f"pip install .*{name}"):
        importlib.import_module(f"honestly.{name}")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["appfl", "fedbiomed", "openfl"])
def test_with_the_real_package(name: str, tmp_path: Path) -> None:
    """`HONESTLY_PYTHON_APPFL` and so on name the Python of an environment that has the package, if ours has not."""
    python = os.environ.get(f"HONESTLY_PYTHON_{name.upper()}", sys.executable)
    probe = subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{name} is not installed here; set HONESTLY_PYTHON_{name.upper()} to a Python that has it")
    digits = ROOT / "src" / "honestly" / "sim" / "data" / "digits.npz"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "DIGITS": str(digits), "OMP_NUM_THREADS": "1"}
    found = {}
    for rule in ("mean", "bayesian"):
        folder = tmp_path / rule
        folder.mkdir()
        command = [python, str(Path(__file__).with_name(f"real_{name}.py")), str(folder), rule]
        run = subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True, check=False, timeout=700
        )
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
        found[rule] = json.loads(run.stdout.rpartition("FOUND ")[2].splitlines()[0])
    assert found["mean"]["accuracy"] < 0.6
    assert found["bayesian"]["accuracy"] > 0.75
    assert found["bayesian"]["rounds"] == 4
    assert {who[-1] for who in found["bayesian"]["accused"]} == {"5", "6", "7"}
