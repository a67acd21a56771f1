"""`honestly doctor` reports what is installed, what is missing and what is wrong, and never fails itself."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from honestly.cli import doctor, main, requirements
from honestly.cli.doctor import examine
from honestly.sim.data.files import BATCHES


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HONESTLY_DATA", str(tmp_path / "data"))


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend other versions; None is not installed."""
    real = metadata.version

    def version(name: str) -> str:
        found = versions[name] if name in versions else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(requirements.metadata, "version", version)


def test_here_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("honestly", "python", "numpy", "extra sim", "cpu", "cuda", "data mnist", "nothing is wrong"):
        assert word in text


def test_json_is_the_same_in_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "honestly-doctor/1"
    assert found["ok"] is True
    assert {extra["extra"] for extra in found["extras"]} >= {"cli", "torch", "sim", "flower", "nvflare"}
    assert found["devices"]["cpu"]["cores"] >= 1
    assert [row["name"] for row in found["data"]] == ["digits", "mnist", "fmnist", "cifar10"]
    assert found["folders"][0]["free"] > 0


def test_it_says_how_small_models_are_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch  # noqa: F401  (without it nothing is trained: see tests/without.py)

    for why, words in (
        (None, "small models  trained by a compiled program"),
        ("no C compiler", "slower.*no C compiler"),
    ):
        monkeypatch.setattr("honestly.sim.train.compiled.build.reason", lambda why=why: why)
        assert main(["doctor"]) == 0  # it works either way
        assert re.search(words, re.sub("  +", "  ", capsys.readouterr().out))


def test_it_says_how_updates_are_averaged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for why, words in ((None, "averages  by a compiled program"), ("no place", "averages  by NumPy, slower: no place")):
        monkeypatch.setattr("honestly.kernels.rows.PROGRAM.reason", lambda why=why: why)
        assert main(["doctor"]) == 0
        assert words in re.sub("  +", "  ", capsys.readouterr().out)


def test_what_is_missing_comes_with_its_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, matplotlib=None, flwr=None)
    assert main(["doctor"]) == 0  # an extra that was not requested is not an error
    text = capsys.readouterr().out
    assert "missing: matplotlib; pip install 'honestly[cli]'" in text
    assert "missing: flwr; pip install 'honestly[flower]'" in text


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"numpy": "1.26.4"}, "numpy 1.26.4 is installed, but numpy>=2.0 is needed: pip install honestly"),
        ({"numpy": None}, "numpy is not installed: pip install honestly"),
        ({"rich": "15.0.0"}, "rich 15.0.0 is installed, but rich"),
        ({"torch": "2.1.0"}, "torch 2.1.0 is installed, but torch>=2.6 is needed: pip install 'honestly["),
    ],
)
def test_wrong_versions_are_problems(
    versions: dict[str, str | None], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, **versions)
    assert main(["doctor"]) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem")]
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize("error", [OSError("libcudart.so: cannot open"), ImportError("DLL load failed")])
def test_a_torch_that_does_not_load_is_a_problem(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "torch":
                raise error

    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    (problem,) = examine()["problems"]
    assert "torch does not load" in problem
    assert str(error) in problem


def test_data_sets_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in BATCHES[:-1]:
        (folder / name).touch()
    assert {row["name"]: row["where"] for row in examine()["data"]}["cifar10"] is None  # one is missing
    (folder / BATCHES[-1]).touch()
    found = {row["name"]: row["where"] for row in examine()["data"]}
    assert found["cifar10"] == str(folder)
    assert found["mnist"] is None


def test_a_full_disk_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE", 1 << 62)
    assert [p for p in examine()["problems"] if "GiB free" in p]


def test_a_data_folder_below_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problems = examine(tmp_path / "file" / "data")["problems"]
    assert [p for p in problems if p.endswith("cannot be written; name another with --data or HONESTLY_DATA")]


def test_a_folder_that_is_gone_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert [p for p in examine()["problems"] if p.startswith("current folder")]
    finally:
        os.chdir(tmp_path)


def test_the_source_tree_tells_the_same_as_the_installed_package() -> None:
    here = set(requirements._of_the_source_tree())
    assert any(line.startswith("numpy") for line in here)
    assert {r.extra for r in map(requirements._parse, here)} >= {"", "cli", "sim", "torch"}
    assert "torch" in {r.name for r in map(requirements._parse, here) if r.extra == "sim"}
