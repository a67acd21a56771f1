"""Every example runs as it is printed, in a process of its own, and shows what it promises."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import honestly as hn

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _accuracies(text: str, rule: str) -> list[float]:
    return [float(a) for a in re.search(rf"^{rule}\s+accuracy by round: (.*)$", text, re.M)[1].split()]


def library(said: str) -> None:
    assert "Porto    honest with probability 0.00   excluded: tensor 'layer.bias' at flat index 3 is NaN" in said
    assert re.search(r"average weight: 0\.5\d, and by the plain mean -0\.3", said)


def custom_rule(said: str) -> None:
    averages = dict(re.findall(r"^(\S+(?: \+ \S+)?)\s+average ([+-]\S+)", said, re.M))
    assert float(averages["mean"]) < 0 < 0.4 < float(averages["medoid_mean"])


def custom_attack(said: str) -> None:
    kappa = {line.split()[0]: float(line.split()[2]) for line in said.splitlines()}
    assert kappa["bayesian"] < 0.1 * kappa["mean"]


def training(said: str) -> None:
    assert max(_accuracies(said, "mean")) < 0.5
    assert _accuracies(said, "bayesian")[-1] > 0.85
    assert "[1. 1. 1. 1. 1. 1. 0. 0. 0. 0.]" in said


def files(said: str) -> None:
    assert re.findall(r"client-(\d).npz\s+honest with probability 0\.00", said) == ["5", "6", "7"]
    assert "written: global.safetensors" in said


def study(said: str) -> None:
    assert said.startswith("8 runs, 8 done")
    found = {tuple(row.split()[:2]): [float(a) for a in row.split()[2:]] for row in said.splitlines()[1:]}
    assert max(found["FedAvg", "sign_flip"]) < 0.5 < 0.8 < min(found["Ours", "sign_flip"])


def torch_ddp(said: str) -> None:
    found = dict(re.findall(r"^(\S+(?: \S+)?)\s+loss after .* accuracy: (\S+)$", said, re.M))
    assert float(found["plain"]) < 0.2
    assert float(found["clipping"]) < 0.2
    assert float(found["robust"]) > 0.9
    assert "refused: {6: \"tensor '3.bias' at flat index 0 is NaN\"}" in said
    assert float(re.search(r"^weights: \[.* (\S+) *\]$", said, re.M)[1]) < 0.07  # rank 7's


def diloco(said: str) -> None:
    found = dict(re.findall(r"^(\S+)\s+loss: .* accuracy: (\S+)$", said, re.M))
    assert float(found["mean"]) < 0.3 < 0.9 < float(found["bayesian"])
    assert float(re.search(r"^weights: \[.* (\S+) *\]$", said, re.M)[1]) < 0.07


def lora_transformer(said: str) -> None:
    found = {
        (rule, int(n)): float(phrase)
        for rule, n, phrase in re.findall(r"^(\S+) +round (\d).* known (\S+),", said, re.M)
    }
    assert found["mean", 2] > 0.6
    assert found["bayesian", 2] < 0.5
    assert said.count("accused [6, 7, 8, 9]") == 2


def async_buffer(said: str) -> None:
    accuracy = {name: float(a) for name, a in re.findall(r"^(\w+): accuracy (\S+);", said, re.M)}
    assert accuracy["mean"] < 0.75
    assert accuracy["bayesian"] > 0.85
    assert re.search(r"^bayesian: restarted at version 12 with 5 updates waiting$", said, re.M)
    accused = re.findall(r"site-(\d+) in", said)
    assert set(accused[:2]) <= {"16", "17", "18", "19"}


CHECKS = {
    "library": library,
    "custom_rule": custom_rule,
    "custom_attack": custom_attack,
    "torch_training": training,
    "jax_training": training,
    "files": files,
    "study": study,
    "torch_ddp": torch_ddp,
    "diloco": diloco,
    "lora_transformer": lora_transformer,
    "async_buffer": async_buffer,
}
SLOW = {"torch_ddp", "diloco", "lora_transformer"}  # eight processes each; twice ten clients


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in EXAMPLES],
)
def test_it_runs_and_shows_what_it_promises(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path)]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    CHECKS[path.stem](run.stdout)  # an example without a check is not finished


def test_the_asynchronous_server_outlives_a_restart_while_clients_train(tmp_path: Path) -> None:
    """A client that comes back with a model of before the restart: its base is gone, and it is no difference."""
    import torch

    example = runpy.run_path(str(ROOT / "examples" / "async_buffer.py"))
    start = {"w": torch.full((40,), 5.0)}
    trained = [{"w": start["w"] + 1 + 0.01 * k} for k in range(example["SIZE"])]
    for rule in (hn.Mean(), hn.Mean()):  # the second server finds what the first one saved
        server = example["Server"](start, rule, tmp_path)
        for k, model in enumerate(trained):
            server.receive(f"site-{k}", model, 0)
        assert server.buffer.version == 1
        assert 5.9 < float(server.model["w"].mean()) < 6.2
        del server
