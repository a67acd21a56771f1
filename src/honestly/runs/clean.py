"""Read values from untrusted files: finite numbers, short texts, or None."""

from __future__ import annotations

import json
import math
from typing import Any, cast

LONGEST_TEXT = 300
LONGEST_ERROR = 4000


def number(value: Any, digits: int | None = 6) -> float | None:
    """A finite number, rounded unless `digits` is None; None for anything else.

    >>> number(0.12345678), number(float("nan")), number("7"), number(True), number(10**400)
    (0.123457, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    if not math.isfinite(result):
        return None
    return result if digits is None else round(result, digits)


def whole_number(value: Any, *, most: int = 10**9) -> int | None:
    """A whole number from 0 to `most`; None for anything else.

    >>> whole_number(3), whole_number(3.0), whole_number(-1), whole_number("3"), whole_number(2**70)
    (3, 3, None, None, None)
    """
    result = number(value)
    return int(result) if result is not None and 0 <= result <= most and result == int(result) else None


def text(value: Any, most: int = LONGEST_TEXT) -> str:
    """Text of limited length that can be encoded; None gives the empty text.

    >>> text("abcdef", 4), text(None), text(3), text("\\ud800")
    ('abc…', '', '3', '?')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        value = _as_text(value)
    if len(value) > most:
        value = value[: most - 1] + "…"
    return value.encode("utf-8", "replace").decode("utf-8")


def scalar(value: Any) -> Any:
    """The value of an axis: numbers stay numbers, so they are put in order; anything else becomes text.

    >>> scalar(0.5), scalar(True), scalar([]), scalar(float("nan")), scalar(10**400)
    (0.5, True, '[]', 'nan', 'a huge number')
    """
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    finite = number(value, 9)
    return text(value, 100) if finite is None else finite


def parse_json(content: str) -> Any:
    """Parse JSON; ValueError for anything else, including a million open brackets."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def items(value: Any) -> list[Any]:
    """A list, or an empty one for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def fields(value: Any) -> dict[str, Any]:
    """A mapping, or an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Flatten settings to names and texts: `{"rule": {"name": "krum", "f": 4}}` gives rule and rule.f.

    >>> flat({"rule": {"name": "krum", "f": 4}, "alpha": 0.5})
    {'rule': 'krum', 'rule.f': '4', 'alpha': '0.5'}
    """
    texts: dict[str, str] = {}
    for key, value in list(fields(values).items())[:200]:
        name = prefix if prefix and key == "name" else f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and prefix.count(".") < 3:
            texts |= flat(value, text(name, 100))
        else:
            texts[text(name, 100)] = text(value)
    return texts


def _as_text(value: Any) -> str:
    if isinstance(value, bool | int | float):
        try:
            return str(value).lower() if isinstance(value, bool) else f"{value:.15g}"
        except OverflowError:  # an integer beyond float's range
            return "a huge number"
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
