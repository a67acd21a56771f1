"""XFED: attackers who do not communicate, so their updates are no more alike than honest ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.vectors import host, keep_model, last_change, lengths, norm


@dataclass(frozen=True, kw_only=True)
class XFED(UpdateAttack):
    """`-lambda g_k / ||g_k||`: each attacker reverses its own update, with the usual length of the model's steps.

        lambda = median(h) + z * 1.4826 * MAD(h),   h_t = ||w^t - w^(t-1)||   over the last ``window`` rounds

    The attackers do not communicate: rules that look for copies or for a common direction find only the reversed
    direction of honest training. Knows its own update and the global models. Convention: the perturbation is the
    inverse unit vector of the attacker's own update, after the paper's abstract and a summary of its method; its full
    text was not at hand. Without history lambda is the length of the attacker's own update.

    Args:
        z: how many robust standard deviations above the usual length.
        window: how many changes of the global model are remembered.

    >>> import numpy as np
    >>> XFED().forge(View(own=np.array([[3.0, 4.0]]), rng=np.random.default_rng(0)))
    array([[-3., -4.]])
    """

    name = "xfed"
    summary = "each attacker alone reverses its update, as long as the global model's changes are"
    reference = "Mouri, Ridowan and Adnan, XFED: Non-Collusive Model Poisoning Attack, arXiv 2604.09489, 2026"
    keeps = "d"

    z: float = setting(3.0, least=0.0)
    window: int = setting(10, whole=True, least=1)

    def craft(self, view: View) -> Array:
        """Each update reversed, with length lambda."""
        own = lengths(view.own)
        h = self._changes(view)
        if len(h):
            middle = float(np.median(h))
            wanted = middle + self.z * 1.4826 * float(np.median(np.abs(h - middle)))
            scale = wanted / view.xp.where(own > 0, own, view.xp.ones_like(own))
        else:
            scale = view.xp.ones_like(own)
        return -scale[:, None] * view.own

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """The model of this round and the lengths of its last changes."""
        if view.reference is None:
            return {}
        return {**keep_model(view), "changes": self._changes(view)}

    def _changes(self, view: View) -> np.ndarray:
        """The last lengths, this round's included."""
        changes = host(view.memory["changes"]) if "changes" in view.memory else np.zeros(0)
        change = last_change(view)
        return changes if change is None else np.append(changes, norm(change))[-self.window :]
