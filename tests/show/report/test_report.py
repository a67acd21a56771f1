"""Whole reports: of the paper's tables, of any study, of one that is not finished, empty or hostile."""

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_studies import fill, finish, record

from honestly.runs.store import PlannedRun, Store
from honestly.show.html import script
from honestly.show.report.sources import load, merge
from honestly.show.report.write import ReportOptions, write

HOSTILE = "</title><script>alert(1)</script>|`x` $y$ \\input{/etc/passwd} ![p](http://evil/p.png) \x1b[2J\u202e%_&#~^{}"
VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Checks that tags close, and collects them with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [v for k, v in attrs if k == "id" and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked_page(path: Path) -> Page:
    """A page that asks for nothing outside, runs nothing but our script, and whose links lead somewhere."""
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == text.count(f'<script type="module">{script()}</script>')
    page = Page(text)
    for tag, attrs in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "srcset", "action")]
        if "href" in attrs:
            where = attrs["href"] or ""
            assert tag == "a"
            if "download" in attrs and where.startswith("data:"):
                assert re.fullmatch(r"data:[a-z]+/[a-z+]+;base64,[A-Za-z0-9+/=]+", where)
                continue
            assert where[1:] in page.ids if where.startswith("#") else (path.parent / where).is_file(), where
        if "class" in attrs and attrs["class"] == "scroll":
            assert attrs["tabindex"] == "0"  # a keyboard can scroll what a phone cannot show at once
            assert attrs["aria-label"]
    style = re.search(r"<style>(.*?)</style>", path.read_text(encoding="utf-8"), re.S)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    return page


def checked_latex(path: Path) -> None:
    """Environments and braces close, and every row has as many cells as its table has columns."""
    text = re.sub(r"(?m)^%.*$", "", path.read_text(encoding="utf-8"))
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert text.isascii()
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert "#" not in bare
    assert "_" not in re.sub(r"\\label\{[^}]*\}", "", bare)
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    stack: list[str] = []
    for what, name in opened:
        if what == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S):
        for line in body.splitlines():
            if line.rstrip().endswith(r"\\"):
                plain = re.sub(r"\\[&]", "", line)
                spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", plain)]
                assert plain.count("&") + 1 + sum(spans) == len(columns), line
    if shutil.which("pdflatex") and shutil.which("kpsewhich"):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "tables-document.tex"]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout[-2000:]


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's three studies: tables of one data set, half an ablation and Figure 1."""
    folder = tmp_path_factory.mktemp("paper")
    for study, skip in (
        ("paper-tables", lambda e: e.cell["dataset"] != "fmnist"),
        ("paper-ablation", lambda e: e.cell["dataset"] != "fmnist" or e.cell["attack"] in ("random", "label_flip")),
        ("paper-figure1", lambda e: False),
    ):
        fill(folder / study, study, rounds=2, skip=skip, level=True).close()
    studies = merge([load(folder / name) for name in ("paper-tables", "paper-ablation", "paper-figure1")])
    write(studies, folder / "out", ReportOptions(command="honestly report x --out y"))
    return folder / "out"


def test_the_papers_report_is_whole(paper: Path) -> None:
    text = (paper / "README.md").read_text(encoding="utf-8")
    assert "by the last round: 180 reproduced (within 0.02), 0 better, 0 worse, 360 not run." in text
    assert "by the mean of the last 20 rounds: 180 reproduced" in text
    assert "120 of 1 seed, 60 of 3 seeds" in text
    assert "honestly report x --out y" in text
    page = checked_page(paper / "index.html")
    tables = [attrs for tag, attrs in page.tags if tag == "table" and attrs.get("class") == "list paper"]
    assert len(tables) == 12
    pages = sorted((paper / "runs").iterdir())
    # 24 settings: Krum and Ours with three seeds, five rules with one; the ablation: seven rules, 5 + 4 shares
    # of two attacks; what both have, seven rules at 40 % and those that are not told f at 20 %, is one run and one page
    assert len(pages) == 24 * (3 + 3 + 5) + 7 * 9 - 2 * (7 + 5)
    for one in pages[:: len(pages) // 5]:
        checked_page(one)
    checked_latex(paper / "tables.tex")
    assert len((paper / "cells.csv").read_text().splitlines()) == 1 + 2 * (540 + 90)


def test_each_of_several_studies_has_its_verdict_under_its_name(paper: Path) -> None:
    text = (paper / "index.html").read_text(encoding="utf-8")
    before, *chapters = re.split(r'<h2 class="chapter"', text)
    assert len(chapters) == 3
    assert 'class="verdict"' not in before
    assert [chapter.count('class="verdict"') for chapter in chapters] == [1, 1, 1]


def test_every_picture_of_the_readme_is_there_as_png_and_svg(paper: Path) -> None:
    named = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (paper / "README.md").read_text(encoding="utf-8"))
    assert (
        len(named) == len(set(named)) == 3 + 3 + 1
    )  # three runs of Figure 1, detection of three studies, the ablation
    for name in named:
        assert (paper / name).read_bytes().startswith(b"\x89PNG")
        assert (paper / name).with_suffix(".svg").read_text(encoding="utf-8").startswith("<?xml")
    assert {Path(name).stem for name in named} == {p.stem for p in (paper / "figures").iterdir()}


