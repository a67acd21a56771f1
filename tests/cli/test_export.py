"""`honestly export scaleout`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from honestly.cli import export


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    export.add(parser.add_subparsers())
    args = parser.parse_args(["export", "scaleout", *words])
    return args.run(args)


def test_it_writes_a_file_that_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "server_functions.py"
    assert run("-o", str(out)) == 0
    compile(out.read_text(), str(out), "exec")
    assert "start_session" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--force"):
        run("-o", str(out))
    assert run("-o", str(out), "--force", "--rule", "multi_krum", "f=2", "keep=4") == 0
    assert "MultiKrum(f=2" in out.read_text()


def test_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-o", "-") == 0
    assert "class ServerFunctions" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--rule", "median"), ("--rule", "nonsense"), ("f",), ("--rule", "krum", "f=-1")])
def test_wrong_arguments_are_named(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".+"):
        run("-o", str(tmp_path / "x.py"), *words)
    assert not (tmp_path / "x.py").exists()
