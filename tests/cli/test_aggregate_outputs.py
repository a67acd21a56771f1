"""The output of `honestly aggregate`: whole or not at all, never over an input, never an input of the next run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from aggregate_command import run
from full_disk import full
from safetensors.numpy import load_file

import honestly as hn
from honestly.show import aggregate_page as aggregate_report
from honestly.sources.checkpoints import replace


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_in_the_midst(files: list[str], tmp_path: Path, how: signal.Signals) -> None:
    """SIGTERM, a closed terminal and Ctrl-C clean up and say so; the output is unchanged."""
    script = (
        "import sys, time; from honestly.sources.checkpoints import writer; put = writer.FileSink.put\n"
        "def slow(self, *args):\n    put(self, *args); print('writing', flush=True); time.sleep(1)\n"
        "writer.FileSink.put = slow\nfrom honestly.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "aggregate", *files, "-o", str(tmp_path / "out.safetensors"), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(how)
        error = process.stderr.read()
        process.wait(30)
    assert process.returncode == 130
    assert b"interrupted" in error
    assert b"Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(file).name for file in files)


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "folder"])
@pytest.mark.parametrize("there_before", [True, False])
def test_interrupted_after_the_output_was_written(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    name: str, there_before: bool,
) -> None:  # fmt: skip
    """The report takes a while, too: an interruption must not say that the output is unchanged."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / name
    if there_before:
        assert run(*files, "-o", out, "--quiet") == 0
    monkeypatch.setattr(aggregate_report, "write", interrupted)
    assert run(*files, "-o", out, "--report", tmp_path / "r.html") == 130
    assert f"interrupted; {out} was written nevertheless" in capsys.readouterr().err
    monkeypatch.setattr(hn.aggregate.__globals__["Pipeline"], "check", interrupted)
    assert run(*files, "-o", out) == 130
    assert "interrupted; the output is unchanged" in capsys.readouterr().err