def test_an_unfinished_study_says_what_is_missing(tmp_path: Path) -> None:
    store = fill(tmp_path, "quick", rounds=2, skip=lambda e: e.cell["seed"] > 0 or e.cell["rule"] == "Krum")
    waiting = [run.id for run in store.runs() if run.status == "pending"]
    of = store.run(waiting[0]).of
    for _ in range(2):
        store.claim("w")
    store.write_round(waiting[0], record(1, K=10, M=4))
    store.fail(waiting[2], f"no data: {HOSTILE}")
    store.close()
    studies = [load(tmp_path)]
    write(studies, tmp_path / "out", ReportOptions(figures=False))
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "20 of 72 runs are finished: 49 not started, 2 still running, 1 failed" in text
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert f"running (1 of {of})" in page
    assert "no data: &lt;/title&gt;" in page
    checked_page(tmp_path / "out" / "index.html")
    assert not (tmp_path / "out" / "figures").exists()
    assert "figures/" not in text


def test_a_study_without_runs_is_reported_as_such(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    write([load(tmp_path)], tmp_path / "out")
    assert "there are no runs yet" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    checked_page(tmp_path / "out" / "index.html")
    assert not (tmp_path / "out" / "tables.tex").exists()


def test_a_study_with_nothing_finished_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, "paper-tables", skip=lambda e: True).close()
    write([load(tmp_path)], tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "0 of 798 runs are finished: 798 not started" in text
    assert "0 reproduced (within 0.02), 0 better, 0 worse, 540 not run" in text
    checked_page(tmp_path / "out" / "index.html")
    checked_latex(tmp_path / "out" / "tables.tex")


@pytest.mark.parametrize("runs", [3, 9])
def test_hostile_names_stay_text_everywhere(tmp_path: Path, runs: int) -> None:
    store = Store.open(tmp_path / "study")
    experiment = json.dumps({"rule": {"name": HOSTILE}, "attack": {"name": HOSTILE}, "clients": 4, "malicious": 1,
                             "dynamic": False, "note": HOSTILE})  # fmt: skip
    entries = [
        PlannedRun(f"../{HOSTILE}{i}", {"rule": f"{HOSTILE}{i % 3}", HOSTILE: i // 3, "attack": HOSTILE}, experiment, 2)
        for i in range(runs)
    ]
    store.add(entries)
    store.set_meta(name=HOSTILE)
    for entry in entries:
        rows = [record(t, K=4, M=1) | {"status": f"refused: {HOSTILE}"} for t in (1, 2)]
        store.write_rounds(entry.id, rows, [{}, {}])
        store.finish(entry.id, {}, {"device": HOSTILE})
    store.close()
    out = tmp_path / "out"
    files = write([load(tmp_path / "study")], out, ReportOptions(command=f"honestly report '{HOSTILE}'"))
    assert all(file.resolve().is_relative_to(out.resolve()) for file in files)
    pages = [out / "index.html", *out.glob("runs/*.html")]
    assert len(pages) == (1 if runs == 3 else 10)
    for page in pages:
        checked_page(page)
        saved = re.findall(r'download="[^"]*[.](\w+)"', page.read_text(encoding="utf-8"))
        by_the_browser = ["png"] if script() in page.read_text(encoding="utf-8") else []
        assert sorted([*saved, *by_the_browser]) == ["csv", "json", "png", "svg"]
        assert "\x1b" not in page.read_text(encoding="utf-8")
    text = (out / "README.md").read_text(encoding="utf-8")
    outside = text.split("```")[0] + text.split("```")[2]
    assert "<script" not in outside
    assert "![p](" not in outside
    assert "\x1b" not in text
    checked_latex(out / "tables.tex")
    assert r"\input{/etc" not in (out / "tables.tex").read_text(encoding="utf-8")
    assert {p.name for p in tmp_path.iterdir()} == {"study", "out"}


def test_the_same_study_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    fill(tmp_path / "s", "paper-figure1", rounds=2, skip=lambda e: e.cell["rule"] != "Ours").close()
    written: list[dict[str, bytes]] = []
    for name in "ab":
        write([load(tmp_path / "s")], tmp_path / name)
        files = (p for p in (tmp_path / name).rglob("*") if p.is_file())
        written.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
    assert written[0] == written[1]


def test_two_stores_of_one_study_become_one(tmp_path: Path) -> None:
    half: Any = {"a": lambda e: e.cell["attack"] == "backdoor", "b": lambda e: e.cell["attack"] != "backdoor"}
    for name, skip in half.items():
        fill(tmp_path / name, "quick", rounds=1, skip=skip).close()
    (study,) = merge([load(tmp_path / name) for name in half])
    assert study.count("done") == 72
    assert [e.cell for e in study.entries] == [e.cell for e in load(tmp_path / "a").entries]


def test_a_run_that_is_finished_later_counts_once(tmp_path: Path) -> None:
    store = fill(tmp_path, "paper-figure1", rounds=2, skip=lambda e: e.cell["rule"] == "Ours")
    assert load(tmp_path).count("pending") == 1
    finish(store, next(r for r in store.runs() if r.status == "pending"), 2)
    store.close()
    assert load(tmp_path).count("done") == 3


@pytest.mark.slow
def test_eight_hundred_runs_of_a_hundred_rounds_take_seconds(tmp_path: Path) -> None:
    fill(tmp_path / "s", "paper-tables", rounds=100).close()
    begun = time.process_time()
    write([load(tmp_path / "s")], tmp_path / "out")
    assert time.process_time() - begun < 60  # 12 s on one core of the machine it was written on
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 798


def _run_folder(folder: Path, accuracy: float, **settings: Any) -> None:
    """The folder of a run of one round."""
    experiment = {"rule": {"name": "krum", "f": 1}, "attack": {"name": "none"}, "pre": [], "rounds": 1, **settings}
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(json.dumps({"id": folder.name, "experiment": experiment}))
    (folder / "rounds.jsonl").write_text(json.dumps(record(1, K=4, M=1) | {"accuracy": accuracy}) + "\n")


def _rows(folder: Path) -> list[str]:
    write([load(folder)], folder / "report", ReportOptions(figures=False))
    return [line for line in (folder / "report" / "README.md").read_text(encoding="utf-8").split("\n") if "0." in line]


def test_runs_with_other_settings_of_one_rule_are_not_averaged(tmp_path: Path) -> None:
    _run_folder(tmp_path / "a", 0.25)
    _run_folder(tmp_path / "b", 0.75, rule={"name": "krum", "f": 2})
    _run_folder(tmp_path / "c", 0.5, pre=[{"name": "nnm", "f": 1}])
    rows = _rows(tmp_path)
    assert "| krum:f=1 | 0.250 |" in rows
    assert "| krum:f=2 | **0.750** |" in rows
    assert "| nnm+krum | 0.500 |" in rows


def test_settings_that_are_no_settings_do_not_stop_the_report_of_other_runs(tmp_path: Path) -> None:
    _run_folder(tmp_path / "a", 0.25)
    for i, wrong in enumerate(([], {"a": 1}, "many", 10**400, float("nan"), "\ud800")):
        _run_folder(tmp_path / f"b{i}", 0.75, **dict.fromkeys(("alpha", "malicious", "rounds", "pre"), wrong))
    assert any(row.startswith("| krum | ") for row in _rows(tmp_path))
