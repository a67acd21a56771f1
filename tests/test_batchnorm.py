"""Buffers do not affect verdicts: a real BatchNorm network on raw pixels, and liars that flip only the weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flower_messages
import numpy as np
import pytest
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from safetensors.torch import load_file, save_file
from torch import nn
from torch_threads import one_thread

import honestly as hn
from honestly.cli import main
from honestly.flower import RobustFedAvg
from honestly.nvflare import RobustAggregator
from honestly.sim.data import load

__all__ = ["one_thread"]
K, LIARS, ROUNDS, EPOCHS = 8, (2, 5), 8, 3
State = dict[str, torch.Tensor]
#: (server's model, clients' models) -> the new model, the accused clients
Server = Callable[[State, list[State]], tuple[State, list[int]]]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(144, 10),
    )  # fmt: skip


def plain(updates: State, clients: list[State]) -> tuple[State, list[int]]:
    out = hn.aggregate(clients, reference=updates)
    return out.value, list(out.accused)


def flower(model: State, clients: list[State]) -> tuple[State, list[int]]:
    def arrays(state: State) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in state.items()}

    strategy = RobustFedAvg()
    strategy._model = flower_messages.record(arrays(model))
    first = flower_messages.FIRST_NODE
    replies = [flower_messages.reply(first + k, arrays(state)) for k, state in enumerate(clients)]
    record, _ = strategy.aggregate_train(1, replies)
    assert record is not None
    value = {name: torch.tensor(array.numpy()) for name, array in record.items()}
    return value, [node - first for node in strategy.history[-1].accused]


def nvflare(model: State, clients: list[State]) -> tuple[State, list[int]]:
    aggregator = RobustAggregator()
    context = FLContext()
    context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable({k: v.numpy() for k, v in model.items()}, {}))
    aggregator.fl_ctx = context
    for k, state in enumerate(clients):
        params = {name: tensor.numpy() for name, tensor in state.items()}
        aggregator.accept_model(FLModel(params=params, params_type=ParamsType.FULL, meta={"client_name": str(k)}))
    found = aggregator.aggregate_model()
    value = {name: torch.as_tensor(values) for name, values in found.params.items()}
    return value, [int(name) for name in aggregator.rounds[-1].accused]


def shell(tmp_path: Path) -> Server:
    def run(model: State, clients: list[State]) -> tuple[State, list[int]]:
        paths = [str(tmp_path / f"{k}.safetensors") for k in range(K)]
        for path, state in zip([*paths, str(tmp_path / "model.safetensors")], [*clients, model], strict=True):
            save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
        out, report = tmp_path / "out.safetensors", tmp_path / "report.json"
        reference = str(tmp_path / "model.safetensors")
        ids = ",".join(map(str, range(K)))
        status = main(["aggregate", *paths, "-o", str(out), "--reference", reference, "--ids", ids,
                       "--report", str(report), "--quiet"])  # fmt: skip
        assert status == 0
        return load_file(out), [int(name) for name in json.loads(report.read_text())["accused"]]

    return run


@pytest.mark.parametrize("place", ["hn.aggregate", "RobustFedAvg", "NVFlare", "honestly aggregate"])
def test_liars_with_honest_buffers_are_caught_in_every_round(place: str, tmp_path: Path) -> None:
    server = {"hn.aggregate": plain, "RobustFedAvg": flower, "NVFlare": nvflare}.get(place) or shell(tmp_path)
    data = load("digits")
    images, labels = torch.tensor(data.images).float(), torch.tensor(data.labels).long()  # raw pixels
    module = network()
    model: State = copy.deepcopy(module.state_dict())
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    for _ in range(ROUNDS):
        clients: list[State] = []
        for k in range(K):
            module.load_state_dict(model)
            module.train()
            optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
            mine = order[k::K]
            for batch in mine.repeat(EPOCHS).split(16):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(images[batch]), labels[batch]).backward()
                optimiser.step()
            state = copy.deepcopy(module.state_dict())
            if k in LIARS:  # weights of the other sign, buffers as they are
                state |= {name: -state[name] for name, _ in module.named_parameters()}
            clients.append(state)
        model, accused = server(model, clients)
        assert sorted(accused) == list(LIARS)
        assert all(bool((model[name] > 0).all()) for name in model if name.endswith("running_var"))
    module.load_state_dict(model)
    module.eval()
    tests = torch.tensor(data.test_images).float()
    right = module(tests).argmax(1) == torch.tensor(data.test_labels)
    assert float(right.float().mean()) >= 0.97


def states(rng: np.random.Generator) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A model and nine clients, one of which lies."""
    model = {"conv.weight": rng.normal(size=(8, 9)), "bn.running_var": rng.uniform(50, 100, size=8)}
    clients = [{name: x + 0.1 * rng.normal(size=x.shape) for name, x in model.items()} for _ in range(9)]
    clients[4]["conv.weight"] = -5 * clients[4]["conv.weight"]
    return model, clients


