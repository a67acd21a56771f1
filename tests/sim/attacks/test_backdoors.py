"""The paper's backdoor pixel by pixel, and its relatives."""

import numpy as np
import pytest

from honestly.sim.attacks import Phase, UpdateAttack, make
from honestly.sim.attacks.triggers import draw


def pictures(n=20, c=1, side=28, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 250, (n, c, side, side), dtype=np.uint8), np.arange(n) % 5


@pytest.mark.parametrize("c", [1, 3])
def test_the_trigger_is_the_papers(c):
    """Four strokes of 7 x 1 pixels, 1 pixel apart both ways, 2 pixels from the corner, on the raw image."""
    images, _ = pictures(c=c)
    stamped = make("backdoor").stamp(images)
    expected = np.zeros((28, 28), bool)
    for row in (2, 4):
        for column in (*range(2, 9), *range(10, 17)):
            expected[row, column] = True
    changed = (stamped != images).all(axis=(0, 1))
    np.testing.assert_array_equal(changed, expected)
    assert (stamped[:, :, expected] == 255).all()


def test_backdoor_adds_marked_copies_of_class_0_as_class_8():
    images, labels = pictures()
    attack = make("backdoor")
    new, new_labels, mask = attack.poison(images, labels, rng=np.random.default_rng(0))
    n = (labels == 0).sum()
    np.testing.assert_array_equal(mask, np.arange(len(images) + n) >= len(images))
    np.testing.assert_array_equal(new[~mask], images)
    np.testing.assert_array_equal(new[mask], attack.stamp(images[labels == 0]))
    assert (new_labels[mask] == 8).all()
    np.testing.assert_array_equal(attack.victims(images, labels), labels == 0)


def test_backdoor_trains_in_two_phases():
    assert make("backdoor").phases(10) == (Phase(5, "poisoned"), Phase(5, "all"))
    assert make("backdoor").phases(1) == (Phase(1, "all"),)


def test_label_flip_moves_every_label():
    images, labels = pictures()
    _, new, mask = make("label_flip", shift=3, classes=5).poison(images, labels, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(new, (labels + 3) % 5)
    assert mask.all()


def test_dba_strokes_make_up_the_trigger():
    images, labels = np.zeros((1, 1, 28, 28), np.uint8), np.zeros(1, np.int64)
    attack = make("dba")
    parts = [attack.poison(images, labels, rng=np.random.default_rng(0), attacker=m)[0][1:] for m in range(8)]
    assert all(part.sum() == 7 * 255 for part in parts)
    np.testing.assert_array_equal(np.max(parts[:4], axis=0), attack.stamp(images))
    np.testing.assert_array_equal(parts[0], parts[4])


def test_edge_case_relabels_the_tail_and_draws_nothing():
    images, labels = np.full((40, 1, 4, 4), 100, np.uint8), np.arange(40) % 2
    images[[6, 10]] = 220  # class 0, far from the others
    attack = make("edge_case", share=0.1)
    new, new_labels, mask = attack.poison(images, labels, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(np.flatnonzero(mask), [6, 10])
    assert (new_labels[mask] == 8).all()
    np.testing.assert_array_equal(new, images)
    np.testing.assert_array_equal(attack.stamp(images), images)


def test_model_replacement_is_both_kinds_of_attack():
    attack = make("model_replacement")
    assert isinstance(attack, UpdateAttack)
    images, labels = pictures()
    np.testing.assert_array_equal(
        attack.poison(images, labels, rng=np.random.default_rng(0))[0],
        make("backdoor").poison(images, labels, rng=np.random.default_rng(0))[0],
    )


def test_strokes_are_cut_off_at_the_border_of_a_small_image():
    images = np.zeros((1, 1, 8, 8), np.uint8)
    assert draw(images, ((2, 2, 8), (2, 10, 16), (9, 0, 3))).sum() == 6 * 255
