"""The metadata of the package is consistent: one version, tested Pythons, files that a release needs."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from honestly import __version__

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_version_is_written_once() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", __version__)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == __version__


def test_the_changelog_has_this_version() -> None:
    sections = re.findall(r"^## (.*)$", CHANGELOG, re.M)
    assert sections[0] == "Unreleased"
    versions = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", section) for section in sections[1:]]
    assert all(versions), sections
    assert versions[0][1] == __version__
    assert [v[2] for v in versions] == sorted((v[2] for v in versions), reverse=True)


def test_the_declared_pythons_are_the_tested_ones() -> None:
    declared = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    tested = runpy.run_path(str(ROOT / "tests" / "release" / "pythons.py"))["VERSIONS"]
    assert declared == list(tested)
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_every_extra_is_installed_where_the_tests_run() -> None:
    """An extra that the tests do not have is an extra that is not tested."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.search(r"^EXTRAS := (.*)$", makefile, re.M)[1].split(",")
    made += re.search(r"\[\$\(EXTRAS\),(.*?)\]", makefile)[1].split(",")  # what `make test-all` adds
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]

    def flat(extra: str) -> set[str]:
        inner = [re.fullmatch(r"honestly\[(.*)\]", line) for line in extras[extra]]
        return {extra}.union(*(flat(name) for match in inner if match for name in match[1].split(",")))

    assert set().union(*map(flat, made)) >= set(extras)


def test_every_extra_that_a_message_or_page_names_exists() -> None:
    pages = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for named in re.findall(r"honestly\[([\w, ]+)\]", page.read_text(encoding="utf-8")):
            missing = {name.strip() for name in named.split(",")} - set(PROJECT["optional-dependencies"])
            assert not missing, f"{page}: {missing}"


@pytest.mark.parametrize("name", ["LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CITATION.cff"])
def test_files_that_a_release_needs_exist(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8")) > 300


def test_links_of_these_pages_are_not_dead() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!http|mailto)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_contributing_lists_the_layers_that_are_checked() -> None:
    layers = SETTINGS["tool"]["importlinter"]["contracts"][0]["layers"]
    told = " > ".join(layer.replace("honestly.", "") for layer in layers)
    assert told in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page, re.M)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == re.findall(r"\w+", told)


def test_the_design_page_names_existing_modules() -> None:
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    for path in re.findall(r"`([a-z_/]+/[a-z_]*(?:\.py)?)`", page):
        assert any((ROOT / top / path).exists() for top in ("", "src/honestly")), path
    for name in re.findall(r"`(\w+Rule)`", page):
        assert any(
            f"class {name}" in file.read_text(encoding="utf-8")
            for file in (ROOT / "src").glob("honestly/rules/**/*.py")
        ), name


def test_no_file_names_a_machine() -> None:
    """Nothing of the package may depend on where it was written."""
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.toml"), ROOT / "Makefile"]
    for path in [*paths, *(ROOT / ".ci").glob("*")]:  # the last is not in the sdist
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(work|root|home/\w+|opt/wheels)/", text), path
