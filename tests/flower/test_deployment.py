"""SuperLink and SuperNodes as processes on loopback, with liars among the clients."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from flower_processes import EXAMPLES, Flower, Process, accuracy, flower, free_port, rounds, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def node_id(process: Process) -> str:
    def found() -> str:
        match = re.search(r"SuperNode ID: (\d+)", process.text())
        return match[1] if match else ""

    return wait_for(found, 60, f"the connection of {process.name}")


def test_a_hostile_federation_learns_and_says_who_lied(tmp_path: Path) -> None:
    attacks = ["", "", "", "", "", "", "sign_flip", "nan", "wrong_shape", "size_liar", "hang"]
    marker = tmp_path / "round-2-has-begun"
    with flower(tmp_path) as federation:
        federation.superlink()
        nodes = [
            federation.supernode(k, len(attacks), attack=attack, marker=str(marker)) for k, attack in enumerate(attacks)
        ]
        ids = {attack: node_id(node) for attack, node in zip(attacks, nodes, strict=True)}
        honest = {node_id(node) for attack, node in zip(attacks, nodes, strict=True) if not attack}
        federation.run(
            "flower-quickstart",
            {
                "num-server-rounds": 3,
                "local-epochs": 10,
                "min-nodes": len(attacks) - 1,
                "timeout": 60.0,
                "out": str(tmp_path / "out"),
            },
        )
        wait_for(marker.exists, 200, "round 2")
        nodes[-1].stop(at_once=True)  # killed in mid-round
        assert federation.finish(seconds=300) == ["finished:completed"]
    history = rounds(tmp_path / "out")
    assert len(history) == 3
    for line in history:
        assert not line["kept"]
        reasons = line["reasons"]
        assert "NaN" in reasons[ids["nan"]]
        assert "shape" in reasons[ids["wrong_shape"]]
        assert "1000000000 examples" in reasons[ids["size_liar"]]
        assert ids["sign_flip"] in line["accused"]
        assert not honest & set(reasons)
    assert ids["hang"] not in history[0]["reasons"]
    assert ids["hang"] in history[1]["reasons"]
    assert accuracy(tmp_path / "out")[-1] > 0.8
    with np.load(tmp_path / "out" / "model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)


def test_tls_and_authenticated_nodes(tmp_path: Path) -> None:
    """With examples/flower-deployment's own scripts: a stranger is refused, and a node keeps its id over a restart."""
    scripts = EXAMPLES / "flower-deployment"
    keys, superlink = tmp_path / "keys", free_port()
    with flower(tmp_path) as federation:
        federation.port, federation.connection = superlink, "tls"
        environment = federation.environment
        subprocess.run([scripts / "keys.sh", "6", keys], check=True, timeout=120, env=environment, capture_output=True)
        (keys / "stranger").write_bytes((keys / "node5").read_bytes())
        (keys / "node5").unlink()
        (keys / "node5.pub").unlink()
        start_script(federation, "superlink", scripts / "superlink.sh", str(keys), str(superlink))
        wait_for(federation._listens, 60, "the SuperLink's start")
        said = subprocess.run(
            [scripts / "register.sh", keys], check=True, timeout=120, env=environment, capture_output=True, text=True
        )
        assert said.stdout.lower().count("success") >= 5, said.stdout + said.stderr
        nodes = [
            start_script(
                federation, f"node{k}", scripts / "supernode.sh", str(k), "5", str(keys), f"127.0.0.1:{superlink}",
                PORT=str(free_port()), ATTACK="sign_flip" if k == 4 else "",
            )
            for k in range(5)
        ]  # fmt: skip
        liar, first = node_id(nodes[4]), node_id(nodes[0])
        stranger = start_script(
            federation, "stranger", scripts / "supernode.sh", "0", "5", str(keys), f"127.0.0.1:{superlink}",
            PORT=str(free_port()), KEY="stranger",
        )  # fmt: skip
        assert stranger.popen.wait(60) == 305 % 256 or "305" in stranger.text(), stranger.text()
        nodes[0].stop()
        again = start_script(
            federation, "node0-again", scripts / "supernode.sh", "0", "5", str(keys), f"127.0.0.1:{superlink}",
            PORT=str(free_port()),
        )  # fmt: skip
        assert node_id(again) == first
        federation.run("flower-quickstart", {"num-server-rounds": 2, "min-nodes": 5, "out": str(tmp_path / "out")})
        assert federation.finish() == ["finished:completed"]
    history = rounds(tmp_path / "out")
    assert len(history) == 2
    assert all(liar in line["accused"] and not line["kept"] for line in history)
    assert accuracy(tmp_path / "out")[-1] > 0.6


def start_script(federation: Flower, name: str, script: Path, *arguments: str, **environment: str) -> Process:
    log = federation.folder / f"{name}.log"
    with log.open("wb") as out:
        popen = subprocess.Popen(
            [script, *arguments], cwd=federation.folder, env=federation.environment | environment,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    process = Process(name, popen, log)
    federation.processes.append(process)
    return process


def hostile_runs(folder: Path, attacks: str) -> dict[str, tuple[str, float]]:
    """Status and final accuracy of each strategy with the same clients, in Flower's simulation; NaN: model lost."""
    found: dict[str, tuple[str, float]] = {}
    with flower(folder) as federation:
        federation.superlink("--simulation")
        for number, name in enumerate(("robust", "fedavg", "fedmedian", "krum"), start=1):
            out = folder / name
            federation.run(
                "flower-quickstart",
                {
                    "strategy": name, "attacks": attacks, "num-server-rounds": 2, "local-epochs": 10, "min-nodes": 9,
                    "out": str(out),
                },
                "--federation-config", "num-supernodes=9 client-resources-num-cpus=1 init-args-num-cpus=2",
            )  # fmt: skip
            status = federation.finish(number)[-1]
            why = federation.flwr("list", federation.connection, "--format", "json")
            assert name != "robust" or status == "finished:completed", why  # while the SuperLink's log is still shown
            finite = False
            if (out / "model.npz").exists():
                with np.load(out / "model.npz") as model:
                    finite = all(bool(np.isfinite(model[key]).all()) for key in model.files)
            found[name] = status, accuracy(out)[-1] if finite else float("nan")
    return found


def test_compared_with_flower_one_client_sends_nan(tmp_path: Path) -> None:
    """Flower's FedAvg and FedMedian report a completed run whose model is NaN."""
    found = hostile_runs(tmp_path, "sign_flip,sign_flip,nan")
    assert all(status == "finished:completed" for status, _ in found.values())
    assert found["robust"][1] > 0.8
    assert np.isnan(found["fedavg"][1])
    assert np.isnan(found["fedmedian"][1])
    assert found["krum"][1] <= found["robust"][1] + 0.05  # one client's model, told how many attackers there are


def test_compared_with_flower_one_client_sends_a_wrong_shape(tmp_path: Path) -> None:
    """One array of the wrong shape ends the run of each of Flower's own."""
    found = hostile_runs(tmp_path, "sign_flip,sign_flip,wrong_shape")
    assert found["robust"][0] == "finished:completed"
    assert found["robust"][1] > 0.8
    for name in ("fedavg", "fedmedian", "krum"):
        assert found[name][0] == "finished:failed"