def test_buffers_can_follow_be_judged_or_be_ignored() -> None:
    model, clients = states(np.random.default_rng(0))
    out = hn.aggregate(clients, reference=model)
    assert out.verdicts[4] is hn.Verdict.UNUSUAL  # far, alone
    others = [k for k in range(9) if k != 4]
    honest = np.mean([clients[k]["conv.weight"] for k in range(9) if k != 4], axis=0)
    assert np.abs(out.value["conv.weight"] - honest).max() < 0.2
    buffers = [c["bn.running_var"] for c in clients]
    assert (np.min(buffers, axis=0) <= out.value["bn.running_var"]).all()
    assert (out.value["bn.running_var"] <= np.max(buffers, axis=0)).all()
    kept = hn.aggregate(clients, reference=model, buffers="ignore")
    np.testing.assert_array_equal(kept.value["bn.running_var"], model["bn.running_var"])
    np.testing.assert_array_equal(kept.value["conv.weight"], out.value["conv.weight"])
    for rule in ("bayesian", "mean", "median", "geometric_median"):
        free = hn.aggregate(clients, rule, buffers="ignore").value["bn.running_var"]
        assert any(
            np.array_equal(free, clients[k]["bn.running_var"]) for k in (others if rule == "bayesian" else range(9))
        )
    for k in range(9):
        clients[k]["bn.running_var"] = clients[k]["bn.running_var"] * (100 if k == 7 else 1)
    assert 7 in hn.aggregate(clients, reference=model, buffers="judge").accused
    assert 7 not in hn.aggregate(clients, reference=model).accused


@pytest.mark.parametrize("rule", ["bayesian", "mean", "median", "nnm:f=1+median"])
@pytest.mark.parametrize("lie", ["bn.running_mean", "bn.running_var"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_who_sends_the_mean_of_the_parameters_does_not_choose_the_buffers(rule: str, lie: str, library: str) -> None:
    """No client is nearer to the result; its buffers would be everybody's."""
    rng = np.random.default_rng(3)
    clients: list[dict[str, Any]] = [
        {
            "conv.weight": rng.normal(size=300).astype(np.float32),
            "bn.running_mean": rng.normal(0, 0.1, size=8).astype(np.float32),
            "bn.running_var": rng.uniform(50, 100, size=8).astype(np.float32),
        }
        for _ in range(9)
    ]
    for k, distance in ((0, 300.0), (1, 3e8)):  # the farther one must not hide the other in rounding
        clients[k]["conv.weight"] = np.mean([c["conv.weight"] for c in clients[2:]], axis=0)
        clients[k][lie] = clients[k][lie] + np.float32(distance)
    honest = [c[lie] for c in clients[2:]]
    if library == "torch":
        clients = [{name: torch.tensor(x) for name, x in c.items()} for c in clients]
    found = np.asarray(hn.aggregate(clients, rule, buffers="ignore").value[lie])
    assert any(np.array_equal(found, x) for x in honest)


@pytest.mark.parametrize("rule", ["bayesian", "mean", "median"])
@pytest.mark.parametrize("scattered", [True, False])
def test_a_minority_of_many_clients_does_not_choose_the_buffers(rule: str, scattered: bool) -> None:
    """Wherever they stand: of many clients, some were compared that were evenly spaced, and these could lie."""
    rng = np.random.default_rng(5)
    clients = [{"w": rng.normal(size=20), "bn.running_mean": rng.normal(size=8)} for _ in range(600)]
    for k in np.linspace(0, 599, 256).astype(int)[:200] if scattered else range(270):
        clients[k]["bn.running_mean"] += 1e4
    assert np.abs(hn.aggregate(clients, rule, buffers="ignore").value["bn.running_mean"]).max() < 5


def test_ignored_buffers_of_files(tmp_path: Path) -> None:
    model, clients = states(np.random.default_rng(1))
    for name, state in {"model": model, **{f"c{k}": c for k, c in enumerate(clients)}}.items():
        save_file({n: torch.tensor(x).float() for n, x in state.items()}, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / f"c{k}.safetensors" for k in range(9)]
    for rule in ("bayesian", "median"):
        for reference in (None, tmp_path / "model.safetensors"):
            out = hn.aggregate(paths, rule, reference=reference, buffers="ignore", out=tmp_path / "out.safetensors")
            found = load_file(out.value)["bn.running_var"]
            if reference is not None:
                assert torch.equal(found, torch.tensor(model["bn.running_var"]).float())
            else:
                assert any(torch.equal(found, torch.tensor(c["bn.running_var"]).float()) for c in clients)


def test_a_module_or_names_identify_buffers() -> None:
    model, clients = states(np.random.default_rng(2))
    module = nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.BatchNorm2d(2, affine=False))
    lists = [list(c.values()) for c in clients]  # "[0]" and "[1]": BatchNorm's first buffer is second in its state_dict
    for told in (module, ["[1]"]):
        out = hn.aggregate(lists, reference=list(model.values()), buffers=told)
        np.testing.assert_array_equal(out.honesty, hn.aggregate(clients, reference=model).honesty)
    with pytest.raises(ValueError, match="buffers is 'average'"):
        hn.aggregate(clients, buffers="average")
