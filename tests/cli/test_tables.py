"""Tables on a pipe, on a terminal, in a narrow window, with rich and without."""

from __future__ import annotations

import sys

import pytest

from honestly.show import terminal as tables
from honestly.show.terminal import TerminalTable

SMALL = TerminalTable(["name", "n", "what"], [["krum", "1", "one\x1b"], ["mean", "10", ""]], right=["n"])
WIDE = TerminalTable(["name", "what"], [["krum", "word " * 40], ["mean", ""]])


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(tables, "_can_draw", lambda: request.param)
    return request.param


def test_a_pipe_gets_one_line_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    WIDE.show()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "krum", "mean"]
    assert lines[1].count("word") == 40


def test_numbers_stand_right(rich: bool, capsys: pytest.CaptureFixture[str]) -> None:
    SMALL.show(width=60)
    lines = capsys.readouterr().out.splitlines()
    one, ten = (next(line for line in lines if line.split()[:1] == [name]) for name in ("krum", "mean"))
    assert one.index("1") == ten.index("10") + 1


@pytest.mark.parametrize("width", [30, 60, 100, 140])
def test_nothing_is_wider_than_the_window_and_nothing_is_lost(
    rich: bool, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    WIDE.show(width=width)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert text.count("word") == 40
    assert "krum" in text
    assert "mean" in text


def test_rich_is_asked_for_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tables._can_draw()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert tables._can_draw()
