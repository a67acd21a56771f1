"""Where a number comes from: by which reading of the paper it was run, and by which commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from honestly.show.report.sources import ReportedRun

#: Where the paper's text and the authors' code differ, a run follows one of them, or the code in all but the weights.
READINGS = {
    "code": "the authors' code",
    "equal": "the authors' code with equal weights",
    "text": "the paper's text",
}
SIGNS = {"code": "ᶜ", "equal": "ᵉ", "text": "ᵗ"}
#: The authors' code pads CIFAR-10 by this many pixels and crops it at random.
CROP = 4
#: In the code clients weigh as many images as they trained on, which matters to these rules, and under the backdoor.
WEIGHTED = ("mean", "geometric_median")


def settings_of(entry: ReportedRun) -> Mapping[str, Any]:
    """The settings of a run's experiment; {} if they are not known."""
    return json.loads(entry.details.get("experiment") or "{}")


def reading_of(entry: ReportedRun) -> str:
    """By which reading of the paper a run was made: "code", "equal" or "text".

    The text pads images of 28 x 28 and mirrors CIFAR-10; the code resizes the first, and crops the second as well. In
    the code attackers of the backdoor weigh less than honest clients; if all weigh the same, the reading is "equal".
    """
    settings = settings_of(entry)
    by_code = settings.get("crop") == CROP if settings.get("dataset") == "cifar10" else settings.get("fit") == "resize"
    if not by_code:
        return "text"
    weighted = _name(settings.get("attack")) == "backdoor" and _name(settings.get("rule")) in WEIGHTED
    return "equal" if weighted and settings.get("sizes") != "images" else "code"


def _name(choice: Any) -> Any:
    """The name of a rule or attack among an experiment's settings."""
    return choice.get("name") if isinstance(choice, Mapping) else choice  # pyright: ignore[reportUnknownMemberType]


def commits_of(entries: Sequence[ReportedRun]) -> str:
    """The commits by which runs were made, shortened; a plus sign says that files had been changed since."""
    commits: set[str] = set()
    for entry in entries:
        commit = str(json.loads(entry.details.get("provenance") or "{}").get("commit") or "")
        if commit:
            commits.add(commit[:7] + ("+" if commit.endswith("+") else ""))
    return " ".join(sorted(commits))
