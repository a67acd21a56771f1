"""The engine's passes over columns that lie on many ranks: each rank works on its own, and the numbers are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from honestly.engine.passes import BETWEEN, Verdict, passes_over
from honestly.engine.passes.host import describe_fault
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule
from honestly.sources import Leaf
from honestly.torch.members import Members
from honestly.torch.slices import MIDDLE, Slices

#: Columns that all ranks together look at to find a central client.
SAMPLE = 2048


class Answer(NamedTuple):
    """What each rank said to a question (`name`, `arguments`), in order of the ranks: what a check repeats."""

    name: str
    arguments: tuple[Any, ...]
    parts: Float


class OwnPasses:
    """One rank's part of each answer, made from its slices alone.

    Args:
        slices: what is averaged.
        counted: what is measured; less than all if another rank holds the same columns.
    """

    def __init__(self, slices: Slices, counted: Slices) -> None:
        self.slices, self._counted = slices, counted
        self._inner = passes_over(slices) if slices.size else None
        self._measuring = self._inner if counted is slices else passes_over(counted) if counted.size else None

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """The products of these columns."""
        if self._measuring is None:
            return np.zeros((len(self._counted.layers), len(clients), len(clients)))
        if centre == BETWEEN:
            self._counted.put_middle(clients)
            centre = len(self.slices.ids) + MIDDLE
        return self._measuring.gram(clients, centre, only)

    def residuals(self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None) -> Float:
        """(m + 1, L, k): the squared distances in these columns, and the squared norms."""
        if self._measuring is None:
            return np.zeros((len(a) + 1, len(self._counted.layers), len(clients)))
        squared, own = self._measuring.residuals(a, clients, centre, norms)
        return np.concatenate([squared, own[None]])

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """The signs of these columns."""
        if self._measuring is None:
            return np.zeros((len(clients) if mixing is None else len(mixing), 3))
        return self._measuring.sign_counts(clients, reference, mixing)

    def sample(self, clients: Sequence[int], columns: int) -> Float:
        """(k, columns) the first of these columns; zeros where there are fewer, which change no distance."""
        rows = np.zeros((len(clients), columns))
        if self._measuring is not None:
            few = self._measuring.sample(clients)[:, :columns]
            rows[:, : few.shape[1]] = few
        return rows

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """The weighted mean of these columns."""
        return self._inner.mix(weights, clients) if self._inner is not None else ([], lambda: True)

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """The rule's own reduction of these columns."""
        return self._inner.reduce(rule, mixing, clients) if self._inner is not None else ([], lambda: True)

    def fault(self, client: int) -> str | None:
        """Why the client's values in these columns cannot be used; None if they can."""
        return self._inner.fault(client) if self._inner is not None else None


class RankPasses:
    """The passes that all ranks make together. Every rank calls them in the same order, since it decides on the same
    numbers.

    Args:
        members: the ranks.
        own: what this one adds.
        leaves: the tensors, for words about a fault.
        record: keep what each rank said, so it can be checked later: numbers are gathered then and summed here.
        replicated: some shards have columns that they do not measure.
    """

    def __init__(
        self,
        members: Members,
        own: OwnPasses,
        leaves: Sequence[Leaf],
        *,
        record: bool = False,
        replicated: bool = False,
    ) -> None:
        self.members, self.own, self._leaves, self._replicated = members, own, leaves, replicated
        self.answers: list[Answer] | None = [] if record else None
        self.result: tuple[str, tuple[Any, ...]] | None = None  # the last question for values
        self._measured: set[int] = set()

    def _sum(self, name: str, *arguments: Any) -> Float:
        part: Float = getattr(self.own, name)(*arguments)
        if self.answers is None:
            return self.members.sum(part)
        parts = self.members.gather(part)
        self.answers.append(Answer(name, arguments, parts))
        with np.errstate(over="ignore", invalid="ignore"):
            total = parts.sum(axis=0)
        return total if self.members.shards is None else self.members.gather(total, self.members.shards).sum(axis=0)

    def free_centre(self, clients: Sequence[int]) -> int | None:
        """A rank has few columns, so a median of each costs less than to ask the others for a sample."""
        return BETWEEN

    def sample(self, clients: Sequence[int]) -> Float:
        """Some columns of every rank."""
        own = self.own.sample(clients, -(-SAMPLE // self.members.K))
        every = np.concatenate(list(self.members.gather(own)), axis=1)
        if self.members.shards is None:
            return every
        return np.concatenate(list(self.members.gather(every, self.members.shards)), axis=1)

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """Partial Gram matrices add up."""
        total = self._sum("gram", list(clients), centre, only)
        if only is None and np.isfinite(total).all() and not self._replicated:
            self._measured |= set(clients)
        return total

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """So do squared distances."""
        total = self._sum("residuals", a, list(clients), centre, None)
        return total[:-1], total[-1]

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """And counts."""
        return self._sum("sign_counts", list(clients), reference, mixing)

    def coordinates(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
        """No rank holds more than its own columns."""
        raise ValueError("this rule looks at whole updates, of which every rank holds a part only: use another rule")

    def statistics(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Sequence[Statistics]:
        """Gradients have no buffers."""
        return ()

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """This rank's slice of the mean."""
        self.result = "mix", (weights, list(clients))
        values, verdict = self.own.mix(weights, clients)
        return values, self._everywhere(verdict, clients)

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """This rank's slice of the result."""
        self.result = "reduce", (rule, mixing, list(clients))
        values, verdict = self.own.reduce(rule, mixing, clients)
        return values, self._everywhere(verdict, clients)

    def _everywhere(self, verdict: Verdict, clients: Sequence[int]) -> Callable[[], bool]:
        """Fine on all ranks. Whose squares were added up and came out finite has no other values."""
        if self._measured.issuperset(k for k in clients if k < self.members.K):
            return lambda: True
        return lambda: self.members.every(verdict())

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """Used only by `explain`, which is too slow for a training step."""
        raise NotImplementedError

    def fault(self, client: int) -> str | None:
        """The first fault in the order of the tensors, found by the rank that holds that column."""
        if client >= self.members.K:
            return self._own_fault(client)
        fault = self.own.slices.first_fault(client)
        word = np.array([-1, 0, 0] if fault is None else [fault[0], fault[1], fault[2]], dtype=np.float64)
        words = self.members.gather(word).reshape(-1, 3)
        if self.members.shards is not None:
            words = self.members.gather(words, self.members.shards).reshape(-1, 3)
        words = words[words[:, 0] >= 0]
        if not len(words):
            return None
        tensor, at, value = words[np.lexsort((words[:, 1], words[:, 0]))[0]]
        return describe_fault(float(value), self._leaves[int(tensor)], int(at))

    def _own_fault(self, position: int) -> str | None:
        """Whether the reference or the root holds values that cannot be used, anywhere."""
        fault = self.own.fault(position)
        return None if self.members.every(fault is None) else fault or "holds values that cannot be used"
