"""Data sets and models of the user's own, by file or module."""

import json
import textwrap

import numpy as np
import pytest

from honestly.sim.data import load
from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.models import build
from honestly.sim.rounds import Federation
from honestly.sim.run import run

TASK = """
    from dataclasses import replace

    import numpy as np
    from torch import nn
    from honestly.sim.data import Dataset


    def stripes():
        rng = np.random.default_rng(0)
        labels = np.arange(120) % 2
        images = rng.integers(0, 100, (120, 1, 6, 6))
        images[labels == 1, :, ::2] += 150
        images = images.astype(np.{dtype})
        return Dataset("stripes", images[:80], labels[:80], images[80:], labels[80:], (0.4,), (0.3,), ({classes}))


    def net(channels, height, width, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


    def no_net():
        return 3


    def colour_test():
        return replace(stripes(), test_images=stripes().test_images.repeat(3, axis=1))


    def flat_std():
        return replace(stripes(), std=(0.0,))


    def lists():
        return replace(stripes(), labels=stripes().labels.tolist())


    NOTHING = 0
"""


@pytest.fixture
def task(tmp_path):
    def write(dtype="uint8", classes='"plain", "striped"'):
        path = tmp_path / f"task_{dtype}_{len(classes)}.py"
        path.write_text(textwrap.dedent(TASK).format(dtype=dtype, classes=classes))
        return path

    return write


def test_a_federation_learns_on_it(task):
    path = task()
    e = Experiment.of(
        {
            "dataset": f"{path}:stripes",
            "model": f"{path}:net",
            "clients": 5,
            "malicious": 1,
            "attack": "sign_flip",
            "rounds": 4,
            "batch": 8,
            "lr": 0.1,
            "alpha": 100.0,
        }
    )
    records = [record.numbers for record in Federation(e).rounds()]
    assert records[-1]["accuracy"] > 0.9
    assert [4] in [record["accused"] for record in records]
    assert all(record["accused"] in ([], [4]) for record in records)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"dtype": "float32"}, "stripes", "images must be uint8 .* got float32"),
        ({"classes": '"plain",'}, "stripes", "labels must be int64 in 0 .. 0, got int64 from 0 to 1"),
        ({}, "net", r"is called with \(\), which it does not take: missing a required argument: 'channels'"),
        ({}, "no_net", "returned a int"),
        ({}, "colour_test", "images have 1 channels and test_images 3; there must be as many"),
        ({}, "flat_std", r"std above 0, got \(0.4,\) and \(0.0,\)"),
        ({}, "lists", "images and labels must be NumPy arrays, got ndarray and list"),
        ({}, "NOTHING", "is a value of type int: it must be a class or a function"),
        ({}, "stirpes", "has no 'stirpes'"),
    ],
)
def test_what_is_wrong_with_a_data_set_is_said(task, changes, name, message):
    with pytest.raises(ValueError, match=message):
        load(f"{task(**changes)}:{name}")


def test_a_model_that_takes_other_arguments_is_named(tmp_path):
    (tmp_path / "net.py").write_text("def net(classes):\n    return None\n")
    with pytest.raises(ValueError, match=r"is called with \(channels, height, width, classes\), .* too many"):
        build(f"{tmp_path / 'net.py'}:net", (1, 8, 8), 10, 0)


def test_a_file_that_ends_the_program_is_named(tmp_path):
    (tmp_path / "script.py").write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(ValueError, match=r"cannot be loaded: SystemExit: 0 \(script.py, line 3\)"):
        load(f"{tmp_path / 'script.py'}:data")


PARTS = """
    from dataclasses import dataclass
    import numpy as np
    from honestly.rules.rule import Mix, Rule
    from honestly.sim.attacks import UpdateAttack


    @dataclass(frozen=True, kw_only=True)
    class First(Rule):
        keep: int = 2
        name = "first"
        summary = "the first clients"

        def mix(self, geometry):
            weights = np.zeros(geometry.K)
            weights[: self.keep] = 1 / self.keep
            return Mix.of_weights(weights)


    @dataclass(frozen=True, kw_only=True)
    class Zero(UpdateAttack):
        name = "zero"
        summary = "nothing"
        scale: float = 0.0

        def craft(self, view):
            return self.scale * view.own
"""


