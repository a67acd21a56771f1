"""How every command ends: the right status and one sentence, never a traceback, whatever the terminal is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from honestly.cli import COMMANDS, main, parser
from honestly.cli.failures import ending
from honestly.cli.parser import subcommands
from honestly.result import AggregationError


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "honestly", *words], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["simualte"], ["'simualte' is none of demo, ", "did you mean simulate?"]),
        (["simulate", "--presest"], ["usage: honestly simulate", "unknown option: --presest; did you mean --presets?"]),
        (["simulate", "--rounds", "5"], ["unknown option: --rounds; settings are written rounds=VALUE"]),
        (["aggregate", "--lora", "exat", "x", "-o", "y"], ["argument --lora: 'exat' is none of exact, svd, factors"]),
        (["rules", "extra"], ["usage: honestly rules", "unknown argument: extra"]),
        (["export", "scaelout"], ["did you mean scaleout?"]),
        (["export", "scaleout", "--ruel", "mean"], ["usage: honestly export scaleout", "did you mean --rule?"]),
    ],
)
def test_near_misses_on_the_command_line(
    words: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    for message in messages:
        assert message in told


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["simulate", "rule=bayesain"], 2, "did you mean 'bayesian'?"),
        (["simulate", "rule=krum"], 2, "must be told f: give f=..."),
        (["stress", "--rules", "bayesain"], 2, "did you mean bayesian"),
        (["datasets", "cifar"], 2, "did you mean cifar10?"),
        (["export", "scaleout", "-o", "/no/such/folder/x.py"], 1, "/no/such/folder/x.py: No such file or directory"),
        (["aggregate", "a", "b", "c", "-o", "x.txt"], 2, "results are written as .safetensors, .npz or a folder"),
        (["aggregate", "a", "b", "c", "-o", "x.html"], 2, "results are written as .safetensors, .npz or a folder"),
        (["aggregate", "a", "b", "c", "-o", "x.npz", "--sizes", "/dev/null/x"], 1, "/dev/null/x: Not a directory"),
        (["aggregate", "a", "b", "c", "-o", "x.npz", "--sizes", "broken"], 2, "begins like JSON and is none"),
        (["aggregate", "a", "b", "c", "-o", "x.npz", "--ids", "@latin"], 2, "--ids latin: it is not UTF-8 text"),
    ],
)
def test_mistakes(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("broken").write_text("{1")
    Path("latin").write_bytes(b"\xe9t\xe9")
    assert main(words) == status
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith(f"honestly {words[0]}: ")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_settings_may_follow_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    words = ["rounds=1", "--quiet", "clients=3", "--out", out, "epochs=1", "model=mlp", "rule=mean"]
    assert main(["simulate", *words]) == 0
    assert '"clients":3' in (tmp_path / "run" / "experiment.json").read_text().replace(" ", "")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("clients = 0"), 2, "honestly rules: clients = 0\n"),
        (AggregationError("too few"), 1, "honestly rules: too few\n"),
        (FileNotFoundError(2, "No such file or directory", "a\x1b[2Jb"), 1, "a\\x1b[2Jb: No such file or directory"),
        (OSError("two\nlines"), 1, "honestly rules: two\nhonestly rules: lines\n"),
        (KeyboardInterrupt(), 130, "honestly rules: interrupted\n"),
        (KeyboardInterrupt("all is saved"), 130, "honestly rules: all is saved\n"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("CUDA out of memory. Tried"), 1, "out of memory"),
        (ModuleNotFoundError("no", name="matplotlib.pyplot"), 1, "not installed: pip install 'honestly[cli]'"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    chosen = parser().parse_args(["rules"])
    chosen.run = fail
    assert ending(chosen) == status
    assert message in capsys.readouterr().err


def test_an_error_without_a_file_is_about_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> int:
        raise OSError(28, "No space left on device")

    for words, told in (
        (["report", "a", "--out", "b"], "honestly report: b: No space"),
        (["rules"], "rules: No space"),
    ):
        chosen = parser().parse_args(words)
        chosen.run = fail
        assert ending(chosen) == 1
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ModuleNotFoundError("no", name="honestly.nothing")])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    def fail(_: object) -> int:
        raise error

    chosen = parser().parse_args(["rules"])
    chosen.run = fail
    with pytest.raises(type(error)):
        ending(chosen)


@pytest.mark.parametrize("words", ["rules", "attacks --json", "simulate model=mlp clients=3 rounds=1 rule=mean"])
def test_a_reader_that_stops_is_no_error(words: str, tmp_path: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m honestly {words} | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode in (0, 141)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        (("rules",), "ascii"),
        (("rules",), "latin-1"),
        (("attacks",), "cp1252"),
        (("simulate", "--show-partition", "clients=3"), "ascii"),
    ],
)
def test_a_terminal_that_lacks_letters(words: tuple[str, ...], encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "honestly", *words], capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done.stdout.decode(encoding)


def test_a_narrow_terminal() -> None:
    done = run("rules", COLUMNS="40")
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 40
    assert "krum\n  what it does: the client whose\n" in done.stdout


def test_no_standard_input_output_or_error() -> None:
    for closed in ("<&-", ">&-", "2>&-"):
        command = f"{sys.executable} -m honestly rules {closed}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, (closed, done.stderr)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_can_go_on(tmp_path: Path) -> None:
    words = ["simulate", "rounds=500", "clients=4", "model=mlp", "rule=mean", "--json", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "honestly", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_complete(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What it does, every option with a sentence, and no line too wide for a terminal of 120 columns."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    (top,) = subcommands(parser())
    for action in top.choices[name]._actions:
        assert action.help or isinstance(action.choices, dict), (
            f"{name}: {action.option_strings or action.dest} has no help"
        )
    assert top.choices[name].description
