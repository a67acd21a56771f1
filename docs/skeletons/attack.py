"""Stubborn: the largest coordinates reversed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting


@dataclass(frozen=True, kw_only=True)
class Stubborn(UpdateAttack):
    """Every attacker sends its own update with the largest coordinates reversed and enlarged. Knows its own update.

        g_ki = -gamma u_ki where |u_ki| is among the largest `share` of |u_k|, else u_ki

    Args:
        share: how many of the coordinates are reversed, in (0, 1].
        gamma: how much larger they become.

    Example:
        >>> import numpy as np
        >>> Stubborn(share=0.5).forge(View(own=np.array([[1.0, -3.0]]), rng=np.random.default_rng(0)))
        array([[ 1., 12.]])

    Reference: an example; name the paper here.
    """

    share: float = setting(0.1, above=0, most=1)
    gamma: float = setting(4.0, above=0)

    name: ClassVar[str] = "stubborn"
    summary: ClassVar[str] = "the largest coordinates reversed"
    reference: ClassVar[str] = "an example"

    def craft(self, view: View) -> Array:
        """(M, d), one row for each attacker; one (d,) vector if all send the same."""
        xp = view.xp  # NumPy, PyTorch, ...: whatever the updates are
        size = xp.abs(view.own)
        count = min(round((1 - self.share) * size.shape[1]), size.shape[1] - 1)
        threshold = xp.sort(size, axis=1)[:, count][:, None]
        return xp.where(size >= threshold, -self.gamma * view.own, view.own)
