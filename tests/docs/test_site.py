"""The site builds in strict mode, is complete, and uses only this repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches when it shows a page; a link that a reader may follow (<a href>) is not fetched.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.ids.update(str(values[key]) for key in ("id", "name") if values.get(key))
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag in FETCHED and values.get(FETCHED[tag]) and "canonical" not in (values.get("rel") or ""):
            self.fetched.append(str(values[FETCHED[tag]]))


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, _Page(path)


@pytest.mark.timeout(400)
def test_the_site_builds_strictly_and_is_self_contained(tmp_path: Path) -> None:
    """One test, because the site is built once."""
    site = tmp_path / "site"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "docs" / "build.py"), "--out", str(site)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    nothing_is_fetched_from_outside_and_nothing_is_missing(site)
    links_lead_somewhere(site)
    styles_fetch_nothing_from_outside(site)
    mathematics_needs_no_script(site)
    lists_and_tables_are_such(site)
    no_link_is_empty(site)
    the_reference_has_every_rule_command_and_key(site)


def nothing_is_fetched_from_outside_and_nothing_is_missing(site: Path) -> None:
    seen = 0
    for path, page in _pages(site):
        assert "default-src 'self'" in path.read_text(encoding="utf-8").partition("<script")[0], path.name
        for address in page.fetched:
            assert not re.match(r"(https?:)?//", address), f"{path.name} fetches {address}"
            if path.name != "404.html" and not address.startswith("data:"):
                assert (path.parent / address.partition("#")[0].partition("?")[0]).is_file(), f"{path.name}: {address}"
                seen += 1
    assert seen > 100


def links_lead_somewhere(site: Path) -> None:
    pages = {path.resolve(): page for path, page in _pages(site) if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), f"{path.name} links to {link}"
            if anchor and target in pages:
                assert anchor in pages[target].ids, f"{path.name} links to {link}, which has no such heading"


def styles_fetch_nothing_from_outside(site: Path) -> None:
    styles = list(site.rglob("*.css"))
    assert styles
    for path in styles:
        assert not re.search(r"(@import\s+|url\(\s*)[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path.name


def lists_and_tables_are_such(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "\\|" not in text, f"{path.name}: code in a table keeps the backslash of an escaped bar"
        paragraphs = re.findall(r"<p>(.*?)</p>", text, flags=re.S)
        lost = [text for text in paragraphs if re.search(r"\n(- |\d+\. |\|)", text)]
        assert not lost, f"{path.name}: {lost[0][:200]}"


def no_link_is_empty(site: Path) -> None:
    """An anchor for each line of code was one: the tab key stopped at every line."""
    for path in site.rglob("*.html"):
        empty = re.search(r"<a\b[^>]*\bhref=[^>]*></a>", path.read_text(encoding="utf-8"))
        assert not empty, f"{path.name}: {empty[0]}"


def mathematics_needs_no_script(site: Path) -> None:
    page = _Page(site / "explanation" / "bayesian.html")
    assert page.tags.count("math") > 20
    text = re.sub(r"<(pre|code).*?</\1>", "", (site / "explanation" / "bayesian.html").read_text(), flags=re.S)
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"([\w/-]+\.md)\s*$", nav, flags=re.M))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert listed == written


def the_reference_has_every_rule_command_and_key(site: Path) -> None:
    from honestly.cli import COMMANDS
    from honestly.rules import MIXERS, RULES
    from honestly.sim.attacks import ATTACKS
    from honestly.sim.experiment import Experiment

    def text(name: str) -> str:
        return (site / "reference" / name).read_text(encoding="utf-8")

    assert all(f'id="hn{rule.__name__.lower()}"' in text("api-rules.html") for rule in (*RULES, *MIXERS))
    assert all(f'id="honestly-{command}"' in text("cli.html") for command in COMMANDS)
    assert all(f"<code>{name}</code>" in text("attacks.html") for name in ATTACKS)
    for key, field in Experiment.model_fields.items():
        assert field.description, f"the key {key} of an experiment needs a docstring"
        assert f"<code>{key}</code>" in text("configuration.html")
