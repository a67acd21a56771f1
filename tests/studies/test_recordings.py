"""Recordings by layer are read as they were written, and files are treated as untrusted."""

import numpy as np
import pytest

from honestly.studies.record import SHIPPED, plans
from honestly.studies.recordings import FIRST_FORM, HONEST, Course, is_recording, read, shipped_recording, write


def grams(L=3, n=6, d=9, seed=0):
    X = np.random.default_rng(seed).normal(size=(L, n, d))
    return X @ X.transpose(0, 2, 1)


def course(**changes):
    rows = (HONEST,) * 4 + ("label_flip",) * 2
    given = {"left_out": 1, "idle": 0, **changes}
    return Course("a-b", ("x", "y", "z"), np.array([9, 9, 9]), rows, {1: grams(), 10: grams(seed=1)}, **given)


def test_a_course_can_be_written_and_read(tmp_path):
    write(tmp_path / "r.npz", [course()])
    (found,) = read(tmp_path / "r.npz")
    assert (found.name, found.layers, found.rows, found.left_out) == ("a-b", ("x", "y", "z"), course().rows, 1)
    assert (found.clients, list(found.poisoned), list(found.rounds)) == (4, ["label_flip"], [1, 10])
    np.testing.assert_array_equal(found.poisoned["label_flip"], [4, 5])
    np.testing.assert_allclose(found.rounds[10], grams(seed=1), rtol=1e-6, atol=1e-6)
    assert is_recording(tmp_path / "r.npz")


def test_the_same_courses_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.npz", [course()])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_old_recordings_do_not_name_their_rows(tmp_path):
    np.savez(tmp_path / "r.npz", **{"c|r1": grams(n=38).astype(np.float32), "c|log": np.array("a note")})
    (found,) = read(tmp_path / "r.npz")
    assert found.rows == FIRST_FORM
    assert (found.clients, {k: len(v) for k, v in found.poisoned.items()}) == (20, {"label_flip": 9, "backdoor": 9})
    np.savez(tmp_path / "s.npz", **{"c|r1": grams()})
    with pytest.raises(ValueError, match="has 6 rows and does not say what they are"):
        read(tmp_path / "s.npz")
    assert read(tmp_path / "s.npz", rows=(HONEST,) * 6)[0].clients == 6


HOSTILE = {
    "object": ({"c|r1": np.array([{}], dtype=object)}, "allow_pickle"),
    "nan": ({"c|r1": np.full((1, 6, 6), np.nan)}, "not finite"),
    "shape": ({"c|r1": np.zeros((6, 6))}, "shape"),
    "not square": ({"c|r1": np.zeros((1, 6, 5))}, "shape"),
    "integers": ({"c|r1": np.zeros((1, 6, 6), dtype=int)}, "floats"),
    "not symmetric": ({"c|r1": np.arange(36.0).reshape(1, 6, 6)}, "not a Gram matrix"),
    "negative": ({"c|r1": -np.eye(6)[None]}, "not a Gram matrix"),
    "many layers": ({"c|r1": np.zeros((1001, 1, 1))}, "1001 layers"),
    "shapes differ": ({"c|r1": np.zeros((1, 6, 6)), "c|r2": np.zeros((2, 6, 6))}, "different shapes"),
    "no rounds": ({"c|names": np.array(["a"])}, "no rounds"),
    "names": ({"c|r1": np.zeros((1, 6, 6)), "c|names": np.array(["a", "b"])}, "give 1 texts"),
    "sizes": ({"c|r1": np.zeros((1, 6, 6)), "c|sizes": np.array([0]), "c|rows": np.array([HONEST] * 6)}, "sizes"),
    "left out": ({"c|r1": np.zeros((1, 6, 6)), "c|left_out": np.array(7), "c|rows": np.array([HONEST] * 6)}, "0 to 6"),
    "order": ({"c|r1": np.zeros((1, 2, 2)), "c|rows": np.array(["label_flip", HONEST])}, "must come first"),
    "key": ({"../../x|r1": np.zeros((1, 6, 6))}, "is not a name"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_recording_is_refused(tmp_path, case):
    arrays, message = HOSTILE[case]
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(ValueError, match=rf"r\.npz is not a recording .*{message}"):
        read(tmp_path / "r.npz")


def test_broken_files_are_refused(tmp_path):
    write(tmp_path / "r.npz", [course()])
    whole = (tmp_path / "r.npz").read_bytes()
    for content in (b"", b"x", whole[:-40], whole[:200] + bytes(200) + whole[400:]):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.npz is not a recording"):
            read(tmp_path / "broken.npz")
    assert not is_recording(tmp_path / "nowhere.npz")


def test_a_file_that_is_too_large_when_unpacked_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("honestly.studies.recordings.MOST_BYTES", 1000)
    write(tmp_path / "r.npz", [course()])
    with pytest.raises(ValueError, match="at most 1000 are read"):
        read(tmp_path / "r.npz")


def test_the_package_ships_a_small_recording_of_what_its_command_says():
    assert shipped_recording().stat().st_size < 300_000
    found = read(shipped_recording())
    assert [course.name for course in found] == [plan.name for plan in plans(SHIPPED)]
    assert {course.left_out for course in found} == {0, 8}
    for one in found:
        assert one.clients == 20
        assert {name: len(rows) for name, rows in one.poisoned.items()} == {"label_flip": 9, "backdoor": 9}
    assert any("1.bias" in one.layers and len(one.layers) == 12 for one in found), "BatchNorm takes part"
