"""Updates of groups: edge servers and cohorts of secure aggregation send one update for many clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from honestly import arrays
from honestly.arrays import is_array
from honestly.result import Aggregate, ClientId, Float, Verdict
from honestly.sources import tree
from honestly.sources.checkpoints.options import Checkpoints, are_paths
from honestly.sources.claims import check_claims, read_claims

#: Dtypes of 16 bits.
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Groups:
    """How many clients are behind each update, and whether the update is their sum or their mean.

    The groups are then judged, weighed and named: one liar spoils its group, see docs/how-to/groups.md.

    Args:
        counts: the number of clients in each group, in order, or a mapping by id. Counts are claims: they weigh a group
            up to the cap that sizes have.
        sums: the updates are sums, as secure aggregation gives them, and are divided by the counts (which copies
            them); otherwise they are means.

    Example:
        >>> updates = np.array([[3.0, 3.0], [8.0, 8.0], [6.0, 6.0]])
        >>> Groups([3, 8, 6], sums=True).means(updates, (0, 1, 2))
        array([[1., 1.],
               [1., 1.],
               [1., 1.]])
    """

    counts: Any
    sums: bool = False

    def __post_init__(self) -> None:
        check_claims("groups", self.counts)

    @classmethod
    def of(cls, layers: Any) -> Groups:
        """From what the caller says: the counts, or a `Groups`."""
        return layers if isinstance(layers, Groups) else cls(layers)

    def ordered_counts(self, ids: Sequence[ClientId]) -> Float:
        """(K,) counts in the groups' order; NaN where there is none."""
        counts = read_claims("groups", self.counts, ids)
        return np.where(np.isfinite(counts) & (counts > 0), counts, np.nan)

    def means(self, updates: Any, ids: Sequence[ClientId]) -> Any:
        """The updates as means, in the same containers. A group without a count becomes NaN, which is refused."""
        if not self.sums:
            return updates
        if isinstance(updates, Checkpoints) or are_paths(updates):
            raise ValueError("groups of sums: files cannot be divided while they are read; write means, or pass arrays")
        counts = self.ordered_counts(ids)
        if is_array(updates):
            return _quotient(updates, _column(counts, updates))
        if isinstance(updates, Mapping):
            pairs = zip(cast("Mapping[Any, Any]", updates).items(), counts.tolist(), strict=True)
            return {name: divide(update, count) for (name, update), count in pairs}
        return [divide(update, count) for update, count in zip(updates, counts.tolist(), strict=True)]

    def describe(self, result: Aggregate) -> Aggregate:
        """The result, with the number of clients behind each group and behind the groups that are believed."""
        counts = self.ordered_counts(result.clients)
        lost = [verdict in (Verdict.ACCUSED, Verdict.EXCLUDED) for verdict in result.verdicts]
        with np.errstate(over="ignore"):  # they are claims
            believed = float(np.nansum(np.where(lost, 0.0, counts)))
        reasons = {
            name: f"its number of clients is invalid; {reason}"
            if np.isnan(counts[result.clients.index(name)])
            else reason
            for name, reason in result.reasons.items()
        }
        more = {"group_counts": counts, "clients_believed": believed}
        return replace(result, reasons=reasons, diagnostics={**result.diagnostics, **more})


def identities(updates: Any) -> tuple[ClientId, ...] | None:
    """The ids that the updates will have: the keys of a mapping, else 0..K-1; None if these cannot be updates."""
    paths = updates.paths if isinstance(updates, Checkpoints) else updates
    if isinstance(paths, Mapping):
        return tuple(cast("Mapping[Any, Any]", paths))
    try:
        return None if isinstance(paths, str | bytes) else tuple(range(len(paths)))
    except TypeError:
        return None


def divide(update: Any, count: float) -> Any:
    """The same container with every array and number divided. What cannot be read stays, and is refused then."""
    try:
        leaves = tree.flatten(update)
        return tree.rebuild(update, lambda path: _divide_leaf(leaves[path], count))
    except Exception:  # a stranger's object: whoever reads it says why it cannot be used
        return update


def _divide_leaf(values: Any, count: float) -> Any:
    """Counters stay integers. Flags are no sums, and other values are refused when they are read."""
    what = arrays.spec(values)
    if what.kind == "float":
        return _quotient(values, count)
    if what.kind != "integer" or not math.isfinite(count):
        return values
    host = np.asarray(arrays.to_host(values))
    with np.errstate(all="ignore"):
        quotient = np.rint(host / count).astype(host.dtype)
    return arrays.from_host(quotient.reshape(-1), what, values)


def _quotient(values: Any, divisors: Any) -> Any:
    """In the values' own dtype, rounded once: 16 bits are divided in float32, because float16 ends at 65,504."""
    with np.errstate(all="ignore"):  # a count is a claim, and may be larger or smaller than any float of the dtype
        if arrays.spec(values).dtype not in HALVES:
            return values / divisors
        if isinstance(values, np.ndarray | np.generic):
            return (values.astype(np.float32) / divisors).astype(values.dtype)
        xp = arrays.namespace(values)
        return xp.astype(xp.astype(values, xp.float32) / divisors, values.dtype)


def _column(factors: Float, updates: Any) -> Any:
    """The factors as a column in the precision in which they divide: integers by floats, which can be NaN."""
    shape = (len(factors), *([1] * (updates.ndim - 1)))
    what = arrays.spec(updates)
    dtype = "float32" if what.dtype in HALVES else what.dtype if what.kind == "float" else "float64"
    if isinstance(updates, np.ndarray):
        with np.errstate(over="ignore"):
            return factors.astype(dtype).reshape(shape)
    xp = arrays.namespace(updates)
    column = xp.asarray(factors.tolist(), dtype=getattr(xp, dtype) if what.kind == "float" else None)
    return xp.reshape(arrays.like(column, updates), shape)
