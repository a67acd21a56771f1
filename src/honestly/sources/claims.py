"""What is claimed about each client, by position: its size, or the number of clients behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from honestly.printable import brief_repr
from honestly.result import ClientId, Float


def read_claims(what: str, claims: Any, ids: Sequence[ClientId]) -> Float:
    """(K,) numbers in the clients' order, from a sequence in that order or a mapping by id; NaN if not a number.

    A claim may be nonsense, which the rule handles. Too many or too few claims are an error.
    """
    check_claims(what, claims)
    values = ordered_claims(what, claims, ids) if isinstance(claims, Mapping) else list(claims)
    if len(values) != len(ids):
        raise ValueError(f"{what} has {len(values)} entries for {len(ids)} updates")
    return np.array([_number(value) for value in values])


def ordered_claims(what: str, claims: Mapping[Any, Any], ids: Sequence[ClientId]) -> list[Any]:
    """What is claimed by id, in the clients' order; None for a client without a claim.

    Claims by ids of which none is a client's are an error: they would be ignored without a word.
    """
    if claims and ids and not any(name in claims for name in ids):
        theirs, ours = brief_repr(next(iter(claims))), brief_repr(ids[0])
        raise ValueError(f"{what} names none of the clients: it begins with {theirs}, but the first client is {ours}")
    return [claims.get(name) for name in ids]


def check_claims(what: str, claims: Any) -> None:
    """Raise ValueError unless this can hold a number for each client."""
    if isinstance(claims, str | bytes) or not isinstance(claims, Iterable):
        raise ValueError(f"{what} is {repr(claims)[:100]}; expected a number for each update, in order or by id")


def read_sizes(sizes: Any, ids: Sequence[ClientId]) -> Float | None:
    """(K,) claimed sizes; None for "ignore" or None, when all clients count the same."""
    if sizes is None or (isinstance(sizes, str) and sizes == "ignore"):
        return None
    if isinstance(sizes, str):
        raise ValueError(f"sizes is {sizes!r}; expected a number for each update, in order or by id, or 'ignore'")
    return read_claims("sizes", sizes, ids)


def _number(value: Any) -> float:
    """The number, which may be an array of one value, such as a row of a column of sizes; NaN for anything else."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # a stranger's claim may raise any exception: of torch, a tensor of two values a RuntimeError
        return float("nan")
