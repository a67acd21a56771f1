"""Submitted rules are loaded from a file, run on shuffled clients, checked, and reported if they fail."""

import io
import json

import numpy as np
import pytest

from honestly.cli import main
from honestly.rules.rule import ColumnRule, GramGeometry, Mix, Rule
from honestly.studies.suites.judge import judge
from honestly.studies.suites.own import GuardedColumns, GuardedRule, contestant
from honestly.studies.suites.sandbox import RuleError, Sandbox, close

from .conftest import standing
from .test_suites import TINY

RULES = '''
import inspect
import os
import time
from dataclasses import dataclass
import numpy as np
from honestly.rules.rule import ColumnRule, Mix, Mixer, Rule

@dataclass(frozen=True, kw_only=True)
class Half(Rule):
    """Believes the first half: recorded attackers are the last."""
    name = "half"
    summary = "cheats"
    def mix(self, geometry):
        weights = np.zeros(geometry.K)
        weights[: geometry.K // 2] = 1 / (geometry.K // 2)
        return Mix.of_weights(weights)

@dataclass(frozen=True, kw_only=True)
class Fair(Rule):
    f: int = 0
    name = "fair"
    summary = "the mean"
    def mix(self, geometry):
        geometry.gram[:] = 0.0
        return Mix.of_weights(np.full(geometry.K, 1 / geometry.K))

@dataclass(frozen=True, kw_only=True)
class NaN(Rule):
    name = "nan"
    summary = "weights that are no numbers"
    def mix(self, geometry):
        return Mix.of_weights(np.full(geometry.K, np.nan))

@dataclass(frozen=True, kw_only=True)
class Crash(Rule):
    name = "crash"
    summary = "divides by zero"
    def mix(self, geometry):
        return 1 / 0

@dataclass(frozen=True, kw_only=True)
class Columns(ColumnRule):
    name = "columns"
    summary = "the median"
    def reduce(self, ranked, xp):
        return np.median(ranked, axis=0)

@dataclass(frozen=True, kw_only=True)
class Sleep(Rule):
    name = "sleep"
    summary = "never answers"
    def mix(self, geometry):
        while True:
            time.sleep(1)

@dataclass(frozen=True, kw_only=True)
class Exit(Rule):
    name = "exit"
    summary = "ends its process"
    def mix(self, geometry):
        os._exit(7)

@dataclass(frozen=True, kw_only=True)
class Spy(Rule):
    """Looks for the order of the clients and the number of honest ones in every frame above it."""
    name = "spy"
    summary = "cheats"
    def mix(self, geometry):
        print("a rule may print")
        known = {}
        for frame in inspect.stack():
            known |= {key: frame.frame.f_locals[key] for key in ("space", "order") if key in frame.frame.f_locals}
        weights = np.full(geometry.K, 1 / geometry.K)
        if len(known) == 2:
            honest = np.asarray(known["order"]) < known["space"].H
            weights = honest / honest.sum()
        return Mix.of_weights(weights)

@dataclass(frozen=True, kw_only=True)
class Halved(Mixer):
    name = "halved"
    summary = "shortens everybody"
    def mix(self, geometry):
        return 0.5 * np.eye(geometry.K)

@dataclass(frozen=True, kw_only=True)
class Text(Rule):
    name = "text"
    summary = "returns what must not be unpickled"
    def mix(self, geometry):
        return Mix(matrix=[object()])

class NoDataclass:
    pass
'''


def test_a_rule_that_looks_at_the_order_gains_nothing(home):
    cheat, fair = standing(home, "Half"), standing(home, "Fair")
    assert cheat.failed == 0
    assert cheat.worst > 0.2 * fair.worst, "in the recorded order it would be the honest mean, nearly"
    assert cheat.missed > 0


def test_a_rule_cannot_change_what_it_is_measured_by(home):
    assert standing(home, "Fair").mean == pytest.approx(judge(TINY, ["mean"], folder=home)[0].mean)


