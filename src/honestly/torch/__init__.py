"""A robust all-reduce for PyTorch: data-parallel training that tells which ranks to believe (extra `[torch]`).

`robust_all_reduce` replaces `dist.all_reduce`; `RobustAverager` remembers the ranks from step to step, for
`ddp_hook`, for sharded models and for `RobustOuterOptimizer` (DiLoCo, local SGD).
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError("honestly.torch needs PyTorch: pip install 'honestly[torch]'", name="torch")

from honestly.torch.averager import RobustAverager
from honestly.torch.ddp import ddp_hook
from honestly.torch.members import DisagreementError, RankError
from honestly.torch.outer import RobustOuterOptimizer
from honestly.torch.reduce import Pending, robust_all_reduce
from honestly.torch.verify import VerificationError

__all__ = [
    "DisagreementError",
    "Pending",
    "RankError",
    "RobustAverager",
    "RobustOuterOptimizer",
    "VerificationError",
    "ddp_hook",
    "robust_all_reduce",
]
