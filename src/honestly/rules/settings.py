"""Bounds of settings, and their checks; each error names the value and the bound."""

from __future__ import annotations

import math
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

from honestly.printable import brief_repr

T = TypeVar("T")


def setting(default: T, **bounds: Any) -> T:
    """A setting's default and its bounds: `steps: int = setting(10, whole=True, least=1)`.

    `whole` asks for an integer, `above`, `least`, `below` and `most` bound a number, `among` lists the words that are
    allowed. `later` says that experiments are older than the setting: at its default, it is not part of their ids.
    A setting that must be given has them as `field(metadata={"whole": True, "least": 0})`.
    """
    return field(default=default, metadata=bounds)


def check_bounds(owner: Any) -> None:
    """Raise ValueError unless each setting of a dataclass is within its bounds; None is, where it is the default."""
    for one in fields(owner):
        value, bounds = getattr(owner, one.name), {k: v for k, v in one.metadata.items() if k != "later"}
        if not bounds or (value is None and one.default is None):
            continue
        if "among" in bounds:
            choice(owner, one.name, value, bounds["among"])
        elif bounds.pop("whole", False):
            integer(owner, one.name, value, **bounds)
        else:
            number(owner, one.name, value, **bounds)


def integer(owner: object, name: str, value: Any, *, least: float = -math.inf) -> None:
    """`value` must be an integer (not a bool) of at least `least`, and of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        bound = f" >= {least}" if math.isfinite(least) else ""
        raise ValueError(f"{type(owner).__name__}: {name} must be an integer{bound}, got {brief_repr(value)}")
    if int(value) >= 1 << 63:
        raise ValueError(f"{type(owner).__name__}: {name} must be an integer below 2^63, got {brief_repr(value)}")


def number(
    owner: object,
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> None:
    """`value` must be a finite real number with above < value < below and least <= value <= most."""
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">", above), (">=", least), ("<", below), ("<=", most))
        if math.isfinite(bound)
    ]
    try:
        x = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    except OverflowError:  # an integer beyond all floats
        x = math.nan
    fits = math.isfinite(x) and above < x < below and least <= x <= most
    if not fits:
        demand = f"a number {' and '.join(bounds)}" if bounds else "a finite number"
        raise ValueError(f"{type(owner).__name__}: {name} must be {demand}, got {brief_repr(value)}")


def choice(owner: object, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """`value` must be one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{type(owner).__name__}: {name} must be one of {', '.join(allowed)}, got {value!r}")
