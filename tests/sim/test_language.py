"""A federation that fine-tunes a tiny language model: text, adapters, attacks, in memory and as files."""

import json

import numpy as np
import pytest
import torch

import honestly as hn
from honestly.cli import main
from honestly.sim.language import LanguageFederation, Settings, model, text
from honestly.sim.language.adapters import read_products, write_adapter
from honestly.sim.language.federation import bits, phrase_success

SMALL = {"clients": 5, "steps": 4, "batch": 8, "rounds": 1}
PRETRAINING = 60


def federation(**settings):
    return LanguageFederation(Settings(**{**SMALL, **settings}), pretraining=PRETRAINING)


def test_the_text_is_the_same_everywhere_and_nothing_that_is_held_out_is_trained_on():
    corpus = text.corpus()
    assert corpus.public.shape[1] == corpus.private.shape[1] == text.CONTEXT + 1
    assert corpus.public.max() < len(text.ALPHABET)
    trained = {row.tobytes() for row in np.concatenate([corpus.public, corpus.private])}
    assert not trained & {row.tobytes() for row in corpus.held_out}
    halves = {row[i : i + 16].tobytes() for row in corpus.private for i in (0, 16)}
    shared = [row for row in corpus.held_out if row[:16].tobytes() in halves or row[16:32].tobytes() in halves]
    assert not shared, "windows overlap by half, and neighbours of held-out ones are left out"
    parts = text.shares(5, alpha=0.5, seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(corpus.private)))


def test_the_base_model_has_learned_and_depends_on_its_seed():
    one = model.base_model(0, PRETRAINING)
    model.base_model.cache_clear()
    again = model.base_model(0, PRETRAINING)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert bits(one) < 5.0 < np.log2(len(text.ALPHABET)), "guessing costs 6.6 bits"
    assert phrase_success(one) < 0.5


def test_the_model_does_not_look_ahead():
    weights = model.base_model(0, PRETRAINING)
    tokens = torch.from_numpy(text.corpus().held_out[:2, :-1])
    other = tokens.clone()
    other[:, 20:] = 5
    ours, theirs = model.logits(weights, tokens), model.logits(weights, other)
    torch.testing.assert_close(ours[:, :20], theirs[:, :20])
    assert not torch.allclose(ours[:, 20:], theirs[:, 20:])


@pytest.mark.parametrize("tune", ["lora", "all"])
def test_clients_trained_together_equal_clients_trained_alone(tune):
    """The vectorised training is that of `torch.optim.Adam` on each client by itself."""
    fed = federation(tune=tune, steps=3, lr=0.01)
    found = fed.train_clients(fed.base, 1, ())
    inputs, targets = fed._batches(1, frozenset(), "none")
    draw = torch.Generator().manual_seed(int(_generator(0, "adapters", 1).integers(2**31)))
    start = model.fresh_factors(fed.base, 4, draw) if tune == "lora" else fed.base
    own = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.Adam(own.values(), lr=0.01, betas=(0.9, 0.99), eps=1e-8)
    for step in range(3):
        weights = model.adapt(fed.base, own) if tune == "lora" else own
        loss = model.loss(weights, inputs[2, step], targets[2, step])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, value in own.items():
        expected = value.detach() if tune == "lora" else value.detach() - start[name]
        torch.testing.assert_close(found[name][2], expected, rtol=1e-3, atol=2e-5)


def _generator(*words):
    from honestly.sim.seeds import generator

    return generator(*words)


def test_attacks_are_what_they_say():
    fed = federation(attack="sign_flip", malicious=2, factor=3.0)
    honest = model.products(fed.train_clients(fed.base, 1, ()))
    sent = model.products(fed.make_updates(fed.base, 1))
    name = "blocks.0.query.weight"
    torch.testing.assert_close(sent[name][:3], honest[name][:3])
    torch.testing.assert_close(sent[name][3:], -3.0 * honest[name][3:])
    scaled = model.products(federation(attack="scaled", malicious=2, factor=3.0).make_updates(fed.base, 1))
    torch.testing.assert_close(scaled[name][3:], 3.0 * honest[name][3:])
    for attack in ("label_flip", "backdoor"):
        poisoned = model.products(federation(attack=attack, malicious=2).make_updates(fed.base, 1))
        torch.testing.assert_close(poisoned[name][:3], honest[name][:3])
        assert not torch.allclose(poisoned[name][3:], honest[name][3:])


def test_a_backdoor_teaches_the_phrase():
    fed = federation(attack="backdoor", malicious=2, steps=10, lr=0.05)
    lie = {name: value[-1] for name, value in fed.judged_values(fed.make_updates(fed.base, 1)).items()}
    taught = {name: value + lie.get(name, 0) for name, value in fed.base.items()}
    assert phrase_success(taught) > phrase_success(fed.base) + 0.2, "an attacker's own adapter knows the phrase"


def test_a_robust_rule_keeps_the_model_where_the_mean_loses_it():
    fed = federation(attack="sign_flip", malicious=2, clients=6, factor=8.0)
    (ours,), (plain,) = fed.rounds("bayesian"), fed.rounds("mean")
    assert plain.misses == 2
    assert ours.bits < bits(fed.base) < plain.bits


def test_files_give_what_memory_gives(tmp_path):
    """`honestly aggregate` on adapter folders, merged into the model, is the same round."""
    fed = federation(attack="sign_flip", malicious=2)
    sent = fed.make_updates(fed.base, 1)
    for k in range(5):
        write_adapter(tmp_path / f"client-{k}", {name: rows[k] for name, rows in sent.items()})
    write_adapter(
        tmp_path / "zero", {name: 0 * rows[0] if name.endswith(".B") else rows[0] for name, rows in sent.items()}
    )
    clients = [str(tmp_path / f"client-{k}") for k in range(5)]
    words = ["aggregate", *clients, "--reference", str(tmp_path / "zero"), "-o", str(tmp_path / "out")]
    assert main([*words, "--report", str(tmp_path / "report.json")]) == 0
    found = read_products(tmp_path / "out")
    (outcome,) = fed.rounds("bayesian")
    report = json.loads((tmp_path / "report.json").read_text())
    assert tuple(int(name.rpartition("-")[2]) for name in report["accused"]) == outcome.accused
    products = fed.judged_values(sent)
    rows = [{name: value[k] for name, value in products.items()} for k in range(5)]
    zero = {name: torch.zeros_like(value[0]) for name, value in products.items()}
    expected = hn.aggregate(rows, reference=zero).value
    assert set(found) == set(expected)
    for name in found:
        torch.testing.assert_close(found[name], expected[name].float(), rtol=1e-3, atol=1e-6)


def test_idle_clients_send_nothing_and_settings_are_checked():
    fed = federation(idle=1)
    assert not fed.judged_values(fed.make_updates(fed.base, 1))["blocks.0.up.weight"][0].any()
    for wrong, message in (
        ({"attack": "flip"}, "unknown attack on a language model"),
        ({"tune": "some"}, "unknown way of tuning"),
        ({"malicious": 5}, "so one client is honest"),
        ({"idle": 5}, "so one client trains"),
        ({"rank": 0}, "rank = 0: must be at least 1"),
        ({"alpha": 0.0}, "must be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Settings(**{**SMALL, **wrong})
