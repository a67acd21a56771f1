"""Every command ends with the right status and one sentence, never a traceback, on any terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from honestly._version import __version__
from honestly.cli import COMMANDS, main, parser
from honestly.cli.argparse_private import actions, parsers, subcommands
from honestly.cli.failures import ending
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
        (["simulate", "rule=bayesain"], 2, "did you mean bayesian?"),
        (
            ["simulate", "rule=krum"],
            2,
            "needs f, the number of attackers to withstand (Python: hn.Krum(f=2); command line: krum:f=2)",
        ),
        (["stress", "--rules", "bayesain"], 2, "did you mean bayesian"),
        (["datasets", "cifar"], 2, "did you mean cifar10?"),
        (["export", "scaleout", "-o", "/no/such/folder/x.py"], 1, "/no/such/folder/x.py: No such file or directory"),
        (["aggregate", "a", "b", "c", "-o", "x.txt"], 2, "results are written as .safetensors, .npz or a folder"),
        (["aggregate", "a", "b", "c", "-o", "x.html"], 2, "results are written as .safetensors, .npz or a folder"),
        (["aggregate", "a", "b", "c", "-o", "x.npz", "--sizes", "/dev/null/x"], 1, "/dev/null/x: Not a directory"),
        (["aggregate", "a", "b", "c", "-o", "x.npz", "--sizes", "broken"], 2, "is not valid JSON"),
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


def code(text: str, module: str = "honestly.somewhere", **names: Any) -> Callable[[object], int]:
    """A command as it would be written in that module; its body is this text."""
    names["__name__"] = module
    body = "\n    ".join(text.splitlines())
    exec(compile(f"def run(_):\n    {body}", f"{module}.py", "exec"), names)
    return names["run"]


def end(run: Callable[[object], int], *words: str) -> int:
    chosen = parser().parse_args(["rules", *words])
    chosen.run = run
    return ending(chosen)


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
    assert end(code("raise error", error=error)) == status
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import numpy\nreturn numpy.ones(2) + numpy.ones(3)", "ValueError: operands could not be broadcast"),
        ("return int('three')", "ValueError: invalid literal"),
        ("first, second = 1, 2, 3", "ValueError: too many values to unpack"),
        ("return {}['key']", "KeyError: 'key'"),
        ("raise RuntimeError('a bug')", "RuntimeError: a bug"),
        ("import honestly.nothing", "ModuleNotFoundError: No module named 'honestly.nothing'"),
        ("try:\n    int('x')\nexcept ValueError:\n    raise", "ValueError: invalid literal"),
    ],
)
def test_a_bug_keeps_its_traceback_and_says_how_to_report_it(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(code(text)) == 1
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert 'File "honestly.somewhere.py"' in told
    assert f"honestly rules: this is a bug in honestly {__version__}: {message}" in told
    assert "report it under Issues" in told
    assert "`honestly doctor`" in told


def test_the_traceback_of_a_mistake_is_shown_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = code("raise ValueError('clients = 0')")
    monkeypatch.delenv("HONESTLY_DEBUG", raising=False)
    assert end(mistake) == 2
    assert capsys.readouterr().err == "honestly rules: clients = 0\n"
    assert end(mistake, "--debug") == 2
    assert capsys.readouterr().err.startswith("Traceback")
    monkeypatch.setenv("HONESTLY_DEBUG", "1")
    assert end(mistake) == 2
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("honestly rules: clients = 0\n")
    monkeypatch.setenv("HONESTLY_DEBUG", "0")
    assert end(mistake) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--debug", "simulate"], ["simulate", "--debug"]])
def test_debug_may_stand_before_the_command_and_after_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "rule=krum"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "needs f" in told.splitlines()[-1]


def test_code_of_the_users_own_is_not_called_our_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from dataclasses import dataclass\n"
        "from honestly.rules.rule import Rule\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Broken(Rule):\n"
        "    name = 'broken'\n"
        "    def mix(self, geometry):\n"
        "        return [1, 2][geometry.K]\n"
    )
    words = ["simulate", f"rule={own}:Broken", "clients=3", "rounds=1", "model=mlp", "epochs=1", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert "your code failed, mine.py, line 7: IndexError: list index out of range" in told
    assert "bug in honestly" not in told


def test_an_error_from_a_worker_process_is_judged_as_if_it_were_here(capsys: pytest.CaptureFixture[str]) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from honestly.rules import make

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        mistake = pool.submit(make, "krumm").exception()
        fault = pool.submit(int, "three").exception()
    assert end(code("raise error", error=mistake)) == 2
    assert "unknown rule 'krumm'" in capsys.readouterr().err
    assert end(code("raise error", error=fault)) == 1
    assert "this is a bug" in capsys.readouterr().err


def loaded(*words: str) -> set[str]:
    """The modules that the command has loaded when it ends."""
    script = (
        f"import sys\ntry:\n    from honestly.cli import main\n    main({list(words)})\nexcept SystemExit:\n    pass\n"
    )
    script += "print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.splitlines())


HEAVY = (
    "rich",
    "torch",
    "pydantic",
    "matplotlib",
    "honestly.sim",
    "honestly.studies",
    "honestly.show",
    "honestly.runs",
)


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["--version"], set()),
        (["--help"], set(COMMANDS)),
        (["simulate", "--help"], {"simulate"}),
        (["rules", "--json"], {"rules"}),
        (["completion", "bash"], {"completion"}),
    ],
)
def test_a_command_is_loaded_when_it_is_asked_for(words: list[str], commands: set[str]) -> None:
    found = loaded(*words)
    assert {name for name in COMMANDS if f"honestly.cli.{name}" in found} == commands
    assert not [name for name in HEAVY if name in found]


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
    assert "run the same command to resume" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_complete(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help says what the command does, describes every option, and fits in 120 columns."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "%%" not in text
    assert max(map(len, text.splitlines())) <= 120
    (top,) = subcommands(parser())
    for action in actions(parsers(top)[name]):
        assert action.help or isinstance(action.choices, dict), (
            f"{name}: {action.option_strings or action.dest} has no help"
        )
    assert parsers(top)[name].description


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [["rules"], ["export", "scaleout", "-o", "functions.py"]])
def test_a_full_standard_output_is_named(words: list[str], tmp_path: Path) -> None:
    """Not the file that was to be written, which is fine."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "honestly", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False, cwd=tmp_path,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == f"honestly {words[0]}: standard output: No space left on device\n"


def test_an_error_writes_nothing_to_the_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = ["simulate", "model=mlp", "clients=3", "rounds=1", "--json", "--out", str(tmp_path / "file" / "run")]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "is a file: choose another folder with --out" in err


def test_an_interrupt_while_the_command_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("honestly.cli.parser", interrupt)
    assert main(["rules"]) == 130
    assert capsys.readouterr().err == "honestly: interrupted\n"
