"""Downloads: files that are embedded in the page, so links need no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from honestly.runs.text import csv_cell, csv_text, json_value

KINDS = {"csv": "text/csv", "json": "application/json", "png": "image/png", "svg": "image/svg+xml"}
#: Larger files are not embedded in a page.
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Download:
    """A file to save; `href` is the file itself, or an address below the page's folder."""

    name: str
    href: Markup


def inside(name: str, content: str | bytes) -> list[Download]:
    """A file embedded in the page; none if it is too large."""
    raw = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    if not raw or len(raw) > MOST_BYTES:
        return []
    kind = KINDS[name.rpartition(".")[2]]
    return [Download(name, Markup(f"data:{kind};base64,{base64.b64encode(raw).decode()}"))]


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under their names, all of it safe for a spreadsheet."""
    return csv_text([csv_cell(column) for column in columns], (map(csv_cell, row) for row in rows))


def as_json(value: Any) -> str:
    """Strict JSON: NaN becomes null."""
    return json.dumps(json_value(value), allow_nan=False, default=str, separators=(",", ":"))
