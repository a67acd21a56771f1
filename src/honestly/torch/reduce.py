"""`robust_all_reduce`: an all-reduce that tells which ranks to believe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from numbers import Real
from typing import Any, Literal, TypeVar, cast, overload

import torch
import torch.distributed as dist

from honestly.engine import Pipeline
from honestly.kernels.torch_private import timeout_of
from honestly.result import Aggregate
from honestly.rules.rule import Mixer, Rule
from honestly.sources.grouping import Buffers
from honestly.torch.members import Group, Members, Word, fault_of, stage
from honestly.torch.reduction import FOLLOW, Reduction
from honestly.torch.tensors import Tensors
from honestly.torch.verify import verify_slices

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """Exclude it from compilation: what it does depends on the values."""
    return cast("F", torch.compiler.disable(function))


class Pending:
    """A robust all-reduce that runs while the rank does something else."""

    def __init__(self, future: Future[tuple[Aggregate, Any]]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Aggregate:
        """The result; an error of the reduction is raised here."""
        out, event = self._future.result(timeout)
        if event is not None:
            torch.accelerator.current_stream().wait_event(event)
        return out


@overload
def robust_all_reduce(
    tensors: Any,
    group: Group = None,
    rule: Rule | str = ...,
    pre: Sequence[Mixer | str] | Mixer | str = ...,
    *,
    reference: Any = ...,
    layers: Sequence[int] | None = ...,
    buffers: Any = ...,
    size: float | None = ...,
    shards: Group = ...,
    inplace: bool = ...,
    async_op: Literal[False] = ...,
    verify: float = ...,
    timeout: timedelta | None = ...,
) -> Aggregate: ...
@overload
def robust_all_reduce(
    tensors: Any,
    group: Group = None,
    rule: Rule | str = ...,
    pre: Sequence[Mixer | str] | Mixer | str = ...,
    *,
    async_op: Literal[True],
    reference: Any = ...,
    layers: Sequence[int] | None = ...,
    buffers: Any = ...,
    size: float | None = ...,
    shards: Group = ...,
    inplace: bool = ...,
    verify: float = ...,
    timeout: timedelta | None = ...,
) -> Pending: ...
@eager
def robust_all_reduce(
    tensors: Any,
    group: Group = None,
    rule: Rule | str = "bayesian",
    pre: Sequence[Mixer | str] | Mixer | str = (),
    *,
    reference: Any = None,
    layers: Sequence[int] | None = None,
    buffers: Any = "follow",
    size: float | None = None,
    shards: Group = None,
    inplace: bool = False,
    async_op: bool = False,
    verify: float = 0.0,
    timeout: timedelta | None = None,
) -> Aggregate | Pending:
    """Return, on every rank, the robust average of the group's tensors, and say which ranks it believed.

    Each rank gets a slice of everybody's tensors; all add up their Gram matrices, decide alike, average their slice and
    gather the result: the bytes of a ring all-reduce. A rank with NaN or infinite values is excluded and named.

    Args:
        tensors: this rank's update: a tensor, a list or a mapping of tensors (float16, bfloat16, float32, float64;
            DTensors too), of the same names, shapes and dtypes on every rank.
        group: the ranks that average; all if None.
        rule: a rule or its name, see `hn.list_rules()`; the same on every rank.
        pre: mixers applied before the rule.
        reference: what the updates are measured from: 0 for gradients and other differences, the previous model (in
            the same container, the same on every rank) for models, None if there is nothing. With it, rules can tell a
            rank that opposes the others from one that is merely far away.
        layers: the sizes of the tensors in `tensors`, if that is one flat tensor.
        buffers: which tensors are not judged but averaged with the weights found on the others: "follow" knows them by
            their names (running_mean, ...), "judge" judges all; or their names.
        size: the number of examples that this rank reports, for rules that use sizes.
        shards: for updates that are spread over several ranks (FSDP): the group among which this rank's update is.
            All shards of all ranks decide together.
        inplace: write the result into `tensors`; `value` is then `tensors`.
        async_op: return a `Pending` at once. A process group of its own is made at the first such call.
        verify: how many slices of the result, on average, another rank computes again and compares; see the how-to.
        timeout: for each collective; None for the group's own.

    Returns:
        An `Aggregate`: `value` in the container of `tensors`; `honesty`, `weights`, `excluded` and `reasons` by rank:
        `clients` are the global ranks of the group (with `shards`, the numbers of the replicas).

    Raises:
        DisagreementError: the ranks asked for different things, or one for something impossible. On every rank.
        AggregationError: no majority of the ranks is usable. On every rank.
        RankError: a rank died or hangs.
        VerificationError: a check found a wrong slice. On every rank.
    """

    def work(group: Group, shards: Group) -> Aggregate:
        return _reduce(tensors, group, rule, pre, reference, layers, buffers, size, shards, inplace, verify, timeout)

    return _later(work, group, shards, tensors) if async_op else work(group, shards)


@torch.no_grad()
def _reduce(
    tensors: Any,
    group: Group,
    rule: Any,
    pre: Any,
    reference: Any,
    layers: Any,
    buffers: Any,
    size: float | None,
    shards: Group,
    inplace: bool,
    verify: float,
    timeout: timedelta | None,
) -> Aggregate:
    own, fault, pipeline, extras, apart = None, "", None, (None, None), FOLLOW
    try:
        own = Tensors.of(tensors, layers)
        if not own.local:
            raise ValueError("tensors is empty")
        check_verify(verify)
        check_timeout(timeout)
        pipeline, apart = Pipeline.of(rule, pre), buffers_of(buffers)
        extras = (extra("reference", reference, own, layers), extra("root", pipeline.rule.root, own, layers))
    except Exception as error:  # the others must not wait for a rank that failed
        fault = fault_of(error)
    device = torch.device("cpu") if own is None else own.device
    members = Members(group, shards, device, None if fault else timeout)
    fault = fault or too_few(pipeline, members.K)
    request = "" if pipeline is None else question(pipeline, apart, verify=verify, reference=reference is not None)
    words = "" if own is None else own.words(local=True, shards=shards)
    common = "" if own is None else own.words(local=False)
    sizes = members.agree(Word(f"{request}\n{words}", fault, size), f"{request}\n{common}")
    assert own is not None, "a fault is raised by agree"
    assert pipeline is not None
    reduction = Reduction(members, pipeline, sizes, buffers=apart, record=verify > 0)
    reduction.send(own, *extras)
    targets = own.local if inplace else tuple(torch.empty_like(x) for x in own.local)
    out = finish(reduction, targets, verify, inplace=inplace)
    return replace(out, value=tensors if inplace else own.rebuilt(targets))


def finish(reduction: Reduction, targets: Sequence[torch.Tensor], verify: float, *, inplace: bool) -> Aggregate:
    """Decide, gather the result into the targets, and check what is to be checked."""
    out, own = reduction.decide()
    sent = [x.clone() for x in reduction.local] if verify and inplace else reduction.local
    reduction.gather(own, targets)
    if verify:
        out = replace(out, diagnostics={**out.diagnostics, **verify_slices(reduction, sent, targets, verify)})
    return out


def too_few(pipeline: Pipeline | None, K: int) -> str:
    """Why these steps cannot work with K ranks; "" if they can."""
    try:
        if pipeline is not None:
            pipeline.check(K)
    except ValueError as error:
        return str(error).replace("clients", "ranks")
    return ""


def question(pipeline: Pipeline, buffers: Buffers, *, verify: float, reference: bool) -> str:
    """What is asked for, apart from the tensors, in lines that must be the same on all ranks."""
    about = f"{'with' if reference else 'without'} a reference, verify {verify}"
    names = "" if buffers.names is None else f" {sorted(buffers.names)}"
    return f"rule {pipeline}\n{about}, buffers {buffers.mode}{names}"


def buffers_of(choice: Any) -> Buffers:
    """Which tensors are not judged. Raises ValueError if that is unknown."""
    buffers = Buffers.of(choice)
    if buffers.mode == "ignore":
        raise ValueError("buffers='ignore' is not supported here: leave the buffers out of the tensors instead")
    return buffers


def extra(name: str, tensors: Any, like: Tensors, layers: Sequence[int] | None) -> Tensors | None:
    """The reference or root, of the layout of the updates; 0 stands for zeros."""
    if tensors is None:
        return None
    if isinstance(tensors, int | float) and tensors == 0:
        return like.zeros()
    try:
        return Tensors.of(tensors, layers).like(like, name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_verify(verify: float) -> None:
    """Raise ValueError unless it is a number of slices."""
    if not isinstance(verify, Real) or not 0.0 <= verify < float("inf"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"verify must be a number >= 0, the mean number of slices to check per call; got {verify!r}")


def check_timeout(timeout: timedelta | None) -> None:
    """Raise ValueError unless it is a duration, or None for the group's own."""
    if timeout is not None and not isinstance(timeout, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"timeout is {timeout!r}; expected a datetime.timedelta, such as timedelta(seconds=30)")