def test_settings_and_what_a_rule_is_told(home):
    word = f"{home / 'rules.py'}:Fair"
    assert contestant(word).knows == "f"
    assert contestant(f"{word}:f=1").knows == "nothing"
    with pytest.raises(ValueError, match="has no setting 'g'"):
        contestant(f"{word}:g=1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NaN", "returned matrix with NaN or infinity"),
        ("Crash", "raised ZeroDivisionError: division by zero"),
        ("Text", "that are not numbers"),
    ],
)
def test_answers_that_no_server_can_use_are_named(home, name, message):
    found = standing(home, name)
    assert found.failed == found.rounds == 5
    assert message in found.error
    assert found.mean is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoDataclass", "must be a dataclass that inherits"),
        ("Nobody", "cannot be loaded"),
        ("a-b", "cannot be loaded"),
    ],
)
def test_what_is_no_rule_is_refused(home, name, message):
    with pytest.raises(ValueError, match=message):
        contestant(f"{home / 'rules.py'}:{name}")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("fltrust", "needs a trusted root"),
        ("monna", "needs a trusted client"),
        ("nnm:f=2+batch_norm_guard", "needs BatchNorm's statistics"),
        ("bayesan", "did you"),
    ],
)
def test_rules_of_the_package_that_a_suite_cannot_judge(rule, message):
    with pytest.raises(ValueError, match=message):
        judge(TINY, [rule])


def test_a_rule_that_never_answers_is_stopped_and_the_others_continue(home):
    sleep, mean = judge(TINY, [f"{home / 'rules.py'}:Sleep", "mean"], folder=home, limit=0.5)
    assert "did not answer within 0.5 s, and was stopped" in sleep.error
    assert sleep.failed == sleep.rounds == 1, "it is not asked again"
    assert mean.failed == 0


def test_a_rule_that_ends_its_process_is_named(home):
    found = standing(home, "Exit", jobs=2)
    assert "ended its process (exit code 7) instead of answering" in found.error


def test_a_rule_cannot_look_at_the_judge(home, capfd):
    spy = standing(home, "Spy")
    assert spy.mean == pytest.approx(judge(TINY, ["mean"], folder=home)[0].mean), "it found nothing, and is the mean"
    assert "a rule may print" not in capfd.readouterr().out, "it would spoil --json"


def test_sandboxed_rules_and_mixers_give_the_same_answers(home):
    file = home / "rules.py"
    words = ["median", f"{file}:Columns", "arc+mean", f"arc+{file}:Fair:f=1"]
    median, columns, mean, fair = judge(TINY, words, folder=home)
    assert columns.adaptive == pytest.approx(median.adaptive)
    assert (columns.basis, columns.mean) == ("stand-ins", pytest.approx(median.mean))
    assert fair.mean == pytest.approx(mean.mean)
    shortened = judge(TINY, [f"{file}:Halved+mean"], folder=home)[0]
    assert shortened.quiet > 0.0 == pytest.approx(judge(TINY, ["mean"], folder=home)[0].quiet)


def test_a_process_that_is_closed_is_started_again(home):
    word = f"{home / 'rules.py'}:Fair"
    assert contestant(word).knows == "f"
    close(word)
    assert contestant(word).knows == "f"


def damaged_archive() -> bytes:
    """An .npz file whose deflated array cannot be inflated."""
    file = io.BytesIO()
    np.savez_compressed(file, weights=np.arange(1000.0))
    data = bytearray(file.getvalue())
    data[60:200] = bytes(140)
    return bytes(data)


@pytest.mark.parametrize("data", [b"cos\nsystem\n(S'true'\ntR.", damaged_archive(), b""])
def test_what_a_process_writes_is_never_unpickled(home, monkeypatch, data):
    box = Sandbox(f"{home / 'rules.py'}:Fair")
    monkeypatch.setattr(box._pipe, "recv_bytes", lambda most: data)
    with pytest.raises(RuleError, match="something other than its answer"):
        box.ask("build", 5, 1)


class Answers(Rule):
    name = "answers"

    def mix(self, geometry):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones(3) / 3, "returned a ndarray"),
        (Mix.of_weights(np.ones(2) / 2), "shape"),
        (Mix.of_weights(np.ones(3)), "sum to 3"),
        (Mix.of_weights(np.ones(3) / 3, honesty=np.array([0, 1, 2.0])), "give probabilities"),
        (Mix.of_weights(np.ones(3) / 3, honesty=np.array([0, 1, np.nan])), "honesty with NaN"),
        (Mix(np.ones((1, 3)) / 3, by_layer=np.ones((2, 3)) / 3), "by_layer of shape"),
        (Mix(np.ones((1, 3)) / 3, verdicts=[]), "0 verdicts on 3 clients"),
    ],
)
def test_every_part_of_an_answer_is_checked(answer, message):
    rule = Answers()
    object.__setattr__(rule, "answer", answer)
    with pytest.raises(RuleError, match=message):
        GuardedRule(inner=rule, rng=np.random.default_rng(0)).mix(GramGeometry(np.eye(3)))


