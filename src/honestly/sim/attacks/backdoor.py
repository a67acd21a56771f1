"""The paper's backdoor: BadNets with the trigger "==" and local training in two phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from honestly.sim.attacks.attack import Array, Backdoor, Phase, setting
from honestly.sim.attacks.triggers import EQUALS, draw


@dataclass(frozen=True, kw_only=True)
class BadNets(Backdoor):
    """Copies of class ``source`` with a trigger, labelled ``target``, are added to the data. Knows its own data.

    Local training has two phases, each with a fresh optimiser: half of the epochs on the poisoned copies alone, then
    the other half on clean and poisoned data, which restores the accuracy on clean images. A client without an image of
    class ``source`` has nothing to poison and trains honestly in the second phase.

    Args:
        source: the class that gets the trigger.
        target: the label that it gets.

    >>> import numpy as np
    >>> images, labels = np.zeros((3, 1, 28, 28), np.uint8), np.array([0, 5, 0])
    >>> images, labels, mask = BadNets().poison(images, labels, rng=np.random.default_rng(0))
    >>> labels, images[3].sum() // 255
    (array([0, 5, 0, 8, 8]), np.uint64(28))
    """

    name = "backdoor"
    summary = 'a trigger "==" on class 0 makes the model say 8; two training phases'
    reference = "Gu et al., BadNets, 2017; the paper, appendix"

    source: int = setting(0, whole=True, least=0)
    target: int = setting(8, whole=True, least=0)

    def __post_init__(self) -> None:
        """Check the bounds."""
        super().__post_init__()
        if self.source == self.target:
            raise ValueError(
                f"{type(self).__name__}: target must be another class than source = {self.source}, got {self.target}"
            )

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Half of the epochs on poisoned samples alone, the rest on everything (one epoch: on everything)."""
        return tuple(p for p in (Phase(epochs // 2, "poisoned"), Phase(epochs - epochs // 2)) if p.epochs > 0)

    def victims(self, images: Array, labels: Array) -> Array:
        """Every image of class ``source``."""
        return labels == self.source

    def stamp(self, images: Array) -> Array:
        """The whole trigger."""
        return draw(images, EQUALS)

    def mark(self, images: Array, attacker: int) -> Array:
        """The trigger that this attacker draws on its own images: the whole one."""
        return self.stamp(images)

    def poison(
        self, images: Array, labels: Array, *, rng: np.random.Generator, attacker: int = 0
    ) -> tuple[Array, Array, Array]:
        """The clean data followed by marked copies of the victims with label ``target``."""
        xp = array_namespace(images)
        chosen = self.victims(images, labels)
        copies = self.mark(images[chosen, ...], attacker)
        n = int(copies.shape[0])
        target = xp.full((n,), self.target, dtype=labels.dtype, device=labels.device)
        mask = xp.arange(int(labels.shape[0]) + n, device=labels.device) >= int(labels.shape[0])
        return xp.concat([images, copies], axis=0), xp.concat([labels, target], axis=0), mask