_lock = threading.Lock()
_private: dict[Any, tuple[Any, ThreadPoolExecutor]] = {}


def _own(group: Group) -> tuple[Any, ThreadPoolExecutor]:
    """A group of the same ranks and a thread for it: the collectives of two threads would meet in any order."""
    key: Any = dist.group.WORLD if group is None else group
    with _lock:
        if key not in _private:
            with stage("the first asynchronous all-reduce", ranks := dist.get_process_group_ranks(key)):
                own = dist.new_group(
                    ranks, timeout_of(key), str(dist.get_backend_config(key)), use_local_synchronization=True
                )
            _private[key] = own, ThreadPoolExecutor(1, thread_name_prefix="honestly-all-reduce")
        return _private[key]


def _later(work: Callable[[Group, Group], Aggregate], group: Group, shards: Group, tensors: Any) -> Pending:
    """Run it in a thread; on an accelerator, on a stream of its own."""
    own, pool = _own(group)
    parts = None if shards is None else _own(shards)[0]
    listed: Any = cast("Mapping[Any, Any]", tensors).values() if isinstance(tensors, Mapping) else tensors
    first: Any = tensors if isinstance(tensors, torch.Tensor) else next(iter(listed), None)
    if not isinstance(first, torch.Tensor) or first.device.type == "cpu":
        return Pending(pool.submit(lambda: (work(own, parts), None)))
    device, ready = first.device, torch.accelerator.current_stream().record_event()

    def run() -> tuple[Aggregate, Any]:
        with torch.Stream(device) as stream:
            stream.wait_event(ready)
            return work(own, parts), stream.record_event()

    return Pending(pool.submit(run))
