"""Progress: on a terminal and only there, and text is never taken for markup."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from honestly.bars import Bars


def work(bars: Bars) -> None:
    with bars:
        bar = bars.add("reading [red]x[/red]", 10)
        bars.update(bar, advance=4, news="[bold]accuracy[/bold]")
        bars.say("[link=file:///]a line[/link]")
        bars.update(bar, done=10, total=10)
        bars.remove(bars.add("another"))


def test_titles_and_news_are_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    work(Bars(left=True))
    shown = capsys.readouterr().out
    assert "reading [red]x[/red]" in shown
    assert "[bold]accuracy[/bold]" in shown
    assert "[link=file:///]a line[/link]" in shown
    assert "10/10" in shown


def test_stderr_is_used_only_if_it_is_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work(Bars(stderr=True))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(Bars(stderr=True, unit="bytes"))
    out, err = capsys.readouterr()
    assert out == ""
    assert "10/10 bytes" in err


def test_silence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work(Bars(silent=True))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "rich" else find(name, *a))
    work(Bars())
    assert capsys.readouterr() == ("", "")
