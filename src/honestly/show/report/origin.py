"""Where a number comes from: by which reading of the paper it was run, and by which commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from honestly.show.report.sources import ReportedRun

#: Where the paper's text and the authors' code differ, a run follows one of them.
READINGS = {"code": "the authors' code", "text": "the paper's text"}
SIGNS = {"code": "ᶜ", "text": "ᵗ"}
#: The authors' code pads CIFAR-10 by this many pixels and crops it at random.
CROP = 4


def settings_of(entry: ReportedRun) -> Mapping[str, Any]:
    """The settings of a run's experiment; {} if they are not known."""
    return json.loads(entry.details.get("experiment") or "{}")


def reading_of(entry: ReportedRun) -> str:
    """By which reading of the paper a run was made: "code" or "text".

    The text pads images of 28 x 28 and mirrors CIFAR-10; the code resizes the first, and crops the second as well.
    """
    settings = settings_of(entry)
    if settings.get("dataset") == "cifar10":
        return "code" if settings.get("crop") == CROP else "text"
    return "code" if settings.get("fit") == "resize" else "text"


def commits_of(entries: Sequence[ReportedRun]) -> str:
    """The commits by which runs were made, shortened; a plus sign says that files had been changed since."""
    commits: set[str] = set()
    for entry in entries:
        commit = str(json.loads(entry.details.get("provenance") or "{}").get("commit") or "")
        if commit:
            commits.add(commit[:7] + ("+" if commit.endswith("+") else ""))
    return " ".join(sorted(commits))
