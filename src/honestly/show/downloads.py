"""What a page offers to save: files inside the page itself, as links that need no network."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from honestly.show.text import printable

KINDS = {"csv": "text/csv", "json": "application/json", "png": "image/png", "svg": "image/svg+xml"}
#: More than this is not put into a page: the files that it was made from have it.
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Download:
    """A file to save; `href` is the file itself, or an address below the page's folder."""

    name: str
    href: Markup


def inside(name: str, content: str | bytes) -> list[Download]:
    """A file that the page holds; none if it is too large for that."""
    raw = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    if not raw or len(raw) > MOST_BYTES:
        return []
    kind = KINDS[name.rpartition(".")[2]]
    return [Download(name, Markup(f"data:{kind};base64,{base64.b64encode(raw).decode()}"))]


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows below their names; text that a spreadsheet would take for a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(column) for column in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    text = printable(value)
    return "'" + text if text[:1] in ("=", "+", "-", "@") else text


def as_json(value: Any) -> str:
    """JSON without NaN, which it does not have."""
    return json.dumps(_plain(value), allow_nan=False, default=str, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
