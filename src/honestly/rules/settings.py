"""Checks of settings that several rules share; each error names the value and the bound."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def integer(owner: object, name: str, value: Any, *, least: int) -> None:
    """`value` must be an integer (not a bool) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{type(owner).__name__}: {name} must be an integer >= {least}, got {value!r}")


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
    x = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    fits = math.isfinite(x) and above < x < below and least <= x <= most
    if not fits:
        demand = " and ".join(bounds) or "finite"
        raise ValueError(f"{type(owner).__name__}: {name} must be a number {demand}, got {value!r}")


def choice(owner: object, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """`value` must be one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{type(owner).__name__}: {name} must be one of {', '.join(allowed)}, got {value!r}")
