"""NaN and Inf: updates with numbers that are not finite, which an averaging server must not pass on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting


@dataclass(frozen=True, kw_only=True)
class _NotFinite(UpdateAttack):
    """The attacker's own update with a few coordinates replaced."""

    value: ClassVar[float]

    coordinates: int = setting(1, whole=True, least=1)

    def craft(self, view: View) -> Array:
        """Each attacker spoils coordinates of its own choice."""
        forged = view.xp.asarray(view.own, copy=True)
        d = int(view.own.shape[1])
        for k in range(view.M):
            for j in view.rng.choice(d, size=min(self.coordinates, d), replace=False):
                forged[k, int(j)] = self.value
        return forged


@dataclass(frozen=True, kw_only=True)
class NotANumber(_NotFinite):
    """The honest update, but with NaN in a few random coordinates. Knows its own update.

    Args:
        coordinates: how many; one is enough.

    >>> import numpy as np
    >>> int(np.isnan(NotANumber().forge(View(own=np.ones((1, 9)), rng=np.random.default_rng(0)))).sum())
    1
    """

    name = "nan"
    summary = "the honest update with NaN in a few coordinates"
    value = math.nan


@dataclass(frozen=True, kw_only=True)
class Infinite(_NotFinite):
    """The honest update, but with Inf in a few random coordinates. Knows its own update.

    Args:
        coordinates: how many; one is enough.

    >>> import numpy as np
    >>> int(np.isinf(Infinite().forge(View(own=np.ones((1, 9)), rng=np.random.default_rng(0)))).sum())
    1
    """

    name = "inf"
    summary = "the honest update with Inf in a few coordinates"
    value = math.inf
