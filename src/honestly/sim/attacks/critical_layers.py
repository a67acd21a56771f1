"""The layer-poisoning attack: a backdoor in the few layers that carry it, and honest training in the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import host, mean, pieces


@dataclass(frozen=True, kw_only=True)
class CriticalLayers(BadNets, UpdateAttack):
    """`u = lambda v u_mal + max(0, 1 - lambda) v u_ben + (1 - v) u_ben`, v the backdoor-critical layers.

    Every attacker trains twice, on its clean and on its poisoned data: u_ben and u_mal. Layer substitution on the mean
    of the attackers finds v: a layer matters as much as the success of u_mal falls if that layer is taken from u_ben;
    the layers that matter most are put into u_ben, one after the other, until it has ``tau`` of the success of u_mal.
    Most of what is sent is honest, which rules that look at whole updates take for an honest client. The Layer
    Smoothing attack (arXiv 2602.15161) finds its layers in the same way. Knows its own data and updates; attackers pool
    theirs to find the layers. Where success cannot be measured (outside the simulator) it sends u_mal.

    Args:
        strength: lambda; the paper adapts it to whether its updates are accepted, here it is fixed.
        tau: the share of the success of u_mal that the critical layers must have.

    >>> import numpy as np
    >>> wins = lambda models: (models[:, 1] > 0).astype(float)  # the backdoor sits in the second layer
    >>> both = View(own=np.ones((1, 2)), clean=-np.ones((1, 2)), layers=(1, 1), reference=np.zeros(2), success=wins,
    ...             rng=np.random.default_rng(0))
    >>> CriticalLayers().forge(both)
    array([[-1.,  1.]])
    """

    name = "critical_layers"
    summary = "the backdoor in the few layers that carry it, honest training in the others"
    reference = "Zhuang et al., Backdoor Federated Learning by Poisoning Backdoor-Critical Layers, ICLR 2024"
    knows = "malicious"
    wants_clean = True
    training = 2.0
    keeps = "d, and 2 models per layer one after the other"

    strength: float = setting(1.0, above=0.0)
    tau: float = setting(0.95, above=0.0, most=1)

    def craft(self, view: View) -> Array:
        """Poisoned critical layers among clean ones."""
        if view.clean is None or view.success is None or view.reference is None:
            return view.own
        xp, cuts = view.xp, pieces(view.layers, int(view.own.shape[1]))
        chosen = set(self.critical(view))
        lam = self.strength
        mixed = lam * view.own + max(0.0, 1.0 - lam) * view.clean
        return xp.concat([(mixed if i in chosen else view.clean)[:, cut] for i, cut in enumerate(cuts)], axis=1)

    def critical(self, view: View) -> list[int]:
        """The backdoor-critical layers, those that matter most first."""
        assert view.success is not None
        xp, cuts = view.xp, pieces(view.layers, int(view.own.shape[1]))
        bad, good = mean(view.own), mean(view.clean)

        def with_layers(chosen: set[int]) -> Array:
            parts = [(bad if i in chosen else good)[cut] for i, cut in enumerate(cuts)]
            return view.reference + xp.concat(parts)

        everything = set(range(len(cuts)))
        models = [with_layers(everything), *(with_layers(everything - {i}) for i in everything)]
        rates = host(view.success(xp.stack(models)))
        order = np.argsort(rates[1:], kind="stable").tolist()  # the lowest success without it: the most important
        tried = [with_layers(set(order[: n + 1])) for n in range(len(order))]
        reached = host(view.success(xp.stack(tried)))
        enough = np.flatnonzero(reached >= self.tau * rates[0])
        return order[: int(enough[0]) + 1] if len(enough) else order
