"""One grammar for rules, mixers and attacks in every interface."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import honestly as hn
from honestly.catalog import Catalog, Spec, split_words
from honestly.engine import Pipeline
from honestly.rules import MIXER_CATALOG, RULE_CATALOG, make_steps
from honestly.rules.memory import Memory
from honestly.sim.attacks import ATTACKS


def test_a_name_with_settings_in_the_new_and_the_old_spelling() -> None:
    new, old = Spec.parse("rop:z=1,angle=45"), Spec.parse("rop:z=1:angle=45")
    assert new == old == Spec("rop", {"z": 1, "angle": 45})
    assert Spec.parse(str(new)) == new
    assert Spec.parse(" krum : f = 2 ").settings == {"f": 2}


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("mine.py:Rule", "mine.py:Rule", {}),
        ("mine.py:Rule:f=2,x=none", "mine.py:Rule", {"f": 2, "x": None}),
        ("package.module:Rule:f=2", "package.module:Rule", {"f": 2}),
        (r"C:\rules\mine.py:Rule:f=2", r"C:\rules\mine.py:Rule", {"f": 2}),
        ("x:layers=[1, 2],y=(3, 4)", "x", {"layers": [1, 2], "y": (3, 4)}),
        ("x:word=a b,quoted='none'", "x", {"word": "a b", "quoted": "none"}),
        ("x:big=1e+3", "x", {"big": 1000.0}),
    ],
)
def test_names_and_values(text: str, name: str, settings: dict[str, object]) -> None:
    (spec,) = Spec.parse_all(text)
    assert (spec.name, spec.settings) == (name, settings)


def test_steps_are_joined_by_a_plus() -> None:
    assert [str(spec) for spec in Spec.parse_all("nnm:f=4+arc:f=1+krum:f=2")] == ["nnm:f=4", "arc:f=1", "krum:f=2"]
    folder = Spec.parse_all("nnm:f=4+./a+b/mine.py:Rule:x=1")
    assert [spec.name for spec in folder] == ["nnm", "./a+b/mine.py:Rule"]


@pytest.mark.parametrize("text", ["", ":f=2", "nnm+", "+krum", "krum:f=2,3", "krum:f=2,=3"])
def test_invalid_specs_are_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ValueError, match="name:key=value"):
        Spec.parse_all(text)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="f is given twice in 'krum:f=1,f=2'"):
        Spec.parse("krum:f=1,f=2")


def test_lists_keep_the_settings_together() -> None:
    assert split_words("multi_krum:f=4,keep=8,median,nnm:f=1+krum:f=2") == [
        "multi_krum:f=4,keep=8",
        "median",
        "nnm:f=1+krum:f=2",
    ]
    assert split_words("0,1") == ["0", "1"]


def test_settings_are_typed() -> None:
    made = RULE_CATALOG.build("trimmed_mean:trim=0,f=2.0")
    assert repr(made) == "TrimmedMean(trim=0.0, f=2)"
    assert RULE_CATALOG.build("bayesian:memory=0.9,scale_free=false") == hn.Bayesian(
        memory=Memory(forgetting=0.9), scale_free=False
    )
    for text, message in (
        ("krum:f=two", r"rule.f = 'two': give a number"),
        ("krum:f=2.5", r"rule.f = 2.5: give a whole number"),
        ("bayesian:scale_free=1", r"rule.scale_free = 1: give true or false"),
        ("bayesian:memory=yes", r"rule.memory = 'yes': give the share of the past"),
        ("fltrust:root=3", r"rule.root = 3: the trusted update is an array"),
        ("foolsgold:memory=3", r"rule.memory = 3: it begins empty"),
    ):
        with pytest.raises(ValueError, match=message):
            RULE_CATALOG.build(text)


def test_names_of_papers_and_libraries_lead_to_ours() -> None:
    for word, name in (("FedAvg", "mean"), ("GeoMed", "geometric_median"), ("TrimAvg", "trimmed_mean")):
        with pytest.raises(ValueError, match=f"^unknown rule '{word}': it is called {name} here$"):
            hn.aggregate(np.eye(3), f"{word}:f=1")
    with pytest.raises(ValueError, match=r"unknown rule 'BULYAN': did you mean bulyan\?"):
        hn.make("BULYAN", f=1)
    with pytest.raises(ValueError, match="'noise': it is called random here"):  # not "did you mean none?"
        ATTACKS.find("noise")


def test_aliases_are_of_what_exists_and_hide_nothing() -> None:
    for catalog in (RULE_CATALOG, ATTACKS):
        assert set(catalog._aliases.values()) <= set(catalog)
        assert not set(catalog._aliases) & set(catalog)


def test_every_python_entry_takes_the_grammar() -> None:
    X = np.random.default_rng(0).normal(size=(9, 5))
    by_word = hn.aggregate(X, "nnm:f=2+krum:f=2")
    by_object = hn.aggregate(X, hn.Krum(f=2), pre=hn.NNM(f=2))
    assert np.array_equal(by_word.value, by_object.value)
    assert Pipeline.of("arc:f=1+mean", "nnm:f=2").mixers == (hn.NNM(f=2), hn.ARC(f=1))
    assert Pipeline.of("mean", "nnm:f=2+arc:f=1").mixers == (hn.NNM(f=2), hn.ARC(f=1))


def test_python_does_not_run_code_by_name(tmp_path: Path) -> None:
    """A name from a job's configuration must not load a file; a command line may."""
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('it ran')")
    with pytest.raises(ValueError, match=r"unknown rule .* on a command line or in a settings file"):
        Pipeline.of(f"{file}:Rule")
    with pytest.raises(ValueError, match="unknown mixer"):
        hn.aggregate(np.eye(3), "mean", pre=f"{file}:Mixer")


