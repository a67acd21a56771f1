"""Which clients can be used, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from honestly.arrays import COMPUTE, LARGEST
from honestly.engine.passes import Passes, holds_variances, negative_variances
from honestly.engine.pipeline import Pipeline
from honestly.result import AggregationError, ClientId
from honestly.rules.rule import TooFewClientsError
from honestly.sources import Source


class Screen:
    """The clients of a source; `usable` shrinks and `reasons` grows as faults are found.

    Attributes:
        source, passes: where the clients' values come from.
        K: the number of clients.
        usable: positions of the clients that have not been refused.
        ids: names of the usable clients.
        reasons: why the others were refused, by position.
    """

    def __init__(self, source: Source, passes: Passes) -> None:
        self.source, self.passes = source, passes
        self.K = len(source.ids)
        self.reasons: dict[int, str] = dict(source.refused)
        self._list_usable()

    def _list_usable(self) -> None:
        self.usable: list[int] = [k for k in range(self.K) if k not in self.reasons]
        self.ids: tuple[ClientId, ...] = tuple([self.source.ids[k] for k in self.usable])

    @property
    def reference(self) -> int | None:
        """The position of the reference, if there is one."""
        return self.K if self.source.has_reference else None

    def refuse_negative_variances(self) -> None:
        """Refuse clients with a running variance below zero: their share can make the average negative, which is NaN.

        Differences to a model may be negative. A reference says what was sent: it holds variances, or it is 0. Without
        one, clients hold variances if hardly any is negative; liars who hold none must not decide that the others' are.
        """
        negative = negative_variances(self.source, self.usable) if self.usable else {}
        if not negative:
            return
        if self.source.has_reference:
            most = 0.5 if holds_variances(self.source, self.K) else 0.0
        else:
            most = 0.25
        if len(negative) < most * len(self.usable):
            self.reasons |= negative
            self._list_usable()

    def refuse_faulty(self, suspects: Sequence[int]) -> bool:
        """Read every value of these clients and refuse those with a fault; True if there was one."""
        known = self.source.faults()
        faults = {k: None if k in known else self.passes.fault(k) for k in suspects}
        faults |= {k: reason for k, reason in self.source.faults().items() if k in faults}
        reasons = {k: fault for k, fault in faults.items() if fault is not None}
        self.reasons |= reasons
        self._list_usable()
        return bool(reasons)

    def confirm(self, fine: bool) -> bool:
        """After the last pass: True if the result stands, False if clients had to be refused.

        Args:
            fine: whether the values are finite and not absurdly large.
        """
        suspects = [k for k in self.source.faults() if k in self.usable] if fine else self.usable
        if suspects and self.refuse_faulty(suspects):
            return False
        if not fine:
            self.check_reference()
        return True

    def check_reference(self) -> None:
        """Raise ValueError if the reference itself is not finite: that is no client's fault."""
        if self.source.has_reference:
            self.check_own("reference", self.K)

    def check_own(self, name: str, position: int) -> None:
        """Raise ValueError if what the caller passed under this name has a fault."""
        fault = self.passes.fault(position)
        if fault is not None:
            raise ValueError(f"{name}: {fault}")

    def overflow(self) -> float:
        """The squared norm above which a client's values must be checked one by one."""
        widest = {COMPUTE[leaf.spec.dtype].__name__ for leaf in self.source.leaves}
        return min(LARGEST[name] for name in widest) ** 2

    def require(self, pipeline: Pipeline) -> None:
        """Raise AggregationError unless a majority of all clients, and as many as the first step needs, can be used."""
        usable, fewest = len(self.usable), pipeline.minimum()
        if 2 * usable > self.K and usable >= fewest:
            return
        if 2 * usable <= self.K:
            why = f"only {usable} of {self.K} clients can be used, which is not a majority"
        else:
            why = f"only {usable} of {self.K} clients can be used, but {pipeline.steps[0]} needs at least {fewest}"
        raise AggregationError(self.with_reasons(why), self.reasons_by_id())

    def blame(self, error: TooFewClientsError) -> Exception:
        """Too few mixtures are the caller's mistake, unless clients were refused."""
        if not self.reasons:
            return error
        return AggregationError(self.with_reasons(error.needed), self.reasons_by_id())

    def with_reasons(self, why: str) -> str:
        """A sentence, and the first ten clients who were refused."""
        listed = [f"client {name!r}: {reason}" for name, reason in list(self.reasons_by_id().items())[:10]]
        more = [f"and {len(self.reasons) - 10} more"] if len(self.reasons) > 10 else []
        return "; ".join([why, *listed, *more])

    def reasons_by_id(self) -> dict[ClientId, str]:
        """Reasons by client id, in the clients' order."""
        return {self.source.ids[k]: self.reasons[k] for k in sorted(self.reasons)}

    def spread(self, values: np.ndarray, excluded: float = 0.0) -> np.ndarray:
        """Values of the usable clients among all K: `excluded`, by default exactly 0, for the others."""
        if len(values) == self.K:
            return values.copy()
        whole = np.full((self.K, *values.shape[1:]), excluded)
        whole[self.usable] = values
        return whole
