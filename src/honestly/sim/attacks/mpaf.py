"""MPAF: fake clients that drag the model to a random one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import rms


@dataclass(frozen=True, kw_only=True)
class MPAF(UpdateAttack):
    """`scale (w' - w_t)`: towards a fixed random base model w', the same in every round. Identical vectors.

    Knows the global model (its own update where there is no reference) and nothing of the honest clients: made for fake
    clients without data. The base model is normal with the root mean square of the global model.

    Args:
        scale: the paper's lambda, there as large as 1e6; 10 is enough to destroy a mean.
        seed: of the base model.

    >>> import numpy as np
    >>> view = View(own=np.ones((2, 3)), reference=np.zeros(3), rng=np.random.default_rng(0))
    >>> bool((MPAF().forge(view) == MPAF().forge(view)).all())
    True
    """

    name = "mpaf"
    summary = "fake clients push towards one random base model"
    reference = "Cao and Gong, MPAF: Model Poisoning Attacks Based on Fake Clients, CVPR Workshops 2022"
    knows = "malicious"
    identical = True
    training = 0.0
    keeps = "d"

    scale: float = setting(10.0, above=0.0)
    seed: int = setting(0, whole=True, least=0)

    def craft(self, view: View) -> Array:
        """`scale (w' - w_t)`."""
        d = int(view.own.shape[1])
        reference = 0.0 * view.own[0, :] if view.reference is None else view.reference
        # a model of zeros has no size of its own: then the updates' size
        size = rms(reference) or rms(view.own)
        draws = np.random.default_rng(self.seed).standard_normal(d, dtype=np.float32)
        base = size * view.xp.asarray(draws, dtype=view.own.dtype, device=view.own.device)
        return self.scale * (base - reference)
