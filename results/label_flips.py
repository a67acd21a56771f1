"""Two readings of the label flip that could lie behind the published numbers, for `label-flip.toml`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.label_flip import LabelFlip


@dataclass(frozen=True, kw_only=True)
class OneClass(LabelFlip):
    """`y -> 0`: what is left where 0 is replaced by 1, then 1 by 2, ..., then 9 by 0 in the same labels."""

    name = "one_class"
    summary = "trains on labels that are all class 0"

    def poison(
        self, images: Array, labels: Array, *, rng: np.random.Generator, attacker: int = 0
    ) -> tuple[Array, Array, Array]:
        """The same images, all of class 0; all are poisoned."""
        images, flipped, mask = super().poison(images, labels, rng=rng, attacker=attacker)
        return images, flipped * 0, mask


@dataclass(frozen=True, kw_only=True)
class Scaled(LabelFlip, UpdateAttack):
    """`g_k -> scale g_k` after training on labels moved to the next class. Knows its own data and update.

    Args:
        scale: the factor, which the authors' code has, too; their template sets it to 1.
    """

    name = "scaled_label_flip"
    summary = "label flip whose update is sent times scale"

    scale: float = setting(4.0, above=0.0)

    def craft(self, view: View) -> Array:
        """`scale g_k`."""
        return self.scale * view.own
