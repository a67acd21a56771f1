"""A small federation: what a round records, and that attacks do what they claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from honestly.sim.attacks import ATTACKS
from honestly.sim.checkpoint import pack_state, read_state
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.summary import summary

SMALL: dict[str, Any] = {"clients": 8, "rounds": 2, "epochs": 1, "model": "mlp", "partition": "iid", "rule": "mean"}


def run(**changes: Any) -> list[dict[str, Any]]:
    return [record.numbers for record in Federation(Experiment.of({**SMALL, **changes})).rounds()]


def test_a_federation_learns() -> None:
    records = run(rounds=6, model="cnn", epochs=2)
    assert records[-1]["accuracy"] > 0.85
    assert [r["round"] for r in records] == [1, 2, 3, 4, 5, 6]
    final = records[-1]
    assert {"round", "accuracy", "asr", "attacked", "honesty", "excluded", "weights", "loss", "per_class"} <= set(final)
    assert len(final["per_class"]) == 10
    assert final["attacked"] == final["excluded"] == []
    assert final["weights"] == [1 / 8] * 8


def test_the_mean_is_that_of_the_clients_models() -> None:
    federation = Federation(Experiment.of(SMALL))
    start = federation.start()
    record = next(federation.rounds(start))
    work = [federation.clients.schedule(1, k, attacking=False) for k in range(8)]
    expected = federation.trainer.train(start.model, work).theta.double().mean(dim=0)
    assert torch.allclose(record.state.model.theta.double(), expected, atol=1e-7)


def test_sign_flip_sends_the_update_backwards() -> None:
    federation = Federation(Experiment.of({**SMALL, "attack": "sign_flip", "malicious": 3}))
    start = federation.start()
    plan = federation._plan(1)
    theta = federation.trainer.train(start.model, plan.schedules).theta
    sent, remembered = federation.forge(start, plan, theta)
    assert remembered == {}
    assert torch.equal(sent[:5], theta[:5])
    assert torch.allclose(sent[5:] - start.model.theta, -4 * (theta[5:] - start.model.theta), atol=1e-5)


@pytest.mark.parametrize("attack", [name for name, a in ATTACKS.items() if getattr(a, "noise_ahead", False)])
def test_noise_that_is_drawn_while_clients_train_is_the_same(attack: str) -> None:
    federation = Federation(Experiment.of({**SMALL, "attack": attack, "malicious": 3}))
    start, plan = federation.start(), federation._plan(2)
    assert plan.noise is None  # a CPU has no core left for it
    federation.device = torch.device("cuda")
    ahead = federation._plan(2)
    federation.device = torch.device("cpu")
    assert ahead.noise is not None
    assert ahead.noise.numbers.shape == (3, len(start.model.theta))
    theta = federation.trainer.train(start.model, plan.schedules).theta
    sent, again = (federation.forge(start, p, theta)[0] for p in (plan, ahead))
    assert torch.equal(sent, again)
    ahead.noise.numbers[:] = 0
    assert not torch.equal(sent, federation.forge(start, ahead, theta)[0])  # that it was used at all


def test_a_robust_rule_finds_the_attackers_and_the_mean_does_not() -> None:
    attack = {"attack": "sign_flip", "malicious": 3, "rounds": 3, "model": "cnn", "epochs": 2, "seed": 1}
    robust, mean = run(**attack, rule={"name": "multi_krum", "f": 3}), run(**attack)
    assert robust[-1]["accuracy"] > mean[-1]["accuracy"] + 0.2
    assert robust[-1]["attacked"] == robust[-1]["accused"] == [5, 6, 7]
    assert robust[-1]["false_accusations"] == robust[-1]["misses"] == 0
    assert mean[-1]["misses"] == 3


def test_label_flip_changes_labels_and_no_image() -> None:
    federation = Federation(Experiment.of({**SMALL, "attack": "label_flip", "malicious": 2}))
    clients = federation.clients
    assert len(clients.pixels.images) == len(federation.data.images)
    samples, mask = clients.poisoned[7]
    assert mask.all()
    clean = clients.parts[7]
    assert torch.equal(clients.pixels.rows[samples], torch.from_numpy(clean))
    assert torch.equal(clients.pixels.labels[samples], (clients.pixels.labels[clean] + 1) % 10)
    honest = clients.schedule(1, 7, attacking=False)
    assert set(honest.samples[honest.samples > 0]) <= set(clean)
    poisoned = clients.schedule(1, 7, attacking=True)
    assert poisoned.samples.max() >= len(federation.data.images)
    assert np.array_equal(honest.counts, poisoned.counts)


def test_label_flip_knows_the_number_of_classes() -> None:
    whole = load("digits", None)
    train, test = whole.labels < 5, whole.test_labels < 5
    five = replace(
        whole, images=whole.images[train], labels=whole.labels[train], test_images=whole.test_images[test],
        test_labels=whole.test_labels[test], classes=whole.classes[:5],
    )  # fmt: skip
    settings = {**SMALL, "attack": "label_flip", "malicious": 2}
    with pytest.raises(ValueError, match=r"digits has 5 classes; write attack=label_flip:classes=5"):
        Federation(Experiment.of(settings), data=five)
    federation = Federation(Experiment.of({**settings, "attack": "label_flip:classes=5"}), data=five)
    assert next(federation.rounds()).found.attacked == [6, 7]


def test_backdoor_has_two_phases_and_an_attack_success_rate() -> None:
    e = Experiment.of({**SMALL, "dataset": "digits", "attack": "backdoor", "malicious": 4, "epochs": 4, "rounds": 3})
    federation = Federation(e)
    samples, mask = federation.clients.poisoned[6]
    zeros = int((federation.data.labels[federation.clients.parts[6]] == 0).sum())
    assert mask.sum() == zeros > 0
    schedule = federation.clients.schedule(1, 6, attacking=True)
    assert schedule.images == 2 * zeros + 2 * len(samples)
    assert schedule.fresh.sum() == 2
    records = [r.numbers for r in federation.rounds()]
    assert records[-1]["asr"] > 0.5  # half of the clients lie and the mean believes them
    assert run(rounds=3, epochs=4)[-1]["asr"] is None


def test_clients_weigh_the_images_of_their_last_phase() -> None:
    trusted = {"sizes": "images", "rule": {"name": "mean", "sizes": "trusted"}}
    federation = Federation(Experiment.of({**SMALL, **trusted, "epochs": 10, "attack": "backdoor", "malicious": 3}))
    plan = federation._plan(1)
    assert plan.sizes is not None
    own = [len(set(schedule.samples[schedule.samples > 0].tolist())) for schedule in plan.schedules]
    for k, (size, images) in enumerate(zip(plan.sizes, own, strict=True)):
        assert size == pytest.approx((5 if k >= 5 else 10) * images, rel=0.02)  # triggered images count as own ones
    record = next(federation.rounds())
    expected = np.array(plan.sizes) / sum(plan.sizes)
    np.testing.assert_allclose(record.numbers["weights"], expected, rtol=1e-9)
    assert expected[5:].max() < 0.7 * expected[:5].min()


def test_sizes_are_asked_for_where_a_rule_needs_them() -> None:
    needy = {"rule": {"name": "geometric_median", "sizes": "trusted"}}
    with pytest.raises(ValueError, match=r"rule geometric_median: sizes = trusted needs .* set sizes=images"):
        Experiment.of({**SMALL, **needy})
    with pytest.raises(ValueError, match="sizes = capped needs"):
        Experiment.of({**SMALL, "rule": {"name": "mean", "sizes": "capped"}})
    with pytest.raises(ValueError, match=r"buffer: .* leave sizes at none"):
        Experiment.of({**SMALL, **needy, "sizes": "images", "buffer": 4})
    assert run(**needy, sizes="images", rounds=1)[0]["status"] == "converged"
    plain = Experiment.of({**SMALL, "rule": "geometric_median"})
    assert "sizes" not in plain.canonical  # older experiments keep their ids


def test_an_attacker_without_the_victims_class_does_not_crash() -> None:
    e = Experiment.of({**SMALL, "attack": "backdoor", "malicious": 6, "partition": "shards", "clients": 40})
    federation = Federation(e)
    assert any(not mask.any() for _, mask in federation.clients.poisoned.values())
    assert len(list(federation.rounds())) == 2


def test_clients_are_sampled_and_drop_out() -> None:
    records = run(
        clients=20, participation=0.5, dropout=0.3, rounds=3, rule="median", attack="sign_flip", malicious=0.4
    )
    seen = [tuple(r["participants"]) for r in records]
    assert len(set(seen)) == 3
    assert all(1 <= len(s) <= 10 for s in seen)
    for r in records:
        assert set(r["attacked"]) <= set(r["participants"]) & set(range(12, 20))
    weighted = run(clients=20, participation=0.5, rounds=1)[0]
    assert [k for k, w in enumerate(weighted["weights"]) if w is not None] == weighted["participants"]


def test_a_round_with_too_few_clients_after_drop_outs_is_refused() -> None:
    records = run(clients=8, dropout=0.4, rounds=6, rule={"name": "krum", "f": 1})
    small = [r["status"].startswith("refused: after drop-outs Krum(f=1) needs at least") for r in records]
    assert small == [len(r["participants"]) < 5 for r in records]
    assert any(small)
    assert not all(small)


def test_clients_who_diverge_are_excluded_and_the_round_is_refused_without_a_majority() -> None:
    records = run(lr=1e30, rounds=2)
    assert records[-1]["status"].startswith("refused")
    assert records[-1]["accuracy"] is not None
    assert 2 * len(records[-1]["excluded"]) >= len(records[-1]["participants"])
    assert [*map(str, records[-1]["excluded"])] == [*records[-1]["reasons"]]
    assert "is NaN" in records[-1]["reasons"][str(records[-1]["excluded"][0])]
    assert summary(records)["refused_rounds"] >= 1


MODEL_OF_ONES_OWN = """
from torch import nn

