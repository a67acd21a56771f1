"""Mimic: over-represent one honest client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import gram, mean, principal


@dataclass(frozen=True, kw_only=True)
class Mimic(UpdateAttack):
    """All attackers copy the honest client that lies farthest out along the direction of largest honest variance.

    Each update is honest; only the number of copies is not. The original estimates the direction over several rounds;
    here it is computed in each round from that round's updates. Knows all honest updates; identical vectors.

    Args:
        target: index of the honest client to copy; None for the one farthest out.

    >>> import numpy as np
    >>> others = np.array([[0.0, 0.1], [0.1, 0.0], [9.0, 0.0]])
    >>> Mimic().forge(View(own=np.ones((1, 2)), others=others, rng=np.random.default_rng(0)))
    array([[9., 0.]])
    """

    name = "mimic"
    summary = "copies of the honest client farthest out in the direction of largest variance"
    reference = "Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022"
    knows = "all"
    identical = True
    training = 0.0
    keeps = "K d"

    target: int | None = setting(None, whole=True, least=0)

    def craft(self, view: View) -> Array:
        """The copied update."""
        if self.target is not None:
            return view.honest[self.target % int(view.honest.shape[0]), :]
        centred = view.honest - mean(view.honest)[None, :]
        # C C^T = U S U^T: the projection of client i on the first principal direction is sqrt(s_1) u_i1
        return view.honest[int(np.abs(principal(gram(centred))).argmax()), :]