def test_a_custom_rule_and_a_custom_attack(tmp_path):
    path = tmp_path / "parts.py"
    path.write_text(textwrap.dedent(PARTS))
    values = {"clients": 4, "malicious": 1, "rounds": 1, "model": "mlp", "epochs": 1}
    e = Experiment.of({**values, "rule": {"name": f"{path}:First", "keep": 3}, "attack": f"{path}:Zero"})
    assert e.attack.settings == {"scale": 0.0}
    assert Experiment.of(json.loads(e.canonical)).id == e.id  # as a resumed run reads it back
    run(e, tmp_path / "run")
    longer = Experiment.of({**json.loads(e.canonical), "rounds": 2})
    assert len(run(longer, tmp_path / "run").records) == 2  # goes on with the rule as it was saved
    (record,) = Federation(e).rounds()
    assert record.numbers["weights"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    for wrong, message in (
        (
            {"rule": {"name": f"{path}:First", "kep": 3}},
            "rule .*First. has no setting .kep.: did you mean keep.*Settings: keep",
        ),
        ({"rule": f"{path}:Zero"}, "must be a dataclass that inherits from Rule"),
        ({"attack": f"{path}:First"}, "must be a dataclass that inherits from Attack"),
        ({"attack": {"name": f"{path}:Zero", "scale": "big"}}, "attack.scale = 'big': give a number"),
    ):
        with pytest.raises(ExperimentError, match=message):
            Experiment.of({**values, **wrong})


def test_a_misspelt_name_is_not_treated_as_code():
    with pytest.raises(ExperimentError, match="dataset = 'digit': did you mean digits\\? Allowed: digits, mnist"):
        Experiment.of({"dataset": "digit"})


def test_a_model_in_a_module_and_a_file_are_the_same(task):
    made = build(f"{task()}:net", (1, 6, 6), 2, seed=0)
    again = build(f"{task()}:net", (1, 6, 6), 2, seed=0)
    assert np.array_equal(made[1].weight.detach(), again[1].weight.detach())
    with pytest.raises(ValueError, match="there is no file"):
        build("not/there.py:net", (1, 6, 6), 2, seed=0)


WRONG = """
    from dataclasses import dataclass
    import numpy as np
    from honestly.rules.rule import ColumnRule, Mix, Rule
    from honestly.sim.attacks import DataAttack, UpdateAttack


    @dataclass(frozen=True, kw_only=True)
    class Craft(UpdateAttack):
        name = "craft"
        shape: str = "nothing"

        def craft(self, view):
            return {"nothing": None, "short": view.own[:, :3], "one": view.own[:1]}[self.shape]


    @dataclass(frozen=True, kw_only=True)
    class Poison(DataAttack):
        name = "poison"
        shape: str = "two"

        def poison(self, images, labels, *, rng, attacker=0):
            mask = labels > 0
            return {
                "two": (images, labels),
                "floats": (images / 255, labels, mask),
                "flat": (images[:, 0], labels, mask),
                "labels": (images, labels[1:], mask),
                "mask": (images, labels, True),
            }[self.shape]


    @dataclass(frozen=True, kw_only=True)
    class Remember(UpdateAttack):
        name = "remember"
        what: str = "list"

        def craft(self, view):
            return -view.own

        def remember(self, view, forged):
            return {"list": [1], "key": {3: np.ones(2)}, "text": {"a": "b"}, "ragged": {"a": [[1], [2, 3]]}}[self.what]


    @dataclass(frozen=True, kw_only=True)
    class Keep(Rule):
        name = "keep"
        needs = frozenset({"memory"})
        memory: object = None

        def mix(self, geometry):
            return Mix.of_weights(np.full(geometry.K, 1 / geometry.K), diagnostics={"memory": {1, 2}})


    @dataclass(frozen=True, kw_only=True)
    class Reduce(ColumnRule):
        name = "reduce"
        shape: str = "rows"

        def ranks(self, m):
            return (0, m + 1) if self.shape == "ranks" else (0, m)

        def reduce(self, ranked, xp):
            return ranked if self.shape == "rows" else 3.0
"""


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attack", "Craft", r"Craft.craft returned a NoneType; expected one row for each attacker, \(2, \d+\), or one"),
        ("attack", "Craft:shape=short", r"Craft.craft returned an array of shape \(2, 3\)"),
        ("attack", "Craft:shape=one", r"Craft.craft returned an array of shape \(1, \d+\)"),
        ("attack", "Poison", r"Poison.poison returned 2 values; expected a tuple of images, labels and mask"),
        ("attack", "Poison:shape=floats", r"images that are .* of float64; expected \(n, 1, 8, 8\) of uint8"),
        ("attack", "Poison:shape=flat", r"images that are an array of shape .* expected \(n, 1, 8, 8\)"),
        (
            "attack",
            "Poison:shape=labels",
            r"returned labels that are an array of shape .*; expected \d+, one per image",
        ),
        ("attack", "Poison:shape=mask", r"returned mask that are a bool; expected \d+, one per image"),
        ("attack", "Remember", r"Remember.remember returned 1 values; expected a dict of arrays by name"),
        ("attack", "Remember:what=key", r"Remember.remember returned .*; expected a dict of arrays by name"),
        ("attack", "Remember:what=text", r"Remember.remember returned a str as 'a'; expected an array of numbers"),
        ("attack", "Remember:what=ragged", r"Remember.remember returned a list as 'a'; expected an array"),
        ("rule", "Keep", r"the rule remembers a set, which cannot be saved with the run: keep numbers, text"),
        (
            "rule",
            "Reduce",
            r"Reduce\(shape='rows'\).reduce gave \(5, 2\) for 5 ranks of 2 coordinates, expected one value",
        ),
        ("rule", "Reduce:shape=number", r"reduce gave \(\) for 5 ranks"),
        ("rule", "Reduce:shape=ranks", r"ranks\(5\) gave \(0, 6\), expected 0 <= first < last <= 5"),
    ],
)
def test_wrong_shapes_of_ones_own_are_told_in_our_words(tmp_path, key, value, message):
    path = tmp_path / "wrong.py"
    path.write_text(textwrap.dedent(WRONG))
    values = {"clients": 5, "malicious": 2, "rounds": 1, "model": "mlp", "epochs": 1, "rule": "mean"}
    e = Experiment.of({**values, key: f"{path}:{value}"})
    with pytest.raises(ValueError, match=message):
        run(e, tmp_path / "run", on_warning=print)


