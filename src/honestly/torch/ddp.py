"""DistributedDataParallel: one decision for all buckets of a step.

DDP hands its gradients over in buckets, as they become ready. A decision per bucket would judge a rank by a part of its
gradient only, and a decision of the step before would let a rank that turns bad have one step free. So the slices of a
bucket are exchanged at once, while the backward pass goes on, and when the last one is in, the ranks decide on all.
"""

# No `from __future__ import annotations`: DDP reads the hook's annotations and wants the classes themselves.

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from honestly.kernels.torch_private import call_after_backward
from honestly.result import AggregationError
from honestly.torch.averager import RobustAverager
from honestly.torch.reduce import eager
from honestly.torch.reduction import Reduction
from honestly.torch.tensors import Tensors
from honestly.torch.verify import VerificationError


class _BackwardPass:
    """The buckets of one backward pass."""

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.buffers: list[torch.Tensor] = []
        self.futures: list[torch.futures.Future[torch.Tensor]] = []


_steps: WeakKeyDictionary[RobustAverager, _BackwardPass] = WeakKeyDictionary()


@eager
@torch.no_grad()
def ddp_hook(
    state: RobustAverager,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook: `model.register_comm_hook(RobustAverager(...), ddp_hook)`.

    The gradients of all ranks become their robust average, the same as `robust_all_reduce` of all of them.
    """
    if bucket.index() == 0:
        _steps.pop(state, None)  # a backward pass that failed half-way leaves its buckets behind
    step = _steps.get(state)
    gradients = [gradient.reshape(-1) for gradient in bucket.gradients()]
    first = 0 if step is None else len(step.reduction.local)
    names = [state.names.get(p, f"[{first + i}]") for i, p in enumerate(bucket.parameters())]
    own = Tensors.of(dict(zip(names, gradients, strict=True)))
    if step is None:
        step = _steps[state] = _BackwardPass(state.start(own, reference=True))
    step.reduction.send(own, own.zeros(), waiting=False)
    buffer = bucket.buffer()
    step.futures.append(torch.futures.Future(devices=None if buffer.device.type == "cpu" else [buffer.device]))
    step.buffers.append(buffer)
    if bucket.is_last():
        del _steps[state]
        try:
            state.finish(step.reduction, step.reduction.local)
        except (AggregationError, VerificationError) as error:
            for filled in step.buffers:
                filled.fill_(torch.nan)
            _raise_after_backward(error)
        for future, filled in zip(step.futures, step.buffers, strict=True):
            future.set_result(filled)
    return step.futures[-1]


def _raise_after_backward(error: Exception) -> None:
    """Raise the error when DDP has finished with the gradients: after one that is raised earlier, the model is lost."""

    def raise_error() -> None:
        raise error

    call_after_backward(lambda: call_after_backward(raise_error))  # DDP is going to add its own after the first
