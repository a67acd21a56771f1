import re
import sys
from copy import copy
from dataclasses import MISSING, fields
from inspect import getmodule, getsource, signature

import pytest

from honestly.rules import MIXERS, RULES, Krum, list_rules, make, make_mixer
from honestly.rules.rule import Rule


def test_names_are_snake_case_of_the_class_and_unique():
    names = [entry.name for entry in (*RULES, *MIXERS)]
    assert len(set(names)) == len(names)
    for entry in (*RULES, *MIXERS):
        joined = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry.__name__).lower()
        assert entry.name.replace("_", "") == joined.replace("_", "")


def test_everything_listed_is_exported():
    assert {entry.__name__ for entry in (*RULES, *MIXERS)} <= set(sys.modules["honestly.rules"].__all__)


@pytest.mark.parametrize("entry", [*RULES, *MIXERS], ids=lambda entry: entry.name)
def test_has_a_summary_a_reference_and_an_example(entry):
    assert entry.summary
    assert entry.reference
    assert ">>>" in entry.__doc__
    assert "Reference" in entry.__doc__
    known = {"f", "reference", "root", "memory", "randomness", "sizes", "signs", "updates", "buffers", "trusted client"}
    assert entry.needs <= known


def test_rules_lists_rules_and_mixers():
    listed = {info.name: info for info in list_rules()}
    assert listed["krum"].kind == "rule"
    assert listed["nnm"].kind == "mixer"
    assert listed["geometric_median"].streams
    assert listed["multi_krum"].settings == ("f", "keep")


def test_make_builds_by_name():
    assert make("krum", f=2) == Krum(f=2)
    assert isinstance(make("mean"), Rule)
    assert make_mixer("bucketing", size=3).size == 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("krumm", {}, "unknown rule 'krumm': did you mean krum"),
        ("nnm", {"f": 2}, r"'nnm' is not a rule: it is a mixer; join a rule to it with \+, as in nnm:f=2\+median"),
        (None, {}, r"^rule None: give its name, such as 'bayesian'$"),
        ("zzz", {}, r"unknown rule 'zzz'\. Allowed: .*trimmed_mean.*bulyan"),
        ("multi_krum", {"f": 1, "keeps": 3}, "no setting 'keeps': did you mean keep.* Settings: f, keep"),
        ("median", {"f": 1}, "no setting 'f'.* Settings: none"),
        (
            "krum",
            {},
            r"^rule 'krum' needs f, the number of attackers to withstand "
            r"\(Python: hn.Krum\(f=2\); command line: krum:f=2\)$",
        ),
        ("krum", {"f": -1}, "f must be an integer >= 0, got -1"),
        ("krum", {"f": 10**400}, r"f must be an integer below 2\^63, got 1000+\.\.\.$"),
        ("trimmed_mean", {"trim": 10**400}, r"trim must be a number >= 0 and < 0.5, got 1000+\.\.\.$"),
    ],
)
def test_make_names_what_is_wrong(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, **settings)


@pytest.mark.parametrize("entry", [*RULES, *MIXERS], ids=lambda entry: entry.name)
def test_a_call_with_wrong_settings_names_the_remedy(entry):
    required = [one.name for one in fields(entry) if one.default is MISSING]
    if required:
        remedy = (
            rf"needs {required[0]}, .* \(Python: hn\.{entry.__name__}\({required[0]}=.*\); command line: {entry.name}:"
        )
        with pytest.raises(TypeError, match=remedy):
            entry()
    with pytest.raises(TypeError, match=f"{entry.name}' has no setting 'wrong'"):
        entry(wrong=1)
    with pytest.raises(TypeError, match=r"takes its settings by name|has no settings"):
        entry(1)


def test_a_rule_in_python_explains_itself_as_on_the_command_line():
    with pytest.raises(TypeError) as called:
        Krum()
    with pytest.raises(ValueError, match="needs f") as named:
        make("krum")
    assert str(called.value) == str(named.value)
    assert called.value.__context__ is None
    assert str(signature(Krum)) == "(*, f: 'int') -> None"
    assert copy(Krum(f=2)) == Krum(f=2)


def test_rules_never_import_each_other():
    modules = {entry.__module__ for entry in (*RULES, *MIXERS)}
    for entry in (*RULES, *MIXERS):
        imported = set(re.findall(r"^from (honestly\.rules\.\w+) import", getsource(getmodule(entry)), re.M))
        assert not imported & modules, entry
