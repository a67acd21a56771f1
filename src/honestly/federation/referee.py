"""The decision of a round, for any framework: check replies, judge updates, average or keep the old model."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from honestly.aggregate import aggregate
from honestly.engine import Pipeline
from honestly.federation.folders import claim
from honestly.federation.history import History
from honestly.federation.metrics import bad_sizes, out_of_line, robust_metrics
from honestly.federation.names import Names, Naming
from honestly.federation.record import Reply, Round
from honestly.federation.server import ServerSide, ServerStep
from honestly.printable import printable
from honestly.result import Aggregate, AggregationError, ClientId, Status
from honestly.rules.rule import Mixer, Rule
from honestly.sources.grouping import Buffers

Doubt: TypeAlias = Literal["accept", "keep"]
Sizes: TypeAlias = Literal["use", "ignore"]

logger = logging.getLogger("honestly.federation")


class Referee:
    """Judges round after round. A bad reply excludes its client and never stops the round.

    Args:
        rule: a rule or its name. Its memory is carried from round to round.
        pre: mixers applied before the rule; their state is carried from round to round, too.
        quorum: the share of the clients asked (of those that answered, if it is not known who was asked) that must
            have sent a usable update, or the old model is kept. More than this share is needed: 0.5 is a majority.
        doubt: what to do if the rule itself says that it may be wrong (more clients look dishonest than may lie), or
            if refused and disbelieved clients leave less than `quorum` of those that answered: "accept" takes the
            average and marks the round; "keep" keeps the old model.
        history: a folder for `rounds.jsonl` and `rounds.csv`, or None.
        buffers: how to treat BatchNorm's running means and variances, see `hn.aggregate`.
        server: the server's optimiser, such as "fedadam:lr=0.1": see `honestly.federation.server`. With a history, its
            moments are kept in the folder and used again after a restart from the same model.
        sizes: "use" lets the rule use the sizes that clients report, up to a cap by which no minority of them gets a
            majority of the weight; "ignore" counts every client once.
        names: a mapping from client id to a name, or a function of the id, for logs and the history.
        run: the name of the run, for the history and the title of its report.
        log: receives a level of `logging` and a sentence, because frameworks have their own ways to log.
    """

    def __init__(
        self,
        rule: Rule | str,
        *,
        pre: Sequence[Mixer | str] | Mixer | str = (),
        quorum: float = 0.5,
        doubt: Doubt = "accept",
        history: Any = None,
        buffers: Any = "follow",
        server: ServerStep | str | None = None,
        sizes: Sizes = "use",
        names: Naming | None = None,
        run: str = "",
        log: Any = logger.log,
    ) -> None:
        if not isinstance(quorum, int | float) or not 0.0 <= quorum < 1.0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"quorum={quorum!r}: expected the share of clients that must be usable, 0 <= quorum < 1")
        if doubt not in ("accept", "keep"):
            raise ValueError(f'doubt={doubt!r}: use "accept" or "keep"')
        if sizes not in ("use", "ignore"):
            raise ValueError(f'sizes={sizes!r}: use "use" or "ignore"')
        self.sizes = sizes
        self.pipeline = Pipeline.of(rule, pre)
        self.buffers = Buffers.of(buffers)
        self.names = Names(names)
        self.quorum, self.doubt, self._write_log = float(quorum), doubt, log
        self.history = History(history, run=run)
        # the vote of each client in its last round, and whether it was believed
        self._votes: dict[ClientId, tuple[float, bool]] = {}
        self.server = ServerSide(server, self.history.folder, self.buffers.hold)
        if self.history.folder is not None:
            claim(self.history.folder, self)

    @property
    def rule(self) -> Rule:
        """The rule with its current memory."""
        return self.pipeline.rule

    def _log(self, level: int, text: str) -> None:
        """Write a line to the log. Names and faults are untrusted: they must not end the line or control a terminal."""
        self._write_log(level, printable(text))

    def check(self, asked: int) -> None:
        """Raise ValueError if the rule cannot work with this many clients even if all of them answer."""
        self.pipeline.check(asked)

    def judge(
        self,
        number: int,
        replies: Iterable[Reply],
        *,
        reference: Any = None,
        asked: Iterable[ClientId] = (),
        difference: bool = False,
    ) -> tuple[Any, Round]:
        """The new model (None: keep the old one) and the record of the round, which is also in the history.

        With `difference`, the updates and the returned value are differences to the old model.
        """
        started = time.perf_counter()
        replies, asked = list(replies), list(asked)
        excluded = self._roll_call(replies, asked)
        clients = tuple(dict.fromkeys([*asked, *(reply.client for reply in replies)]))
        invited = set(asked or clients)  # uninvited replies count for nothing, nor against the others
        usable = {reply.client: reply for reply in replies if reply.client not in excluded}
        out: Aggregate | None = None
        attention = True
        try:
            out = self._aggregate(usable, excluded, len(invited), reference)
            answered = len(invited & {reply.client for reply in replies if not reply.absent})
            status, kept, attention = self._verdict(out, answered)
        except AggregationError as error:
            excluded |= error.reasons
            status, kept = f"the old model was kept: {str(error).split('; client')[0]}", True
        except ValueError as error:  # the rule's settings do not fit the remaining clients
            status, kept = f"the old model was kept: {error}", True
        except Exception as error:  # a bug, here or in a user's rule, must not end a federation that runs for days
            logging.getLogger("honestly").exception("round %s: the aggregation failed", number)
            status, kept = f"the old model was kept: the aggregation failed ({type(error).__name__}: {error})", True
        record = Round.of(
            number, clients, out, excluded, kept=kept, status=status, attention=attention, names=self.names
        )
        record.metrics = robust_metrics(
            {client: reply.metrics or {} for client, reply in usable.items()}, record.votes()
        )
        record.seconds = time.perf_counter() - started
        if out is not None and not kept:
            self.pipeline = self.pipeline.after(out.diagnostics)
        self._announce(record)
        value = None if kept or out is None else self._apply_server(number, out.value, reference, difference)
        self._keep(record)
        return value, record

    def _apply_server(self, number: int, average: Any, reference: Any, difference: bool) -> Any:
        """The step of the server's optimiser; the average itself if it fails."""
        try:
            value, trouble = self.server.next(average, reference, difference=difference)
        except Exception as error:  # neither a full disk nor a bug may end the federation
            logging.getLogger("honestly").exception("round %s: the server's step failed", number)
            value, trouble = (
                average,
                f"the server's step failed ({type(error).__name__}); the average is used unchanged",
            )
        if trouble is not None:
            self._log(logging.WARNING, f"round {number}: {trouble}")
        return value

    def evaluation(self, number: int, replies: Iterable[Reply]) -> tuple[dict[str, Any], dict[ClientId, str]]:
        """The robust average of an evaluation's metrics, and the clients whose report was excluded.

        A client's metrics count as much as its last update was believed.
        """
        replies = list(replies)
        excluded = self._roll_call(replies, ())
        usable = {reply.client: reply.metrics or {} for reply in replies if reply.client not in excluded}
        metrics = robust_metrics(usable, {client: vote for client, (vote, _) in self._votes.items()})
        for client, reason in excluded.items():
            self._log(logging.WARNING, f"evaluation {number}: client {self.names.with_id(client)} excluded: {reason}")
        self.record_evaluation(number, metrics)
        return metrics, excluded

    def believed(self, clients: Iterable[ClientId]) -> set[ClientId]:
        """Those of the clients whose last update was believed, and those who have not sent any."""
        return {client for client in clients if client not in self._votes or self._votes[client][1]}

    def record_evaluation(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an evaluation to the record of the round; they replace earlier ones."""
        if self.history and self.history[-1].number == number:
            self.history[-1].evaluation = {**self.history[-1].evaluation, **metrics}
            self._write()

    def _roll_call(self, replies: Sequence[Reply], asked: Sequence[ClientId]) -> dict[ClientId, str]:
        """Clients that are excluded before any value is read, with the reason."""
        excluded: dict[ClientId, str] = {}
        times, invited = Counter(reply.client for reply in replies), set(asked)
        for reply in replies:
            if times[reply.client] > 1:
                excluded[reply.client] = f"sent {times[reply.client]} replies in one round"
            elif asked and reply.client not in invited:
                excluded[reply.client] = "was not asked in this round"
            elif reply.fault is not None:
                excluded[reply.client] = reply.fault
        excluded |= {client: "sent no reply" for client in asked if client not in times}
        sound = [reply for reply in replies if reply.client not in excluded]
        strange = out_of_line({reply.client: reply.metrics for reply in sound})
        sizes = {reply.client: reply.size for reply in sound if reply.client not in strange}
        usual = 2 * sum(size is not None for size in sizes.values()) > len(sizes)
        reported = {client: size for client, size in sizes.items() if usual or size is not None}
        return excluded | strange | bad_sizes(reported)

    def _aggregate(
        self, usable: dict[ClientId, Reply], excluded: dict[ClientId, str], invited: int, reference: Any
    ) -> Aggregate:
        """The engine's result; without the bad clients if it lacks a majority and the quorum allows fewer."""
        while True:
            self._require(usable, invited)
            sizes = {client: reply.size for client, reply in usable.items()}
            try:
                out = aggregate(
                    {client: reply.update for client, reply in usable.items()},
                    self.pipeline,
                    reference=reference,
                    buffers=self.buffers,
                    sizes=None if self.sizes == "ignore" or not any(s is not None for s in sizes.values()) else sizes,
                )
            except AggregationError as error:
                unusable = {client: reason for client, reason in error.reasons.items() if client in usable}
                if not unusable:
                    raise
                excluded |= unusable
                for client in unusable:
                    del usable[client]
                continue
            excluded |= out.reasons
            for client in out.excluded:
                usable.pop(client, None)
            self._require(usable, invited)
            return out

    def _require(self, usable: Mapping[ClientId, Any], invited: int) -> None:
        if not usable or len(usable) <= self.quorum * invited:
            need = f"more than {self.quorum:g} of them are needed"
            raise AggregationError(f"only {len(usable)} of {invited} clients sent a usable update, but {need}")

    def _verdict(self, out: Aggregate, answered: int) -> tuple[str, bool, bool]:
        """How the round ended, whether the old model is kept, and whether a person should look.

        Doubt is the rule's own (more clients look dishonest than may lie), or refused and disbelieved clients that
        together outnumber the others. It does not stop a round by itself: a rule that wrongly disbelieves one honest
        client of five would give two broken ones the power to stop the training.
        """
        status, doubt = str(out.status), not out.status.ok
        believed = None if out.honesty is None else float(out.honesty.sum())
        if believed is not None and believed < self.quorum * answered - 0.01:  # 0.01: the precision of the rule
            status, doubt = f"excluded and disbelieved clients leave {believed:.1f} of {answered}", True
        bound = out.status in (Status.MAJORITY_BOUND, Status.CONTRADICTION) or status != str(out.status)
        if bound and self.doubt == "keep":
            return f"the old model was kept: {status}", True, True
        return status, False, doubt

    def _announce(self, record: Round) -> None:
        for client, reason in record.excluded.items():
            self._log(logging.WARNING, f"round {record.number}: client {self.names.with_id(client)} excluded: {reason}")
        accusations = record.named_accusations()
        for client in record.accused:
            assert record.honesty is not None
            why = accusations.get(client)
            self._log(
                logging.WARNING,
                f"round {record.number}: client {self.names.with_id(client)} is not believed "
                f"(honesty {record.honesty[client]:.3f}){f': {why}' if why else ''}",
            )
        level = logging.WARNING if record.attention else logging.INFO
        self._log(level, f"round {record.number}: {record.status}")

    def _keep(self, record: Round) -> None:
        # a round without an average judges nobody but the clients that it excluded: others keep their earlier vote
        each = record.votes() if record.averaged else dict.fromkeys(record.excluded, 0.0)
        self._votes |= {client: (vote, vote > record.least_vote) for client, vote in each.items()}
        self.history.add(record)
        self._write()

    def _write(self) -> None:
        """Write the files of the history. If the disk is full, the federation goes on without them."""
        try:
            self.history.write(getattr(self.rule, "memory", None))
        except OSError as error:
            self._log(logging.ERROR, f"the history could not be written to {self.history.folder}: {error}")
