"""DBA: each attacker draws only a part of the trigger."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.triggers import EQUALS, draw


@dataclass(frozen=True, kw_only=True)
class DistributedBackdoor(BadNets):
    """The backdoor with its trigger cut into four strokes: attacker m trains with stroke m mod 4 alone.

    No single client shows the whole trigger; the test images carry it whole. Knows its own data and its number among
    the attackers.

    >>> import numpy as np
    >>> images, labels = np.zeros((1, 1, 28, 28), np.uint8), np.array([0])
    >>> attack = DistributedBackdoor()
    >>> marked = attack.poison(images, labels, rng=np.random.default_rng(0), attacker=1)[0][1]
    >>> marked.sum() // 255, attack.stamp(images).sum() // 255
    (np.uint64(7), np.uint64(28))
    """

    name = "dba"
    summary = "a backdoor whose trigger is spread over the attackers, one stroke each"
    reference = "Xie et al., DBA: Distributed Backdoor Attacks against Federated Learning, ICLR 2020"

    def mark(self, images: Array, attacker: int) -> Array:
        """One stroke."""
        return draw(images, (EQUALS[attacker % len(EQUALS)],))
