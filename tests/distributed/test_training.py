"""DDP, FSDP2, DiLoCo and local SGD, and what is kept of every step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rank_training as jobs
import torch
from ranks import run

import honestly as hn
from honestly.torch import RobustAverager, RobustOuterOptimizer


@pytest.mark.parametrize("bucket_cap_mb", [25, 0.0001])
def test_ddp_in_one_bucket_or_many_is_one_all_reduce(bucket_cap_mb: float) -> None:
    found = run(jobs.ddp, 4, bucket_cap_mb, 2)
    for out in found:
        for step in range(2):
            for a, b in zip(out["ddp"][step], out["whole"][step], strict=True):
                np.testing.assert_allclose(a, b, atol=1e-7)
            for a, b in zip(out["ddp"][step], found[0]["ddp"][step], strict=True):
                assert a.tobytes() == b.tobytes()
            hook, whole = out["honesty"][step]
            np.testing.assert_allclose(hook, whole, atol=1e-6)
            assert hook[2] < 0.5 < min(hook[0], hook[1], hook[3])
        assert out["memory"] == found[0]["memory"]


@pytest.mark.parametrize(("fault", "said"), [("nan", "only 1 of 3 clients can be used"), ("lie", "slice of rank 2")])
def test_ddp_goes_on_after_a_step_that_fails_on_all_ranks(fault: str, said: str) -> None:
    found = run(jobs.ddp_goes_on, 3, fault)
    for text, lost, after in found:
        assert said in text
        assert lost
        assert after == found[0][2]
        assert np.isfinite(after).all()


def test_fsdp2_is_robust_over_replicas() -> None:
    found = run(jobs.sharded, 6, 1, -1)
    replicas = [found[2 * replica]["own"] for replica in range(3)]
    zeros = [torch.zeros(x.shape) for x in replicas[0]]
    whole = hn.aggregate([[torch.from_numpy(x) for x in replica] for replica in replicas], reference=zeros)
    for out in found:
        for mine, theirs in zip(out["averaged"], whole.value, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), atol=1e-6)
        np.testing.assert_allclose(out["honesty"], whole.honesty, atol=1e-4)
        assert out["weights"][1] < 0.5 * min(out["weights"][0], out["weights"][2])


def test_fsdp2_a_shard_that_is_not_finite_excludes_its_replica() -> None:
    found = run(jobs.sharded, 6, -1, 5)  # rank 5 is a shard of the last replica, of ranks 4 and 5
    for out in found:
        assert list(out["reasons"]) == [2]
        assert "is infinite" in next(iter(out["reasons"].values()))
        assert all(np.isfinite(x).all() for x in out["averaged"])


def test_shards_that_disagree_get_an_error_on_every_rank() -> None:
    for text in run(jobs.shards_that_differ, 4):
        assert "rule Median()" in text
        assert "rank 3" in text


@pytest.mark.parametrize("outer", ["local", "diloco", "adam"])
def test_outer_optimisers(outer: str) -> None:
    found = run(jobs.outer, 3, outer, 1)
    assert len({out["hash"] for out in found}) == 1
    for out in found:
        assert [excluded for excluded, _ in out["outs"]] == [(), (1,), ()]
        assert out["outs"][1][1] == {1: "tensor '0.weight' at flat index 0 is NaN"}
        assert np.isfinite(out["loss"])
    assert all(out["loss"] < 1.3 for out in found)


@pytest.mark.parametrize("options", [{"rule": "geometric_median"}, {"rule": "bayesian", "verify": 3.0}])
def test_tensors_that_all_shards_have_count_once(options: dict) -> None:
    rng = np.random.default_rng(3)
    given = [[rng.normal(size=(6, 4)), rng.normal(size=5) * (1 + 3 * k)] for k in range(4)]
    whole = hn.aggregate(given, rule=options["rule"])
    for out in run(jobs.replicated, 8, given, -1, options):
        np.testing.assert_allclose(out["weights"], whole.weights, atol=1e-6)
        for mine, theirs in zip(out["value"], whole.value, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_fault_in_a_copy_that_is_not_counted_excludes_its_replica() -> None:
    rng = np.random.default_rng(3)
    given = [[rng.normal(size=(6, 4)), rng.normal(size=5)] for _ in range(3)]
    for out in run(jobs.replicated, 6, given, 5, {}):
        assert out["reasons"] == {2: "tensor '[1]' at flat index 0 is NaN"}
        assert all(np.isfinite(x).all() for x in out["value"])


def test_a_state_from_another_device_or_precision_is_converted() -> None:
    net = torch.nn.BatchNorm1d(3)
    outer = RobustOuterOptimizer(net, every=1, broadcast=False)
    state = outer.state_dict()
    outer.load_state_dict({**state, "buffers": {name: x.double() + 1 for name, x in state["buffers"].items()}})
    again = outer.state_dict()["buffers"]
    assert {x.dtype for x in again.values()} == {torch.float32}
    assert all(torch.equal(again[name], x + 1) for name, x in state["buffers"].items())


def test_local_sgd_of_sharded_replicas() -> None:
    found = run(jobs.sharded_outer, 4)
    for out in found:
        np.testing.assert_array_equal(out["begin"], found[0]["begin"])
        mean = (found[0]["before"] + found[2]["before"]) / 2
        np.testing.assert_allclose(out["after"], mean, atol=1e-6)


def test_local_sgd_is_the_mean_of_the_models() -> None:
    found = run(jobs.local_mean, 3)
    for after, models in found:
        np.testing.assert_allclose(after, np.mean(models, axis=0), atol=1e-6)


def test_record_of_the_steps(tmp_path: Path) -> None:
    found = run(jobs.record, 4, str(tmp_path / "run"), 12)
    assert found[0]["steps"] == [3, 4, 5, 8, 12]  # every fourth, and when a rank is refused or accused that was not
    assert all(out["steps"] == [] for out in found[1:])
    assert all(out["priors"] == found[0]["priors"] for out in found)
    assert found[0]["priors"][9] < found[0]["priors"][1] - 0.05
    assert found[0]["priors"][11] < found[0]["priors"][1] - 0.05  # suspicion outlives the lie
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert rounds[0]["clients"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert rounds[-1]["excluded"] == ["rank 2"]
    assert rounds[0]["accused"] == ["rank 1"]
    assert rounds[1]["evaluation"]["loss"] == 0.25
    report = [sys.executable, "-m", "honestly", "report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]
    subprocess.run(report, check=True, capture_output=True)
    page = next((tmp_path / "report").rglob("*.html")).read_text()
    assert "rank 2" in page


def test_a_folder_that_cannot_be_made_does_not_stop_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = run(jobs.record, 3, str(tmp_path / "file" / "run"), 5)
    assert [(out["step"], out["steps"]) for out in found] == [(5, [])] * 3


def test_without_a_usable_majority_a_scaler_can_skip_the_step() -> None:
    assert run(jobs.scaled, 3, [0, 2]) == [(True, ["0", "2"])] * 3
    assert run(jobs.scaled, 3, [2]) == [(False, ["2"])] * 3


def test_a_rank_with_another_state_is_detected_at_the_next_step() -> None:
    for text in run(jobs.astray, 3):
        assert "rank 1 asks for 'step 7 after" in text or "rank 1 asks for 'rule" in text


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"forgetting=0\.5: only the rule 'bayesian'"):
        RobustAverager(rule="median", forgetting=0.5)
    with pytest.raises(ValueError, match='unusable=\'zero\': use "raise" or "nan"'):
        RobustAverager(unusable="zero")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="record_every must be"):
        RobustAverager(record_every=0)
    with pytest.raises(ValueError, match="verify must be"):
        RobustAverager(verify=float("nan"))
    with pytest.raises(ValueError, match="every must be"):
        RobustOuterOptimizer(torch.nn.Linear(2, 2), every=0)
    with pytest.raises(RuntimeError, match="there is no process group"):
        RobustAverager().average(torch.ones(2))
