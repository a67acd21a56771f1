"""Asynchronous federations: updates are collected as they arrive and averaged once there are enough of them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from honestly.arrays import Host
from honestly.engine import Pipeline
from honestly.federation.differences import check_values, digest, host_difference, in_container
from honestly.federation.discount import stale_average
from honestly.federation.folders import claim
from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.federation.recovery import Counted, recover, state_of
from honestly.federation.shelf import Shelf, WaitingUpdate
from honestly.federation.votes import check_once, check_version
from honestly.printable import printable
from honestly.result import Aggregate, AggregationError, ClientId
from honestly.rules.rule import Mixer, Rule
from honestly.runs.clean import number
from honestly.sources.tree import UnusableError, flatten, signature, unreadable

logger = logging.getLogger("honestly.federation")

#: The most clients in `refused`; further refusals are only logged.
MOST_REFUSALS = 1000


class Buffer:
    """Collects clients' updates as they arrive, and judges and averages them once there are `size` of them (FedBuff).

    An update is the *difference* between the client's model and the model that it started from. `version` counts the
    averages so far. Send it to each client together with the model, and pass the version that the client started from
    to `add`. Use the server's own record of what it sent, not what the client reports.

    The rule judges all updates in the same way. Then each weight is multiplied by `(1 + staleness) ** -discount`, where
    staleness is the number of versions since the client's. The removed weight is not given to others, so a buffer of
    stale updates moves the model less. For coordinate-wise rules, which have no weights, the whole step is multiplied
    by the mean of these factors. A client that was later than most is called unusual and not accused.

    A client has one vote: a second update before the average replaces its first one, unless it comes from an older
    version. An update that was already averaged is refused, so a message delivered twice counts once. The buffer also
    refuses updates from an older version than the client's last one, from more than `max_staleness` versions ago, from
    a version that does not exist yet, with values that are not finite, or with another layout than `like`. A refused
    update does not enter the buffer and raises nothing: the log and `refused` say why.

    Args:
        size: the number of clients whose updates are averaged together.
        rule: a rule or its name. Its memory is carried from average to average, and an `hn.Memory` is kept in `folder`
            (rules with memories of their own, such as `fl_detector`, start again after a restart).
        pre: mixers applied before the rule.
        discount: the exponent of the discount: 0.5 as in FedBuff; 0 for none.
        max_staleness: updates from older versions are refused.
        like: a model with the layout of the updates. Without it, the layout of the majority counts.
        folder: keeps the waiting updates, so they survive a restart. One server at a time may use it.
        version: the version of the model that you start with, if you saved it. If the buffer in `folder` is one ahead
            (the server was killed after the average and before the model was saved), it goes back one
            version and restores the updates of that average.
        history: a folder for `rounds.jsonl` and `rounds.csv`, see `honestly report`.
        run: the name of the run, for the history and the title of its report.
        buffers: how to treat BatchNorm's statistics, see `hn.aggregate`.

    Attributes:
        version: the number of averages so far.
        refused: clients refused since the last average, each with the last reason.
        history: one `honestly.federation.Round` for each average.

    All methods may be called from several threads.

    Reference:
        Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.

    Example:
        >>> import numpy as np, honestly as hn
        >>> buffer = hn.Buffer(3, "bayesian")
        >>> for client in "abc":
        ...     out = buffer.add(client, np.ones(4), version=buffer.version)
        >>> out.value, buffer.version
        (array([1., 1., 1., 1.]), 1)
    """

    def __init__(
        self,
        size: int,
        rule: Rule | str = "bayesian",
        *,
        pre: Sequence[Mixer | str] | Mixer | str = (),
        discount: float = 0.5,
        max_staleness: int = 20,
        like: Any = None,
        folder: str | os.PathLike[str] | None = None,
        version: int | None = None,
        history: str | os.PathLike[str] | None = None,
        run: str = "",
        buffers: Any = "follow",
        log: Callable[[int, str], None] = logger.log,
    ) -> None:
        size, max_staleness = _whole_number("size", size, 1), _whole_number("max_staleness", max_staleness, 0)
        if version is not None:
            version = _whole_number("version", version, 0)
        if isinstance(discount, bool) or not isinstance(discount, Real) or not 0.0 <= discount < float("inf"):
            raise ValueError(f"discount={discount!r}: expected an exponent, a number >= 0")
        self.size, self.discount, self.max_staleness = size, float(discount), max_staleness
        self.version = 0
        self.refused: dict[ClientId, str] = {}
        self._pipeline = Pipeline.of(rule, pre)
        self._pipeline.check(size)
        self._like, self._buffers, self._write_log = like, buffers, log
        self._layout = None if like is None else _layout(like)
        self._entries: dict[ClientId, WaitingUpdate] = {}
        self._counted: dict[ClientId, Counted] = {}  # the version and digest of the last update that was averaged
        self._last: list[int] = []  # numbers of the last average's updates, which stay on disk until the next one
        self._through = 0  # updates up to this number were counted
        self._next = 1
        self._lock = threading.RLock()
        self._shelf: Shelf | None = None
        if folder is not None:
            self._shelf = Shelf(Path(folder))
            claim(self._shelf.folder, self)
            self._restore(self._shelf, version)
        elif version is not None:
            self.version = version
        self.history = History(history, run=run)
        if self.history.folder is not None:
            claim(self.history.folder, self)

    @property
    def rule(self) -> Rule:
        """The rule with its current memory."""
        return self._pipeline.rule

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients whose updates are in the buffer, in the order of arrival."""
        with self._lock:
            return tuple(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Buffer({len(self)} of {self.size} updates, version {self.version})"

    def add(
        self, client: ClientId, update: Any, *, version: int, base: Any = None, size: float | None = None
    ) -> Aggregate | None:
        """Add an update. Returns the average if this fills the buffer, else None.

        Args:
            client: text or an integer that your framework has authenticated.
            update: the difference to the model that the client started from, or, with `base`, its model.
            version: the version that the client started from, as the server knows it.
            base: that version's model, if `update` is a model.
            size: the number of examples that the client reports, for rules that use sizes.

        Raises:
            OSError: the folder cannot be written. The update was not added: ask the client for it again.
        """
        client, version = _plain(client), _plain(version)
        if isinstance(client, bool) or not isinstance(client, str | int):
            raise ValueError(f"client is {client!r}; a buffer keeps ids that are text or integers")
        with self._lock:
            try:
                difference = host_difference(update, base)
                self._check(client, difference, version)
            except UnusableError as fault:
                self.refuse(client, str(fault))
                return None
            except Exception as error:  # an exception caused by one client's update concerns only that client
                self.refuse(client, unreadable(error))
                return None
            entry = WaitingUpdate(client, version, difference, self._next, number(_plain(size), None))
            if self._shelf is not None:
                self._shelf.put(entry, self.version)
            self._next += 1
            old = self._entries.pop(client, None)
            self._entries[client] = entry
            self.refused.pop(client, None)
            if old is not None and self._shelf is not None:
                self._shelf.remove(old.number)
            return self.aggregate() if len(self._entries) >= self.size else None

    def aggregate(self) -> Aggregate | None:
        """Average the updates in the buffer, full or not. Returns None if that is not possible (the log says why).

        `add` calls this when the buffer is full. Call it yourself if you have waited long enough.
        """
        with self._lock:
            if not self._entries:
                return None
            started = time.perf_counter()
            try:
                out = self._average()
            except AggregationError as error:  # no usable majority: drop all updates, or the buffer would be stuck
                self._log(logging.WARNING, f"version {self.version}: no average: {str(error).split('; client')[0]}")
                for client in list(self._entries):
                    self._drop(client, error.reasons.get(client, "no majority of the buffer was usable: send it again"))
                return None
            self._advance(out, started)
            return out

    def _average(self) -> Aggregate:
        entries = list(self._entries.values())
        out = stale_average(
            entries, self._pipeline, version=self.version, exponent=self.discount, buffers=self._buffers
        )
        return replace(out, value=in_container(out.value, self._like))

    def _advance(self, out: Aggregate, started: float) -> None:
        """Go to the next version: on disk first, then in memory, so a killed server has the old or the new one."""
        numbers, older = [entry.number for entry in self._entries.values()], list[int]()
        pipeline = self._pipeline.after(out.diagnostics)
        counted = {c: last for c, last in self._counted.items() if last[0] >= self.version - self.max_staleness}
        counted |= {entry.client: (entry.version, digest(entry.arrays)) for entry in self._entries.values()}
        if self._shelf is not None:
            before = state_of(self.version, self._counted, self.rule, self._through)
            after = state_of(self.version + 1, counted, pipeline.rule, max(numbers))
            try:
                self._shelf.write_state({**after, "before": before})
            except OSError as error:  # the average is still valid: only a restart needs the file
                self._log(logging.ERROR, f"the buffer could not be written to {self._shelf.folder}: {error}")
                older = self._last  # the state on disk still needs them
            else:
                for number in self._last:
                    self._shelf.remove(number)
        self._last, self._through = [*older, *numbers], max(numbers)
        self._pipeline, self._counted, self._entries = pipeline, counted, {}
        self.version += 1
        self._record(out, time.perf_counter() - started)

    def _record(self, out: Aggregate, seconds: float) -> None:
        refused = {client: why for client, why in self.refused.items() if client not in out.clients}
        self.refused = {}
        record = Round.of(self.version, (*out.clients, *refused), out, {**refused, **out.reasons}, seconds=seconds)
        level = logging.WARNING if record.attention else logging.INFO
        self._log(level, f"version {self.version}: {out.summary()}")
        self.history.add(record)
        try:
            self.history.write()
        except OSError as error:
            self._log(logging.ERROR, f"the history could not be written to {self.history.folder}: {error}")

    def _restore(self, shelf: Shelf, wanted: int | None) -> None:
        """Restore the state in the folder. Damaged files are skipped."""
        standing = recover(shelf, wanted, self._log)
        self.version, self._through, self._counted = standing.version, standing.through, standing.counted
        # another rule's memory means nothing to this one
        if standing.memory is not None and standing.rule == self.rule.name and hasattr(self.rule, "memory"):
            self._pipeline = self._pipeline.with_rule(memory=standing.memory)
        for entry in standing.entries:
            self._next = max(self._next, entry.number + 1)
            if entry.number <= self._through:
                self._last.append(entry.number)
                continue
            try:
                self._check(entry.client, entry.arrays, entry.version)
                self._entries[entry.client] = entry
            except UnusableError as fault:
                self._log(logging.WARNING, f"the update {entry.number} in {shelf.folder} is left out: {fault}")
        self._next = max(self._next, self._through + 1)
        shelf.write_state(state_of(self.version, self._counted, self.rule, self._through))

    def _check(self, client: ClientId, change: Mapping[str, Host], version: Any) -> None:
        """Raise `UnusableError` if the buffer must refuse the update."""
        check_version(version, newest=self.version, max_staleness=self.max_staleness)
        check_once(change, version, counted=self._counted.get(client), waiting=self._entries.get(client))
        check_values(change, self._layout)

    def refuse(self, client: ClientId, reason: str) -> None:
        """Record that a client's reply was refused, for adapters that cannot read it."""
        with self._lock:
            self._log(logging.WARNING, f"version {self.version}: client {client} refused: {reason}")
            if client in self.refused or len(self.refused) < MOST_REFUSALS:
                self.refused[client] = reason

    def expect(self, like: Any) -> None:
        """From now on refuse updates with another layout than `like`, and drop those that wait."""
        with self._lock:
            self._layout = _layout(like)
            for client, entry in list(self._entries.items()):
                try:
                    check_values(entry.arrays, self._layout)
                except UnusableError as fault:
                    self._drop(client, str(fault))

    def _drop(self, client: ClientId, reason: str) -> None:
        entry = self._entries.pop(client)
        if self._shelf is not None:
            self._shelf.remove(entry.number)
        self.refuse(client, reason)

    def _log(self, level: int, text: str) -> None:
        self._write_log(level, printable(text))


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which compare, hash and are written to files alike; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _whole_number(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value!r}: expected a whole number >= {least}")
    return int(value)


def _layout(like: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    try:
        return signature(flatten(like))
    except UnusableError as error:
        raise ValueError(f"like {error}; pass a model's state dict or another update's container") from None