def test_a_full_disk_is_named(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(replace.os, "posix_fallocate", full)
        assert run(*files, "-o", tmp_path / "out.safetensors") == 1
    assert f"{tmp_path / 'out.safetensors'}: No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(aggregate_report, "write", full)
    assert run(*files, "-o", tmp_path / "out.safetensors", "--report", tmp_path / "r.html") == 1
    error = capsys.readouterr().err
    assert "r.html: the report cannot be written: No space left on device; " in error
    assert "out.safetensors was written nevertheless" in error
    assert (tmp_path / "out.safetensors").exists()


def test_the_output_is_no_client_of_the_next_run(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "global.safetensors"
    assert run(*files, "-o", out, "--quiet") == 0
    first = out.read_bytes()
    assert run(*files, out, "-o", out, "--quiet") == 2
    assert "which is the input" in capsys.readouterr().err
    assert out.read_bytes() == first
    # under another name it is recognised by its metadata: it is excluded, and the answer is the same
    again = tmp_path / "again.safetensors"
    assert run(*files, out, "-o", again, "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert report["excluded"] == ["global.safetensors"]
    assert "--allow-results" in report["clients"][-1]["reason"]
    assert again.read_bytes() == first
    assert run(*files, out, "-o", again, "--allow-results", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["clients"]) == 8
    # with the option, the old result is replaced and has no vote
    assert run(*files, out, "-o", out, "--allow-overwrite", "--quiet") == 3
    assert out.read_bytes() == first
    # the usual loop works: the reference may be the file that is replaced
    assert run(*files, "-o", out, "--reference", out, "--quiet") == 0


def spellings(file: Path) -> dict[str, str]:
    """Other names of one file."""
    folder = file.parent
    link, hard = folder / "link.safetensors", folder / "hard.safetensors"
    link.symlink_to(file)
    hard.hardlink_to(file)
    return {
        "the same": str(file),
        "dots": f"{folder}/../{folder.name}/./{file.name}",
        "relative": os.path.relpath(file),
        "link": str(link),
        "hard link": str(hard),
    }


@pytest.mark.parametrize("spelling", ["the same", "dots", "relative", "link", "hard link"])
def test_an_input_is_not_overwritten(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], spelling: str
) -> None:
    before = Path(files[0]).read_bytes()
    out = spellings(Path(files[0]))[spelling]
    for exclusions in ("status", "fail"):
        assert run(*files, "-o", out, "--exclusions", exclusions) == 2
        assert "client-0.safetensors" in capsys.readouterr().err
    with pytest.raises(ValueError, match="allow_overwrite"):
        hn.aggregate(files, out=out)
    assert Path(files[0]).read_bytes() == before
    assert run(*files, "-o", out, "--allow-overwrite", "--quiet") == 0
    assert load_file(out)["b.bias"].shape == (9,)


def test_folders_of_inputs_are_not_overwritten(files: list[str], tmp_path: Path) -> None:
    folders = [tmp_path / f"site-{k}" for k in range(5)]
    for k, folder in enumerate(folders):
        folder.mkdir()
        Path(files[k]).rename(folder / "model.safetensors")
    assert run(*folders, "-o", folders[1]) == 2
    assert run(*folders, "-o", folders[1] / "model.safetensors") == 2
    assert run(*(folder / "model.safetensors" for folder in folders), "-o", folders[1]) == 2
    out = tmp_path / "global"
    assert run(*folders, "-o", out, "--quiet") == 0
    assert run(*folders, f"{out}/", "-o", out, "--quiet") == 2
    assert run(*folders, out, "-o", tmp_path / "next", "--quiet") == 3
    assert run(*folders, out, "-o", tmp_path / "next", "--quiet", "--allow-results") == 0


def test_an_npz_result_is_known_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"client-{k}.npz" for k in range(5)]
    for file in files:
        np.savez(file, w=rng.normal(size=50))
    out = tmp_path / "global.npz"
    assert run(*files, "-o", out, "--quiet") == 0
    assert np.load(out)["w"].shape == (50,)
    assert run(*files, "-o", files[0]) == 2
    assert run(*files, out, "-o", tmp_path / "next.npz", "--json") == 3
    assert json.loads(capsys.readouterr().out)["excluded"] == ["global.npz"]


@pytest.mark.parametrize("exclusions", ["status", "fail"])
@pytest.mark.parametrize("out", ["global.safetensors", "global"])
def test_nothing_of_a_killed_run_stays(files: list[str], tmp_path: Path, exclusions: str, out: str) -> None:
    suffix = Path(out).suffix
    draft = tmp_path / f".{out}.0123abcd.tmp"
    result = tmp_path / f"{draft.name}.new{suffix}"
    unfinished = tmp_path / f".{result.name}.89abcdef.tmp"
    for left in (draft, result, unfinished):
        left.touch()
    Path(files[3]).write_bytes(b"")
    before = {path.name for path in tmp_path.iterdir()} - {draft.name, result.name, unfinished.name}
    status = run(*files, "-o", tmp_path / out, "--exclusions", exclusions, "--quiet")
    assert status == (1 if exclusions == "fail" else 3)
    assert {path.name for path in tmp_path.iterdir()} == before | (set() if exclusions == "fail" else {out})
    Path(files[3]).write_bytes(Path(files[2]).read_bytes())
    assert run(*files, "-o", tmp_path / out, "--exclusions", exclusions, "--quiet") == 0
    assert {path.name for path in tmp_path.iterdir()} == before | {out}


@pytest.mark.parametrize("exclusions", ["status", "fail"])
@pytest.mark.parametrize("length", range(228, 256, 3))
def test_nothing_stays_of_a_run_whose_names_become_too_long(
    files: list[str], tmp_path: Path, exclusions: str, length: int
) -> None:
    """The names of temporary files are longer than that of the output."""
    before = set(tmp_path.iterdir())
    out = tmp_path / ("x" * (length - 4) + ".npz")
    if run(*files, "-o", out, "--exclusions", exclusions, "--quiet") == 0:
        out.unlink()
    assert set(tmp_path.iterdir()) == before