ODD = """
    from dataclasses import dataclass
    from honestly.sim.attacks import DataAttack, UpdateAttack


    @dataclass(frozen=True, kw_only=True)
    class Count(UpdateAttack):
        def craft(self, view):
            return -(1.0 + float(view.memory.get("rounds", 0.0))) * view.own

        def remember(self, view, forged):
            return {"rounds": float(view.memory.get("rounds", 0.0)) + 1.0}


    @dataclass(frozen=True, kw_only=True)
    class Fewer(DataAttack):
        count: int = 5

        def poison(self, images, labels, *, rng, attacker=0):
            return images[: self.count], labels[: self.count], labels[: self.count] >= 0
"""


@pytest.fixture
def odd(tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(textwrap.dedent(ODD))
    return path


def test_an_attack_without_a_name_remembers_numbers_and_resumes(odd, tmp_path):
    values = {"clients": 4, "malicious": 1, "model": "mlp", "epochs": 1, "rule": "mean", "attack": f"{odd}:Count"}
    run(Experiment.of({**values, "rounds": 1}), tmp_path / "run")
    e = Experiment.of({**values, "rounds": 3})
    assert run(e, tmp_path / "run").records == run(e).records


@pytest.mark.parametrize("count", [0, 5])
def test_an_attack_may_train_on_fewer_samples(odd, tmp_path, count):
    values = {"clients": 4, "malicious": 1, "rounds": 1, "model": "mlp", "epochs": 1, "sizes": "images"}
    e = Experiment.of({**values, "attack": f"{odd}:Fewer:count={count}"})
    federation = Federation(e, record=tmp_path / "updates")
    assert federation.clients.schedule(1, 3, attacking=True).images == count
    assert len(list(federation.rounds())) == 1


SPIES = """
    from dataclasses import dataclass

    from honestly.sim.attacks import UpdateAttack


    @dataclass(frozen=True, kw_only=True)
    class Curious(UpdateAttack):
        name = "curious"
        summary = "doubles its update where it sees the rule"
        knows = "{knows}"

        def craft(self, view):
            return view.own if view.rule is None and view.pipeline is None else 2 * view.own


    @dataclass(frozen=True, kw_only=True)
    class Careless(UpdateAttack):
        name = "careless"
        summary = "changes in place what it sees"

        def craft(self, view):
            view.reference.zero_()
            return view.own

        def remember(self, view, forged):
            return {{"sent": {memory}}}
"""


@pytest.fixture
def spies(tmp_path):
    def records(name, *, knows="own", memory="forged", **settings):
        path = tmp_path / f"spies_{knows}_{len(memory)}.py"
        path.write_text(textwrap.dedent(SPIES).format(knows=knows, memory=memory))
        attack = "none" if name == "none" else f"{path}:{name}"
        e = Experiment.of({"clients": 4, "malicious": 1, "rounds": 2, "epochs": 1, "model": "mlp", "attack": attack})
        return run(e, tmp_path / f"{name}_{knows}_{len(memory)}", **settings).records

    return records


@pytest.mark.filterwarnings("ignore:malicious=1, but attack=none")
@pytest.mark.parametrize("knows", ["own", "malicious", "all", "rule"])
def test_only_an_attack_that_knows_the_rule_sees_it(spies, knows):
    honest = [record["loss"] for record in spies("none")]
    seen = [record["loss"] for record in spies("Curious", knows=knows)]
    assert (seen == pytest.approx(honest, rel=1e-6)) == (knows != "rule")


def test_misspelt_knowledge_is_named(spies):
    with pytest.raises(ExperimentError, match="knows must be one of own, malicious, all, rule, got 'everybody'"):
        spies("Curious", knows="everybody")


@pytest.mark.filterwarnings("ignore:malicious=1, but attack=none")
def test_an_attack_that_writes_where_it_looks_changes_no_model(spies):
    assert [r["loss"] for r in spies("Careless")] == pytest.approx([r["loss"] for r in spies("none")], rel=1e-6)


def test_what_an_attack_remembers_must_fit_into_the_file(spies):
    assert spies("Careless", memory="forged.clone().requires_grad_()") == spies("Careless")
    with pytest.raises(ValueError, match=r"a Tensor as 'sent'; expected an array of numbers.*got torch.bfloat16"):
        spies("Careless", memory="forged.bfloat16()")
