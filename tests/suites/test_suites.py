"""Named suites: what they hold, that they never change, and what they say of rules."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from honestly.studies.recordings import HONEST, Course, read, write
from honestly.studies.suites import SUITES, judge, load
from honestly.studies.suites.make import make, record_course, significant
from honestly.studies.suites.spec import Recipe, compare, content_hash, open_courses, outline, place, published_outline
from honestly.studies.suites.standings import Trial, standing

TINY = replace(
    load("small-1"),
    attacks=("sign_flip", "label_flip"),
    malicious=(0.0, 0.4),
    tries=6,
    courses=(Recipe("one", "dataset=digits model=mlp clients=5 epochs=1 rounds=1 attack=label_flip seed=1"),),
)


@pytest.mark.parametrize("name", SUITES)
def test_a_published_specification_never_changes(name):
    assert published_outline(load(name))["spec"] == load(name).hash, "give the changed suite another name"


@pytest.mark.parametrize("name", ["small-1", "images-1"])
def test_recordings_of_the_package_are_the_published_ones(name):
    suite = load(name)
    assert compare(suite, open_courses(suite)).word == "published"


def test_the_images_are_of_three_data_sets():
    courses = {course.name: course for course in open_courses(load("images-1"))}
    assert {name.partition("-")[0] for name in courses} == {"mnist", "fmnist", "cifar10"}
    assert courses["mnist-idle-6"].idle == 6
    assert courses["fmnist-left_out-8"].left_out == 8
    assert set(courses["mnist-a0.1"].poisoned) == {"label_flip", "backdoor"}


def test_the_small_suite_has_idle_and_left_out_clients_and_a_language_model():
    suite = load("small-1")
    courses = open_courses(suite)
    clients = {course.clients for course in courses}
    assert {3, 5, 10, 30} <= clients
    assert any(course.idle for course in courses)
    assert any(course.left_out for course in courses)
    layers = {layer for course in courses for layer in course.layers}
    assert "blocks.0.query.weight" in layers, "the language model"


def test_a_suite_that_is_not_here_names_the_command(tmp_path):
    with pytest.raises(ValueError, match="honestly stress --make-suite core-1"):
        open_courses(load("core-1"), tmp_path)
    with pytest.raises(ValueError, match="did you mean core-1"):
        load("core-2")


def test_making_a_suite_gives_the_same_content_twice(tmp_path):
    _, first = make(TINY, out=tmp_path / "a.npz")
    path, again = make(TINY, out=tmp_path / "b.npz")
    assert content_hash(first) == content_hash(again)
    stored = read(path)
    assert content_hash(stored) == content_hash(first), "what is hashed is what is stored"
    assert stored[0].name == "one"
    assert stored[0].clients == 5


def test_making_a_suite_resumes_where_it_was_stopped(tmp_path, monkeypatch):
    two = replace(TINY, courses=(*TINY.courses, replace(TINY.courses[0], name="two")))
    begun = []

    def stop(recipe, folder):
        begun.append(recipe.name)
        if begun == ["one", "two"]:
            raise KeyboardInterrupt
        return record_course(recipe, folder)

    monkeypatch.setattr("honestly.studies.suites.make.record_course", stop)
    with pytest.raises(KeyboardInterrupt):
        make(two, out=tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()
    path, courses = make(two, out=tmp_path / "a.npz")
    assert begun == ["one", "two", "two"]
    assert [course.name for course in courses] == ["one", "two"]
    assert content_hash(read(path)) == content_hash(courses)
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_recordings_of_other_machines_are_recognised(monkeypatch):
    suite = load("small-1")
    courses = open_courses(suite)
    assert compare(suite, _scaled(courses, 1.0001)).word == "equivalent"
    assert compare(suite, _scaled(courses, 4.0)).word == "different"
    assert compare(replace(suite, tries=7), courses).word == "different"
    far = [replace(c, rounds={r: (9 if c.name == "unequal" and r == 20 else 1) * g for r, g in c.rounds.items()})
           for c in courses]  # fmt: skip
    late = compare(suite, far)
    assert (late.word, late.rounds - late.agree, late.others) == ("equivalent", 1, ("unequal r20",))
    early = [replace(c, rounds={r: (9 if c.name == "unequal" and r == 2 else 1) * g for r, g in c.rounds.items()})
             for c in courses]  # fmt: skip
    assert compare(suite, early).word == "different", "first rounds have no path to differ by"


def _scaled(courses, factor):
    return [replace(c, rounds={r: factor * g for r, g in c.rounds.items()}) for c in courses]


def test_other_courses_than_those_of_the_specification_are_refused(tmp_path):
    (tmp_path / "suites").mkdir()
    course = open_courses(load("small-1"))[0]
    write(tmp_path / "suites" / "core-1.npz", [course])
    with pytest.raises(ValueError, match="holds other courses than core-1 has"):
        open_courses(load("core-1"), tmp_path)


def test_significant_bits_keep_four_digits():
    values = np.random.default_rng(0).standard_normal(100) * 10.0 ** np.arange(-50, 50)
    np.testing.assert_allclose(significant(values), values, rtol=2.0**-14)
    assert significant(np.zeros(2)).tolist() == [0, 0]


def test_a_course_of_adapters_has_products_for_layers():
    recipe = Recipe("lora", "language=lora clients=4 rounds=1 steps=2 batch=4 idle=1 pretraining=5 poisoned=1")
    course = record_course(recipe)
    assert course.name == "lora"
    assert course.rows == (*(HONEST,) * 4, "label_flip", "backdoor")
    assert course.sizes[0] == 32 * 32
    assert not course.rounds[1][:, 0].any(), "an idle client's product is 0"
    ranks = [np.linalg.matrix_rank(gram[1:4, 1:4]) for gram in course.rounds[1]]
    assert min(ranks) >= 1


def test_words_of_a_language_course_are_checked():
    with pytest.raises(ValueError, match="unknown setting of a language course 'clints'"):
        record_course(Recipe("x", "language=lora clints=4"))
    with pytest.raises(ValueError, match="stands for 2 courses"):
        record_course(Recipe("x", "dataset=digits alpha=0.1,1"))


def test_standings(tmp_path):
    (tmp_path / "suites").mkdir()
    make(TINY, out=tmp_path / "suites" / "small-1.npz")
    mean, told, ours = judge(TINY, ["mean", "multi_krum", "bayesian"], folder=tmp_path)
    assert (mean.told, told.told, ours.told) == ("nothing", "f", "nothing")
    assert mean.rounds == 1 + 2 + 2, "quiet, two fixed attacks, two goals of the search"
    assert mean.adaptive > 5 * ours.adaptive, "the mean has no bound"
    assert ours.adaptive < 10
    assert ours.worst_layer >= ours.mean_layer
    assert mean.adaptive >= mean.worst
    assert mean.missed == 100.0
    assert mean.tries == 6
    assert json.dumps(mean.asdict(), allow_nan=False)


def test_one_round_without_bound_does_not_decide_a_mean():
    trials = [Trial("mean", "p", 5, 1, "alie", kappa=k, layer=math.inf) for k in (1.0, 1e9)]
    found = standing("mean", trials, 3)
    assert found.mean == pytest.approx(50.5)
    assert found.mean_layer == 100.0
    assert found.worst == found.uncapped * 2 - 1 == 1e9
    assert found.median == found.uncapped
    assert found.capped == 100.0
    assert found.asdict()["worst_layer"] is None


def test_coordinate_wise_rules_are_judged_on_stand_ins(tmp_path):
    (tmp_path / "suites").mkdir()
    make(TINY, out=tmp_path / "suites" / "small-1.npz")
    median, signs, mean = judge(TINY, ["median", "nnm+sign_guard", "mean"], folder=tmp_path)
    assert (median.basis, signs.basis, mean.basis) == ("stand-ins", "stand-ins", "inner products")
    assert median.adaptive < 10 < mean.adaptive
    assert median.accused is None
    assert signs.accused is not None
    assert (median.milliseconds, mean.milliseconds > 0) == (None, True)


def test_the_outline_has_lengths_and_variances():
    X = np.random.default_rng(1).standard_normal((3, 5)) + 10
    course = Course("c", ("w",), np.array([5]), (HONEST,) * 3, {1: (X @ X.T)[None]})
    mean = X.mean(0)
    expected = [mean @ mean, np.square(X - mean).sum(1).mean()]
    np.testing.assert_allclose(outline([course])["c r1"], expected, rtol=1e-4)


def test_the_recording_of_a_folder_counts_and_else_that_of_the_package(tmp_path):
    shipped = place(load("small-1"))
    assert place(load("small-1"), tmp_path) == shipped
    own = tmp_path / "suites" / "small-1.npz"
    own.parent.mkdir()
    own.write_bytes(shipped.read_bytes())
    assert place(load("small-1"), tmp_path) == own
    assert place(load("core-1"), tmp_path) == tmp_path / "suites" / "core-1.npz"
