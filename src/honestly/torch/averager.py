"""Average step after step, remember suspicion of ranks, and record steps."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, cast

import numpy as np
import torch

from honestly.engine import Pipeline
from honestly.federation import History, Round
from honestly.result import Aggregate, AggregationError
from honestly.rules import Bayesian
from honestly.rules.memory import Memory
from honestly.rules.rule import Mixer, Rule
from honestly.sources.grouping import Buffers
from honestly.torch.members import Group, Members, Word, fault_of
from honestly.torch.reduce import buffers_of, check_timeout, check_verify, eager, extra, finish, question, too_few
from honestly.torch.reduction import FOLLOW, Reduction
from honestly.torch.tensors import Tensors

logger = logging.getLogger("honestly.torch")

#: Files of the history are written again when this many times the time of the last writing has passed.
PATIENCE = 20.0
#: A rank that was refused or accused within so many steps is not news.
RECENT = 100


class RobustAverager:
    """`robust_all_reduce` for a whole training run: it keeps the rule's memory and a record.

    The state of `ddp_hook`; for sharded models see `average_gradients`; for parameters see `average`.

    Args:
        group: the ranks that average; all if None.
        rule: a rule or its name. A rule with a memory is carried from step to step.
        pre: mixers applied before the rule.
        forgetting: above 0, a rank's suspicion is carried over the steps (rule "bayesian"): the share kept in a step.
        shards: the group among which this rank's update is spread (FSDP).
        unusable: what a step without a usable majority does: "raise" an AggregationError on every rank, or give "nan",
            as a plain all-reduce would, so a gradient scaler skips the step.
        verify: slices that another rank checks in a step, on average.
        timeout: for each collective; None for the group's own.
        history: a folder that the first rank writes `rounds.jsonl` and `rounds.csv` to, for `honestly report` and
            `honestly watch`, in which ranks are clients and steps are rounds.
        record_every: record every so many steps, and those at which a rank is excluded or accused that
            was not in the hundred steps before; these are logged, too.
        model: its parameters name the layers in DDP, which passes gradients without names.

    Attributes:
        me: what this rank is called in the results: its global rank, or the number of its replica.
        last: the result of the last step, without its value.
        step: steps so far.
        history: the steps on record, on the first rank of the group.

    Example:
        >>> averager = RobustAverager(rule="bayesian", forgetting=0.9)
        >>> averager.rule.memory.forgetting
        0.9
    """

    def __init__(
        self,
        group: Group = None,
        rule: Rule | str = "bayesian",
        pre: Sequence[Mixer | str] | Mixer | str = (),
        *,
        forgetting: float = 0.0,
        shards: Group = None,
        unusable: Literal["raise", "nan"] = "raise",
        verify: float = 0.0,
        timeout: timedelta | None = None,
        history: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        model: torch.nn.Module | None = None,
    ) -> None:
        self.pipeline = Pipeline.of(rule, pre)
        if forgetting:
            if not isinstance(self.rule, Bayesian):
                raise ValueError(
                    f"forgetting={forgetting}: only the rule 'bayesian' has such a memory, not {self.rule}"
                )
            self.pipeline = self.pipeline.with_rule(memory=Memory(forgetting=forgetting))
        if unusable not in ("raise", "nan"):
            raise ValueError(f'unusable={unusable!r}: use "raise" or "nan"')
        if record_every < 1:
            raise ValueError(f"record_every must be a number of steps >= 1, got {record_every}")
        check_verify(verify)
        check_timeout(timeout)
        self.group, self.shards, self.unusable, self.verify, self.timeout = group, shards, unusable, verify, timeout
        self.step, self.last, self.record_every = 0, cast("Aggregate | None", None), record_every
        self.me = -1
        self.history = History(None)
        self.names: dict[Any, str] = {} if model is None else {p: name for name, p in model.named_parameters()}
        self.members_of: Callable[[torch.device], Members] = self._members
        self._folder = None if history is None else os.fspath(history)
        self._chain = ""  # what the ranks have decided so far: it goes into the next agreement
        self._last_named: dict[Any, int] = {}  # when a rank was last refused or accused
        self._last_write, self._write_seconds = 0.0, 0.0

    @property
    def rule(self) -> Rule:
        """The rule with what it remembers."""
        return self.pipeline.rule

    @eager
    @torch.no_grad()
    def average(
        self,
        tensors: Any,
        *,
        reference: Any = None,
        buffers: Any = "follow",
        size: float | None = None,
        inplace: bool = True,
    ) -> Aggregate:
        """The robust average of these tensors, which is written into them; see `robust_all_reduce`."""
        own, fault, extras, apart = None, "", (None, None), FOLLOW
        try:
            own, apart = Tensors.of(tensors), buffers_of(buffers)
            extras = (extra("reference", reference, own, None), extra("root", self.rule.root, own, None))
        except Exception as error:  # the others must not wait for a rank that failed
            fault = fault_of(error)
        reduction = self.start(own, fault, size=size, reference=reference is not None, buffers=apart)
        assert own is not None, "a fault is raised by start"
        reduction.send(own, *extras)
        targets = own.local if inplace else tuple(torch.empty_like(x) for x in own.local)
        out = self.finish(reduction, targets, inplace=inplace)
        return replace(out, value=tensors if inplace else own.rebuilt(targets))

    def _members(self, device: torch.device) -> Members:
        return Members(self.group, self.shards, device, self.timeout)

    def start(
        self,
        own: Tensors | None,
        fault: str = "",
        *,
        size: float | None = None,
        reference: bool = False,
        buffers: Buffers = FOLLOW,
    ) -> Reduction:
        """A reduction that all ranks have agreed on; tensors are to be sent to it."""
        device = torch.device("cpu") if own is None else own.device
        members = self.members_of(device)
        request = question(self.pipeline, buffers, verify=self.verify, reference=reference)
        request = f"{request}\nstep {self.step} after the decisions {self._chain or 'none'}"
        if own is not None and not own.local:
            fault = "tensors is empty"
        words = "" if own is None else own.words(local=True, shards=self.shards)
        common = "" if own is None else own.words(local=False)
        word = Word(f"{request}\n{words}", fault or too_few(self.pipeline, members.K), size)
        sizes = members.agree(word, f"{request}\n{common}")
        return Reduction(members, self.pipeline, sizes, buffers=buffers, record=self.verify > 0)

    def finish(self, reduction: Reduction, targets: Sequence[torch.Tensor], *, inplace: bool = True) -> Aggregate:
        """Decide and gather; remember and record. The value of what is returned is not set."""
        began = time.perf_counter()
        self.step += 1
        try:
            out = replace(finish(reduction, targets, self.verify, inplace=inplace), value=None)
        except AggregationError as error:
            self._keep(reduction.members, None, error, time.perf_counter() - began)
            if self.unusable == "raise":
                raise
            for target in targets:
                target.fill_(torch.nan)
            return self._nothing(reduction.members, error)
        self.pipeline = self.pipeline.after(out.diagnostics)
        self.last, self.me = out, reduction.members.ids[reduction.members.me]
        # in float32: ranks whose processors, or whose compilers, differ decide alike but for the last bits
        weights = b"" if out.weights is None else out.weights.astype(np.float32).tobytes()
        self._chain = hashlib.sha256(self._chain.encode() + weights + repr(out.excluded).encode()).hexdigest()[:16]
        self._keep(reduction.members, out, None, time.perf_counter() - began)
        return out

    def average_gradients(self, parameters: torch.nn.Module | Iterable[torch.nn.Parameter]) -> Aggregate:
        """The robust average of the gradients over the replicas, written into `.grad`; for FSDP2 (DTensors), too.

        A parameter without a gradient on this rank counts as one whose gradient is 0: other ranks may have one.
        """
        if isinstance(parameters, torch.nn.Module):
            named = dict(parameters.named_parameters())
        else:
            named = {f"[{i}]": parameter for i, parameter in enumerate(parameters)}
        trainable = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        for parameter in trainable.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = {name: cast("torch.Tensor", parameter.grad) for name, parameter in trainable.items()}
        return self.average(gradients, reference=0)

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Average the optimiser's gradients: `optimizer.register_step_pre_hook(averager.before_step)`."""
        self.average_gradients([parameter for group in optimizer.param_groups for parameter in group["params"]])

    def note(self, metrics: Mapping[str, float]) -> None:
        """Add measurements (`loss`, `accuracy`) to this step, if it is recorded."""
        if self.history and self.history[-1].number == self.step:
            self.history[-1].evaluation = {**self.history[-1].evaluation, **metrics}

    def close(self) -> None:
        """Write what has not been written yet."""
        self._write()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the memory, and how far the ranks have come."""
        memory: Any = getattr(self.rule, "memory", None)
        saved = memory.to_dict() if hasattr(memory, "to_dict") else None
        return {"step": self.step, "chain": self._chain, "memory": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint."""
        memory: Any = getattr(self.rule, "memory", None)
        if state["memory"] is not None and memory is not None:
            self.pipeline = self.pipeline.with_rule(memory=type(memory).from_dict(state["memory"]))
        self.step, self._chain = int(state["step"]), str(state["chain"])

    def _nothing(self, members: Members, error: AggregationError) -> Aggregate:
        from honestly.result import Status

        reasons = error.reasons
        return Aggregate(
            value=None, weights=None, honesty=None, excluded=tuple(reasons), reasons=reasons, clients=members.ids,
            status=Status.CLOSED_FORM, diagnostics={"unusable": str(error)},
        )  # fmt: skip

    def _keep(self, members: Members, out: Aggregate | None, error: AggregationError | None, seconds: float) -> None:
        """A record of the step on the first rank, if it is its turn or something has changed."""
        if members.me or (members.shards is not None and torch.distributed.get_rank(members.shards)):
            return
        record = _record(self.step, members, out, error)
        record.seconds = seconds
        named = {rank: f"refused: {reason}" for rank, reason in record.excluded.items()}
        for rank in record.accused:
            why = record.accusations.get(rank)
            named[rank] = f"is not believed: {why}" if why else "is not believed"
        kinds = {rank: (rank, rank in record.excluded) for rank in named}
        new = [rank for rank in named if self.step - self._last_named.get(kinds[rank], -RECENT) >= RECENT]
        self._last_named |= dict.fromkeys(kinds.values(), self.step)
        for rank in new:
            logger.warning("step %d: %s %s", self.step, rank, named[rank])
        if self._folder is None or not (new or self.step % self.record_every == 0):
            return
        if self.history.folder is None:
            try:
                self.history = History(self._folder)
            except OSError as trouble:  # the other ranks wait for this one
                logger.error("the history could not be written to %s: %s", self._folder, trouble)
                return
        self.history.add(record)
        if time.monotonic() - self._last_write > PATIENCE * self._write_seconds:
            self._write()

    def _write(self) -> None:
        """Write the files; a full disk does not stop the training."""
        began = time.monotonic()
        try:
            self.history.write(getattr(self.rule, "memory", None))
        except OSError as error:
            logger.error("the history could not be written to %s: %s", self._folder, error)
        self._last_write, self._write_seconds = time.monotonic(), time.monotonic() - began


def _record(step: int, members: Members, out: Aggregate | None, error: AggregationError | None) -> Round:
    """The step in the form of a federation's round; ranks are its clients."""
    kind = "rank" if members.shards is None else "replica"
    names: dict[Any, str] = {k: f"{kind} {k}" if isinstance(k, int) else str(k) for k in members.ids}
    if out is None:
        reasons: dict[Any, str] = {} if error is None else {names[k]: text for k, text in error.reasons.items()}
        return Round(step, tuple(names.values()), None, None, reasons, True, f"no average: {error}", True)

    def by_name(values: Any) -> dict[Any, float] | None:
        return None if values is None else dict(zip(names.values(), map(float, values), strict=True))

    return Round(
        step,
        tuple(names.values()),
        by_name(out.honesty),
        by_name(out.weights),
        {names[k]: text for k, text in out.reasons.items()},
        False,
        str(out.status),
        not out.status.ok,
        verdicts=dict(zip(names.values(), out.verdicts, strict=True)),
        accusations={names[k]: why for k, why in out.accusations.items()},
    )
