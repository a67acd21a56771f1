"""Checks runs and rounds from elsewhere before they enter a store, whose readers rely on the kinds of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from honestly.runs.clean import fields, number, whole_number
from honestly.runs.database import StoreError
from honestly.runs.rows import DONE, FAILED, PENDING, RUNNING, Run
from honestly.runs.text import compact


def check_run(run: Run) -> None:
    """Raise StoreError if a value of the run is not of its kind."""
    values: dict[str, Any] = vars(run)
    right = {
        "id": isinstance(values["id"], str),
        "cell": _is_object(run.cell),
        "experiment": _is_object(run.experiment),
        "status": run.status in (PENDING, RUNNING, DONE, FAILED),
        **{name: whole_number(values[name]) is not None for name in ("ordinal", "attempts", "rounds", "of")},
        **{name: _is_number(values[name]) for name in ("started", "updated", "finished")},
        **{name: _is_text(values[name]) for name in ("worker", "error")},
        "summary": run.summary is None or _are_numbers(run.summary),
        "provenance": run.provenance is None or _is_object(run.provenance),
    }
    _refuse(f"run {str(run.id)[:12]!r}", values, right)


def check_round(run: Any, record: Any, seconds: Any) -> None:
    """Raise StoreError if a round, or the id of its run, is not of its kind."""
    right = {
        "run": isinstance(run, str) and _is_text(run),
        "record": _is_object(record) and whole_number(record.get("round")) is not None,
        "seconds": _are_numbers(seconds),
    }
    _refuse(f"a round of run {str(run)[:12]!r}", {"run": run, "record": record, "seconds": seconds}, right)


def _refuse(what: str, values: Mapping[str, Any], right: Mapping[str, bool]) -> None:
    wrong = next((name for name, is_right in right.items() if not is_right), None)
    if wrong is not None:
        value = str(values[wrong])[:60]
        raise StoreError(f"{what} is not imported: {wrong} = {value!r} is not what honestly writes")


def _is_object(value: Any) -> bool:
    """A JSON object, without NaN."""
    try:
        return isinstance(value, dict) and bool(compact(value))
    except (ValueError, RecursionError):
        return False


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, fields(value).values()))


def _is_number(value: Any) -> bool:
    return value is None or number(value) is not None


def _is_text(value: Any) -> bool:
    """Text that a store can hold: no half of a surrogate pair."""
    return value is None or (isinstance(value, str) and value.encode(errors="replace").decode() == value)