def normalised(channels, height, width, classes):
    first = nn.Linear(channels * height * width, 16)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
"""


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_batch_statistics_are_merged_and_counters_stay_integers(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_of_ones_own.py").write_text(MODEL_OF_ONES_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    e = Experiment.of({**SMALL, "clients": 3, "rounds": 1, "model": "model_of_ones_own:normalised", "rule": rule})
    federation = Federation(e)
    start = federation.start()
    record = next(federation.rounds(start))
    model = record.state.model
    work = [federation.clients.schedule(1, k, attacking=False) for k in range(3)]
    trained = federation.trainer.train(start.model, work)
    reduce = {"mean": lambda x: x.mean(dim=0), "median": lambda x: x.median(dim=0).values}[rule]
    assert torch.allclose(model.statistics, reduce(trained.statistics), atol=1e-6)
    assert not torch.allclose(model.statistics, start.model.statistics)
    assert model.counters.dtype == torch.int64
    assert model.counters.tolist() == trained.counters.mode(dim=0).values.tolist()


def test_buffers_stay_where_a_rule_gives_nobody_a_weight() -> None:
    settings = {"rule": "align_ins", "clients": 2, "rounds": 1, "model": "cnn_norm", "partition": "shards"}
    federation = Federation(Experiment.of({**SMALL, **settings}))
    start = federation.start()
    record = next(federation.rounds(start))
    assert record.found.weights == [0.0, 0.0]  # AlignIns keeps neither of two clients
    torch.testing.assert_close(record.state.model.theta, start.model.theta, rtol=0, atol=0)
    torch.testing.assert_close(record.state.model.statistics, start.model.statistics, rtol=0, atol=0)


def test_recorded_updates_are_the_honest_ones(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 1, "malicious": 2}
    for attack in ("none", "sign_flip", "label_flip"):
        e = Experiment.of({**settings, "attack": attack})
        list(Federation(e, record=tmp_path / attack).rounds())
    files = {a: np.load(tmp_path / a / "round-0001.npz") for a in ("none", "sign_flip", "label_flip")}
    for file in files.values():
        assert np.allclose(file["honest"], files["none"]["honest"], atol=1e-7)
        assert file["honest"].shape == (8, len(file["reference"]))
    assert files["label_flip"]["label_flip"].shape == (2, len(files["none"]["reference"]))
    assert not np.allclose(files["label_flip"]["label_flip"], files["none"]["honest"][-2:])


def test_the_server_trains_a_root_update_for_a_rule_that_needs_one() -> None:
    attack = {"attack": "sign_flip", "malicious": 3, "rounds": 3, "model": "cnn", "epochs": 2, "seed": 1}
    records = run(**attack, rule="fltrust", root=50)
    assert records[-1]["accused"] == records[-1]["attacked"]
    assert len(records[-1]["weights"]) == 8  # the server's own update is none of the clients'


@pytest.mark.parametrize("changes", [{"rule": "fltrust"}, {"attack": "mimic", "malicious": 2}])
def test_training_that_diverges_ends_no_run(changes: dict[str, Any]) -> None:
    records = run(**changes, lr=1e4, rounds=3)
    assert len(records) == 3
    assert any(record["status"].startswith("refused: ") for record in records)


def test_attackers_of_a_model_that_has_just_diverged_cause_no_warning() -> None:
    records = run(attack="min_max", malicious=2, lr=1e10, rounds=2, model="mlp", clients=4, batch=1000, epochs=1)
    assert len(records) == 2


def test_all_images_in_one_batch_need_no_more_memory_than_there_are_images() -> None:
    settings = {"clients": 4, "epochs": 2, "rounds": 2, "model": "mlp", "rule": "fltrust", "crop": 1}
    federations = [Federation(Experiment.of({**settings, "batch": batch})) for batch in (5_000, 1_000_000)]
    assert federations[1].clients.schedule(1, 0, attacking=False).samples.shape == (2, 4096)
    few, many = ([record.numbers for record in one.rounds()] for one in federations)
    assert few == many


def test_memory_is_part_of_the_experiment() -> None:
    forgetful, other = (Experiment.of({**SMALL, "rule": {"name": "bayesian", **m}}) for m in ({}, {"memory": 0.8}))
    assert forgetful.id != other.id
    assert Experiment.of(other.model_dump(mode="json")).id == other.id


def test_a_thousand_clients() -> None:
    records = run(clients=1000, rounds=1, batch=8)
    assert len(records[0]["participants"]) == 1000


def test_evaluation_can_be_rarer() -> None:
    records = run(rounds=3, evaluate_every=2)
    assert [r["accuracy"] is None for r in records] == [True, False, False]


def test_same_seed_same_numbers_other_seed_other_numbers() -> None:
    assert run(seed=5) == run(seed=5)
    assert run(seed=5) != run(seed=6)


@pytest.mark.parametrize("server", ["fedavgm:momentum=0.5", "fedadam:lr=0.02", "fedyogi:lr=0.02", "fedadagrad:lr=0.05"])
def test_an_interrupted_server_step_resumes_with_the_same_bits(server: str, tmp_path: Path) -> None:
    experiment = Experiment.of({**SMALL, "rounds": 4, "rule": "bayesian", "server": server})
    whole = list(Federation(experiment).rounds())
    assert whole[-1].numbers["accuracy"] > 0.3
    path = tmp_path / "state-2.bin"
    path.write_bytes(pack_state(whole[1].state))
    again = Federation(experiment)
    rest = list(again.rounds(read_state(path, again.start())))
    assert [record.numbers for record in rest] == [record.numbers for record in whole[2:]]
    assert torch.equal(rest[-1].state.model.theta, whole[-1].state.model.theta)
    plain = list(Federation(Experiment.of({**SMALL, "rounds": 4, "rule": "bayesian"})).rounds())
    assert not torch.equal(plain[-1].state.model.theta, whole[-1].state.model.theta)
    # a state is a value: going on from it twice gives the same
    twice = next(Federation(experiment).rounds(whole[1].state))
    assert torch.equal(twice.state.model.theta, whole[2].state.model.theta)


def test_a_server_step_without_effect_is_the_average() -> None:
    plain, step = run(rounds=3), run(rounds=3, server="fedavgm:momentum=0.0")
    assert [r["accuracy"] for r in plain] == pytest.approx([r["accuracy"] for r in step], abs=0.01)


def test_without_a_server_step_experiments_keep_their_ids() -> None:
    plain = Experiment.of(SMALL)
    assert "server" not in plain.canonical
    assert Experiment.of({**SMALL, "server": "none"}).id == plain.id
    assert Experiment.of({**SMALL, "server": "fedadam"}).id != plain.id
    with pytest.raises(ValueError, match=r"server = 'adam'.*expected one of none, fedavgm"):
        Experiment.of({**SMALL, "server": "adam"})
