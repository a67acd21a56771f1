"""Neurotoxin: a backdoor in the coordinates that honest clients hardly use, so they do not overwrite it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import keep_model, last_change, pieces, smallest


@dataclass(frozen=True, kw_only=True)
class Neurotoxin(BadNets, UpdateAttack):
    """The backdoor's update without the coordinates that the global model changed most in the last round.

        S = bottom (1 - share) of |w^t - w^(t-1)|, layer by layer;    g_k -> P_S(g_k)

    What is planted there outlives the attack. Knows its own data and the global models. Convention: the original
    projects every gradient step of local training; this attack projects the resulting update. In the first round there
    is nothing to avoid.

    Args:
        share: the part of each layer that is avoided; the authors avoid 1 to 5 %.

    >>> import numpy as np
    >>> seen = {"memory": {"model": np.zeros(4)}, "reference": np.array([9.0, 1.0, 0.0, 0.0])}
    >>> Neurotoxin(share=0.25).forge(View(own=np.ones((1, 4)), rng=np.random.default_rng(0), **seen))
    array([[0., 1., 1., 1.]])
    """

    name = "neurotoxin"
    summary = "the backdoor in the coordinates that the global model changed least"
    reference = "Zhang et al., Neurotoxin: Durable Backdoors in Federated Learning, ICML 2022"
    keeps = "d"

    share: float = setting(0.05, least=0.0, below=1)

    def craft(self, view: View) -> Array:
        """The update projected on the bottom coordinates."""
        change = last_change(view)
        if change is None:
            return view.own
        xp = view.xp
        masks = [
            smallest(xp.abs(part), int(part.shape[0]) - round(self.share * int(part.shape[0])))
            for part in (change[piece] for piece in pieces(view.layers, int(change.shape[0])))
        ]
        return xp.where(xp.concat(masks)[None, :], view.own, xp.zeros_like(view.own))

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """The model of this round."""
        return keep_model(view)
