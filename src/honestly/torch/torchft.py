"""torchft: a `Manager` whose all-reduce tells which replicas to believe (extra `[torchft]`).

torchft keeps training going when replicas crash and come back, but trusts what they send. `RobustManager` is its
`Manager` in every other respect, so its `LocalSGD`, `DiLoCo` and `DistributedDataParallel` take it as it is.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

if find_spec("torchft") is None:
    raise ModuleNotFoundError("honestly.torch.torchft needs torchft: pip install 'honestly[torchft]'", name="torchft")

from torch.distributed import AllreduceOptions, AllToAllOptions, ReduceOp
from torch.distributed.distributed_c10d import AllgatherOptions  # pyright: ignore[reportPrivateImportUsage]
from torchft import Manager
from torchft.work import _DummyWork

from honestly.torch.averager import RobustAverager
from honestly.torch.members import Group, Members


class RobustManager(Manager):
    """torchft's `Manager`; averages of float tensors are robust.

    Args:
        arguments: those of `torchft.Manager`.
        averager: with the rule, memory and history; `RobustAverager()` if None. Replicas are known by their
            `replica_id`, so one that comes back is remembered.

    torchft asks for one average per parameter or bucket, and each is decided by itself: use
    `DiLoCo(..., use_bucketization=True)` with a bucket that holds all, so a replica is judged by all it sends. A
    spare replica sends NaN, and so has no vote. The quorum is always synchronous: a replica that comes back gets the
    others' state, and what they remember, before it takes part.
    """

    def __init__(self, *arguments: Any, averager: RobustAverager | None = None, **more: Any) -> None:
        if more.setdefault("use_async_quorum", False):
            raise ValueError(
                "use_async_quorum=True: a replica that is behind cannot decide as the others do; pass False"
            )
        self.averager = RobustAverager() if averager is None else averager
        self.averager.members_of = self._members
        self._known: tuple[Any, tuple[str, ...]] = (None, ())
        super().__init__(*arguments, **more)
        self.register_state_dict_fn("honestly", self.averager.load_state_dict, self.averager.state_dict)

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: Any = ReduceOp.AVG) -> Any:
        """The robust average, written into the tensor. An error is kept for `should_commit`, which skips the step."""
        if reduce_op != ReduceOp.AVG or not torch.is_floating_point(tensor):
            return super().allreduce(tensor, should_quantize, reduce_op)
        if self.errored():
            return _DummyWork(tensor)
        self.wait_quorum()
        if not self.is_participating():
            tensor.fill_(torch.nan)
        try:
            self.averager.average(tensor)
        except Exception as error:  # a step that torchft skips, as it does when a replica crashes
            self._logger.exception(f"the robust average failed -- skipping the step: {error}")
            self.report_error(error)
        return _DummyWork(tensor)

    def _members(self, device: torch.device) -> Members:
        group: Any = getattr(self._pg, "parent", self._pg)
        members = _Quorum(group, device, self._timeout)
        if self._known[0] is not group:  # a new quorum: who is who
            own = str(self._replica_id).split(":")[0]
            self._known = (group, tuple(members.tell(own)))
        members.ids = self._known[1]
        return members


class _Quorum(Members):
    """The replicas of torchft's present process group, which torch.distributed does not know."""

    def __init__(self, group: Any, device: torch.device, timeout: Any) -> None:
        self.group, self.shards, self.timeout = group, None, timeout
        self.K, self.me = group.size(), group.rank()
        self.ranks = tuple(range(self.K))
        self.ids = self.ranks
        self.device = torch.device("cpu") if "gloo" in group.name() else device

    def ranks_of(self, group: Group) -> list[int]:
        return list(self.ranks)

    def all_to_all(self, out: torch.Tensor, values: torch.Tensor, mine: list[int], theirs: list[int]) -> Any:
        return self.group.alltoall_base(out, values, mine, theirs, AllToAllOptions())

    def all_gather(self, out: torch.Tensor, values: torch.Tensor, group: Any) -> Any:
        return self.group.allgather_into_tensor_coalesced([out], [values], AllgatherOptions())

    def all_reduce(self, total: torch.Tensor, group: Any) -> Any:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        return self.group.allreduce([total], options)
