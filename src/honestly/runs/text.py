"""JSON and CSV as this package writes them: no NaN, no formulas for a spreadsheet, no control characters."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from honestly.printable import printable


def compact(value: Any) -> str:
    """JSON without spaces; NaN is refused, for JSON has none."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def json_value(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None, and numbers of NumPy and its like by Python's.

    >>> json_value({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in cast("list[Any]", value)]
    return json_value(value.tolist()) if hasattr(value, "tolist") else value


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows below the names of their columns, unchanged: `csv_cell` makes untrusted values safe."""
    return csv_rows([columns]) + csv_rows(rows)


def csv_rows(rows: Iterable[Iterable[Any]]) -> str:
    """Rows without names of columns, to go on with a text that has them."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def csv_cell(value: Any) -> Any:
    """A cell: lists and mappings as JSON; text that a spreadsheet would take for a formula gets an apostrophe.

    >>> csv_cell("=1+1"), csv_cell(0.5), csv_cell(None), csv_cell([1, 2])
    ("'=1+1", 0.5, '', '[1,2]')
    """
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    text = printable(compact(json_value(value)) if isinstance(value, list | dict) else value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
