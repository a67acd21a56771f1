"""Completion: the words that may follow, and the scripts in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from honestly.cli import COMMANDS, main, parser
from honestly.cli.candidates import candidates
from honestly.rules import MIXERS, RULES
from honestly.sim.attacks import ATTACKS


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("si", ["simulate"]),
        ("simulate rule=bay", ["rule=bayesian"]),
        ("simulate attack=sign", ["attack=sign_flip"]),
        ("simulate pre=nn", ["pre=nnm"]),
        ("simulate data", ["dataset="]),
        ("simulate dataset=", [f"dataset={name}" for name in ("digits", "mnist", "fmnist", "cifar10")]),
        ("simulate dynamic=", ["dynamic=true", "dynamic=false"]),
        ("simulate rule=trimmed_mean rule.", ["rule.trim=", "rule.f="]),
        ("simulate attack=sign_flip attack.g", ["attack.gamma="]),
        ("simulate paper/fig", ["paper/figure1.toml"]),
        ("simulate --out somewhere rou", ["rounds="]),
        ("simulate rounds=3 rou", []),
        ("simulate --out ", []),
        ("simulate --rec", ["--record"]),
        ("stress --rules bayesian nn", ["nnm"]),
        ("stress --rules nnm+med", ["nnm+median"]),
        ("stress --rules bayesian,fox,kr", ["bayesian,fox,krum"]),
        ("stress --attacks alie:", ["alie:z="]),
        ("stress --populations low", ["low_rank"]),
        ("aggregate --rule krum:", ["krum:f="]),
        ("aggregate --rule nnm:f=4+multi_krum:f=2,", ["nnm:f=4+multi_krum:f=2,keep="]),
        ("aggregate --rule krum:f=2", []),
        ("stress --rules median,multi_krum:f=2,k", ["median,multi_krum:f=2,keep=", "median,multi_krum:f=2,krum"]),
        ("stress --attacks rop:z=1:a", ["rop:z=1:angle="]),
        ("simulate rule=nnm:f=4+multi_krum:k", ["rule=nnm:f=4+multi_krum:keep="]),
        ("simulate rule=multi_krum:f=2 rule.k", ["rule.keep="]),
        ("simulate model=cnn", ["model=cnn", "model=cnn_norm"]),
        ("aggregate --pre ", ["nnm", "bucketing", "arc", "static_clipping"]),
        ("aggregate --lora s", ["svd"]),
        ("aggregate a.npz ", []),
        ("export sc", ["scaleout"]),
        ("export scaleout --rule multi", ["multi_krum"]),
        ("datasets c", ["cifar10"]),
        ("bench qui", ["quick"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("completion --w", []),
    ],
)
def test_the_words_that_may_follow(line: str, expected: list[str]) -> None:
    assert candidates(parser(), line.split(" ")) == expected


def test_every_command_rule_attack_and_option_is_offered() -> None:
    assert candidates(parser(), [""]) == list(COMMANDS)
    assert candidates(parser(), ["aggregate", "--rule", ""]) == [step.name for step in (*RULES, *MIXERS)]
    assert candidates(parser(), ["simulate", "attack="]) == [f"attack={name}" for name in ATTACKS]
    assert {"--rules", "--attacks", "--out", "--help"} <= set(candidates(parser(), ["stress", "--"]))


def test_without_a_shell_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "bash | zsh | fish" in capsys.readouterr().err


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with this package's command in front."""
    command = tmp_path / "bin" / "honestly"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m honestly "$@"\n')
    command.chmod(0o755)
    (tmp_path / "client-0.npz").touch()
    return f"{command.parent}:/usr/local/bin:/usr/bin:/bin"


STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SETUPS = {
    "bash": "bind 'set enable-bracketed-paste off'; source <(honestly completion bash)",
    "zsh": "unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; source <(honestly completion zsh)",
    "fish": "honestly completion fish | source",
}


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("shell", [shell for shell in STARTS if shutil.which(shell)])
def test_in_the_shell_itself(shell: str, path: str, tmp_path: Path) -> None:
    """Type letters and a tab; the shell then runs `echo` on the completed words."""
    typed = {
        "honestly simu": "simulate",
        "honestly simulate rule=baye": "rule=bayesian",
        "honestly export scaleout --rule multi": "multi_krum",
        "honestly datasets cif": "cifar10",
        "honestly stress --rules krum --att": "--attacks",
        "honestly aggregate clie": "client-0.npz",
    }
    if shell == "fish":  # fish answers without a terminal
        script = SETUPS[shell] + "".join(f"; complete -C '{line}'" for line in typed)
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True,
            env={"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )  # fmt: skip
        offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
        assert offered == list(typed.values()), done.stdout + done.stderr
        return
    with Terminal(STARTS[shell], tmp_path, path) as terminal:
        terminal.run(SETUPS[shell])
        for line, expected in typed.items():
            terminal.write(line + "\t")
            terminal.wait_for(expected[-3:])
            # Ctrl-A, the beginning of the line: what was completed is printed instead of run
            terminal.run("\x01echo \x05")
            assert f"{line.rpartition(' ')[0]} {expected}" in terminal.printed, (line, terminal.printed)


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], folder: Path, path: str) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:  # the child
            os.chdir(folder)
            python = os.environ.get("PYTHONPATH", "")
            environment = {"PATH": path, "HOME": str(folder), "TERM": "dumb", "PS1": "$ ", "PYTHONPATH": python}
            os.execvpe(command[0], command, environment)
        self.pid, self.printed, self.count = pid, "", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Read until the text is there."""
        self.printed = ""
        end = time.monotonic() + seconds
        while text not in self.printed:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.printed!r}"
            self.printed += os.read(self.fd, 4096).decode(errors="replace")

    def run(self, line: str) -> None:
        """End the line and read what it prints, up to a mark that only the shell's arithmetic can print."""
        self.count += 1
        self.write(f"{line}\necho done-$((1000+{self.count}))\n")
        self.wait_for(f"done-{1000 + self.count}")
