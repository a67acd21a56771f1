"""Words of the command line become rules with the right settings."""

import numpy as np
import pytest

from honestly.studies.specs import Contestant, attack_of, words


def test_words():
    assert words("a:x=1:y=2.5:z=true:w=none:v=text") == ("a", {"x": 1, "y": 2.5, "z": True, "w": None, "v": "text"})
    with pytest.raises(ValueError, match="'z' in 'alie:z': write settings as alie:key=value"):
        attack_of("alie:z")
    assert attack_of("alie:z=1.5").z == 1.5


def test_a_rule_is_told_f_unless_it_has_one_or_needs_none():
    assert Contestant("multi_krum").needs_f
    assert not Contestant("multi_krum:f=3").needs_f
    assert not Contestant("geometric_median").needs_f
    assert Contestant("nnm+geometric_median").needs_f
    pipeline, told = Contestant("nnm+multi_krum").build(K=20, f=8, root=None)
    assert [step.f for step in pipeline.steps] == [8, 8]
    assert told == 8
    assert Contestant("multi_krum:f=3").build(K=20, f=8, root=None)[0].rule.f == 3


def test_says_what_a_rule_is_told():
    told = {spec: Contestant(spec).knows for spec in ("median", "krum", "fltrust", "monna", "nnm+median", "krum:f=2")}
    assert told == {
        "median": "nothing",
        "krum": "f",
        "fltrust": "root",
        "monna": "f, trusted client",
        "nnm+median": "f",
        "krum:f=2": "nothing",
    }


def test_f_is_lowered_to_what_the_rule_accepts():
    pipeline, told = Contestant("krum").build(K=20, f=15, root=None)
    rule = pipeline.rule
    assert rule.f == told < 10
    rule.check(20)
    with pytest.raises(ValueError, match=r"\d"):
        type(rule)(f=told + 1).check(20)
    assert Contestant("krum").build(K=20, f=10**18, root=None)[1] == told, "at once"


def test_a_rule_that_fits_no_f_says_why():
    with pytest.raises(ValueError, match="needs at least"):
        Contestant("krum").build(K=2, f=5, root=None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("geometric_medan", "unknown rule 'geometric_medan': did you mean geometric_median"),
        ("nmn+median", "unknown mixer 'nmn'"),
        ("multi_krum:g=3", "rule 'multi_krum' has no setting 'g'. Settings: f, keep"),
    ],
)
def test_misspelt_words_are_explained(spec, message):
    with pytest.raises(ValueError, match=message):
        _ = Contestant(spec).parts


def test_a_root_is_passed_on():
    pipeline, _ = Contestant("fltrust").build(K=5, f=1, root=np.ones(3))
    np.testing.assert_array_equal(pipeline.rule.root, np.ones(3))
