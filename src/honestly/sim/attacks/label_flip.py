"""Label flip: train honestly on wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from honestly.sim.attacks.attack import Array, DataAttack, setting


@dataclass(frozen=True, kw_only=True)
class LabelFlip(DataAttack):
    """`y -> (y + shift) mod classes` on all local labels. Knows its own data.

    Args:
        shift: how far each label moves; the paper's 1.
        classes: number of classes.

    >>> import numpy as np
    >>> images = np.zeros((3, 1, 2, 2), np.uint8)
    >>> LabelFlip().poison(images, np.array([0, 5, 9]), rng=np.random.default_rng(0))[1]
    array([1, 6, 0])
    """

    name = "label_flip"
    summary = "trains on labels moved to the next class"
    reference = "Biggio et al., ICML 2012; the paper, shift = 1"

    shift: int = setting(1, whole=True)
    classes: int = setting(10, whole=True, least=2)

    def __post_init__(self) -> None:
        """Check the bounds."""
        super().__post_init__()
        if self.shift % self.classes == 0:
            raise ValueError(f"LabelFlip: shift must not be a multiple of classes = {self.classes}, got {self.shift}")

    def poison(
        self, images: Array, labels: Array, *, rng: np.random.Generator, attacker: int = 0
    ) -> tuple[Array, Array, Array]:
        """The same images with every label moved; all are poisoned."""
        xp = array_namespace(labels)
        mask = xp.ones(labels.shape, dtype=xp.bool, device=labels.device)
        return images, (labels + self.shift % self.classes) % self.classes, mask