@pytest.mark.parametrize(
    ("values", "message"), [(np.ones(3), "values of shape"), (np.full(4, np.inf), "values with NaN or infinity")]
)
def test_the_values_of_a_coordinate_wise_rule_are_checked(values, message):
    class Reduces(ColumnRule):
        name = "reduces"

        def reduce(self, ranked, xp):
            return values

    with pytest.raises(RuleError, match=message):
        GuardedColumns(inner=Reduces(), rng=np.random.default_rng(0)).reduce(np.zeros((3, 4)), np)


def test_answers_come_back_in_the_clients_order():
    class Norms(Rule):
        name = "norms"

        def mix(self, geometry):
            own = geometry.gram.diagonal()
            return Mix.of_weights(own / own.sum(), honesty=own / own.max(), verdicts=list(own))

    G = np.diag([1.0, 2.0, 3.0, 4.0])
    for seed in range(5):
        mix = GuardedRule(inner=Norms(), rng=np.random.default_rng(seed)).mix(GramGeometry(G))
        np.testing.assert_allclose(mix.matrix[0], [0.1, 0.2, 0.3, 0.4])
        np.testing.assert_allclose(mix.honesty, [0.25, 0.5, 0.75, 1])
        assert mix.verdicts == [1, 2, 3, 4]


def test_the_command_prints_one_line_for_each_rule(home, capsys, monkeypatch):
    monkeypatch.setattr("honestly.studies.suites.load", lambda name: TINY)
    word = f"{home / 'rules.py'}:Half"
    assert main(["stress", "--submit", word, "--rules", "mean", "--data", str(home), "--jobs", "1", "--json"]) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [row["rule"] for row in rows] == [word, "mean"]
    assert {"suite", "spec", "content", "recording", "mean_layer", "adaptive_layer", "tries", "told"} <= set(rows[0])
    assert rows[0]["recording"] == "different"
    assert "not comparable" in printed.err


def test_the_command_shows_a_table_and_what_failed(home, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("honestly.studies.suites.load", lambda name: TINY)
    words = ["stress", "--submit", f"{home / 'rules.py'}:Crash", "--data", str(home), "--jobs", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "no answer in 5 of 5 rounds: it raised ZeroDivisionError" in printed.err
    assert "Suite small-1" in printed.out
    assert len((tmp_path / "small-1.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attacks", "sign_flip"], "--attacks: a suite fixes populations, clients and attacks"),
        (["--malicious", "3"], "--malicious: a suite fixes"),
        (["--believed-f", "3"], "--believed-f: a suite fixes"),
        (["--seeds", "0", "1"], "--seeds 0,1: a suite takes one seed at a time"),
        (["--submit", "rule.py"], "--submit rule.py: name the class in the file, as in rule.py:MyRule"),
    ],
)
def test_options_that_a_suite_would_ignore_are_refused(words, message, capsys):
    assert main(["stress", "--suite", "small-1", "--rules", "mean", "--jobs", "1", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_all_stands_for_every_rule_that_a_suite_can_judge(home, capsys, monkeypatch):
    monkeypatch.setattr("honestly.studies.suites.load", lambda name: TINY)
    words = ["stress", "--suite", "small-1", "--rules", "all", "--data", str(home), "--jobs", "1", "--json"]
    assert main(words) == 0
    found = {json.loads(line)["rule"] for line in capsys.readouterr().out.splitlines()}
    assert {"bayesian", "mda:work=20000", "deep_sight"} <= found
    assert not {"fltrust", "monna", "batch_norm_guard"} & found


def test_the_command_makes_a_suite(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("honestly.studies.suites.load", lambda name: TINY)
    assert main(["stress", "--make-suite", "small-1", "--out", str(tmp_path)]) == 0
    assert "content SHA-256" in capsys.readouterr().out
    assert (tmp_path / "small-1.npz").is_file()