OWN = """
    from dataclasses import dataclass
    import numpy as np
    from honestly.rules.rule import Mix, Rule

    @dataclass(frozen=True, kw_only=True)
    class First(Rule):
        '''The first clients.

        Args:
            keep: how many are kept; at least 1.
        '''
        keep: int
        name = "first"
        summary = "the first clients"

        def mix(self, geometry):
            weights = np.zeros(geometry.K)
            weights[: self.keep] = 1 / self.keep
            return Mix.of_weights(weights)

    @dataclass(frozen=True, kw_only=True)
    class Abstract(Rule):
        name = "abstract"

    class Plain:
        pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(OWN))
    return file


def test_custom_code_uses_the_same_grammar(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from honestly.cli import main

    mixers, rule = make_steps(f"nnm:f=1+{own}:First:keep=2", own=True)
    assert mixers == (hn.NNM(f=1),)
    assert repr(rule) == "First(keep=2)"
    files = [str(tmp_path / f"{i}.npz") for i in range(4)]
    for i, file in enumerate(files):
        np.savez(file, w=np.full(3, float(i), dtype=np.float32))
    out = str(tmp_path / "out.npz")
    assert main(["aggregate", *files, "-o", out, "--rule", f"{own}:First:keep=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"]
    assert np.load(out)["w"].tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("First", r"needs keep, how many are kept \(Python: First\(keep=2\); command line: .*mine.py:First:keep=2\)"),
        ("First:kep=1", r"has no setting 'kep': did you mean keep"),
        ("Abstract", r"cannot be created: .*abstract"),
        ("Plain", r"must be a dataclass that inherits from Rule"),
        ("Nothing", r"cannot be loaded: .* has no 'Nothing'"),
    ],
)
def test_errors_in_custom_code_are_explained(own: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RULE_CATALOG.build(f"{own}:{name}")


def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("a = 1\nb = a / 0\n")
    with pytest.raises(
        ValueError, match=r"cannot be loaded: ZeroDivisionError: division by zero \(broken.py, line 2\)"
    ):
        RULE_CATALOG.build(f"{file}:Rule")


def test_registering() -> None:
    @dataclass(frozen=True)
    class Thing:
        name: ClassVar[str] = "thing"

    @dataclass(frozen=True)
    class Other(Thing):
        pass

    catalog: Catalog[Thing] = Catalog("thing", Thing, (Thing,))
    catalog.register(Thing)  # registering it again is allowed
    with pytest.raises(ValueError, match=r"there is a thing 'thing' already: .*Thing"):
        catalog.register(Other)
    with pytest.raises(ValueError, match="must be a dataclass that inherits from Thing"):
        catalog.register(int)  # type: ignore[arg-type]
    assert list(catalog) == ["thing"]
    assert len(catalog) == 1


def test_no_rule_and_mixer_share_a_name() -> None:
    assert not set(RULE_CATALOG) & set(MIXER_CATALOG)
