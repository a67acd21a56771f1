"""What attackers who know layers send: effort, directions and roles."""

import numpy as np
import pytest

from honestly.engine import Pipeline
from honestly.studies import recordings
from honestly.studies.layers.lies import ROLES, Lie, change_lie, draw_lie, rows_of
from honestly.studies.layers.measure import measure
from honestly.studies.layers.search import Attacker, directions_of
from honestly.studies.layers.space import LayeredPopulation, Space


@pytest.fixture(scope="module")
def space():
    course = recordings.read(recordings.shipped_recording())[0]
    return Space.of(LayeredPopulation.of(course, 2, clients=10), 3, np.random.default_rng(0))


def lie(space, **more):
    return Lie("random", 2.0, 0.0, "noise", np.ones(space.L, dtype=bool), **more)


def test_effort_scales_the_lie_in_each_layer(space):
    effort = np.linspace(0.0, 2.0, space.L)
    rows = rows_of(space, lie(space, effort=effort), directions_of(space))
    lengths = np.stack([space.length(rows[:, m]) for m in range(3)])
    np.testing.assert_allclose(lengths, np.tile(2.0 * effort * space.spread, (3, 1)), rtol=1e-9)


def test_every_second_attacker_may_move_in_another_direction(space):
    directions = directions_of(space)
    rows = rows_of(space, lie(space, second="against"), directions)
    np.testing.assert_allclose(rows[:, 0], rows[:, 2])
    expected = 2.0 * space.spread[:, None] * directions["against"]
    np.testing.assert_allclose(rows[:, 1], expected)


@pytest.mark.parametrize("role", ROLES)
def test_roles(space, role):
    rows = rows_of(space, lie(space, role=role, spared=2, target=4), directions_of(space))
    plain = rows_of(space, lie(space), directions_of(space))
    np.testing.assert_array_equal(rows[:, 0], plain[:, 0])
    one = rows[0, 1]
    if role == "idle":
        np.testing.assert_array_equal(one, -space.mean)
    elif role == "mimic":
        np.testing.assert_array_equal(one, space.at(4))
    elif role == "copies":
        np.testing.assert_array_equal(rows[:, 1], rows[:, 0])
    else:
        np.testing.assert_array_equal(rows[0, 1:], space.own[1:])


def test_draws_and_changes_reach_every_kind_of_lie(space):
    rng, names = np.random.default_rng(0), list(directions_of(space))
    found = [draw_lie(space, rng, names, number) for number in range(300)]
    found += [change_lie(space, one, rng, names, 0.2) for one in found]
    assert {one.role for one in found} == {"", *ROLES}
    assert any(one.effort is not None for one in found)
    assert any(one.second for one in found)
    assert all(0 <= one.spared <= space.M for one in found)
    assert all(rows_of(space, one, directions_of(space)).shape == (space.L, 3, space.b) for one in found[:50])


def test_a_search_is_at_least_as_bad_as_the_lies_that_it_drew(space):
    pipeline, directions = Pipeline.of("geometric_median"), directions_of(space)
    found = Attacker(space, pipeline, "worst", 30).search(np.random.default_rng(3))
    rng = np.random.default_rng(3)
    draws = [draw_lie(space, rng, list(directions), number) for number in range(12)]
    assert found.value >= max(measure(space, rows_of(space, one, directions), pipeline).worst_layer for one in draws)
    assert found.value == pytest.approx(measure(space, rows_of(space, found.lie, directions), pipeline).worst_layer)
    assert found.tries == 30
