"""Stochastic gradient descent on flat rows: PyTorch's `SGD` for all clients in a few operations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SGD:
    """`g += wd w; v = mu v + g; w -= lr (g + mu v)` with Nesterov momentum, `w -= lr v` without.

    Identical to `torch.optim.SGD`: a fresh optimiser is one whose v is 0.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = True

    def step(self, w: Tensor, g: Tensor, v: Tensor, *, rate: Tensor | None = None, keep: Tensor | None = None) -> None:
        """Move the rows of ``w`` (K, d) in place; ``g`` is overwritten.

        Args:
            w: parameters.
            g: gradients.
            v: momentum, changed in place.
            rate: (K, 1) 1 for a client with work and 0 for one that is finished; None means 1 for all.
            keep: (K, 1) 0 where the optimiser starts afresh, else 1; None means 1 for all.
        """
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)
        if self.momentum:
            v.mul_(self.momentum if keep is None else keep * self.momentum).add_(g)
            g = g.add_(v, alpha=self.momentum) if self.nesterov else v
        if rate is None:
            w.sub_(g, alpha=self.lr)
        else:
            w.addcmul_(g, rate, value=-self.lr)
