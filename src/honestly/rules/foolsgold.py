"""FoolsGold: clients that always move together share one vote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from honestly.result import ClientId, Float
from honestly.rules._lib.clipping import cosines
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting

# Clients all of whose cosines differ from 1 by no more than the rounding of float32 agree completely.
AGREE = 1e-6
# How many clients are remembered: 8 MOST^2 bytes, 128 MB. Ids cost a liar nothing.
MOST = 4000


@dataclass(frozen=True, kw_only=True)
class FoolsGoldMemory:
    """Inner products of the clients' updates, summed over the rounds so far: all that FoolsGold remembers.

    The clients that took part last come last. Beyond `MOST`, those that have been away longest are forgotten, but
    never one of the latest round.
    """

    ids: tuple[ClientId, ...] = ()
    products: Float = field(default_factory=lambda: np.zeros((0, 0)))

    def with_round(self, ids: tuple[ClientId, ...], gram: Float) -> FoolsGoldMemory:
        """The memory after a round in which these clients took part."""
        here = set(ids)
        absent = [name for name in self.ids if name not in here]
        names = (*absent[max(len(absent) + len(ids) - MOST, 0) :], *ids)
        place = {name: i for i, name in enumerate(self.ids)}
        old = np.array([place.get(name, -1) for name in names], dtype=np.int64)
        known = np.flatnonzero(old >= 0)
        products = np.zeros((len(names), len(names)))
        products[np.ix_(known, known)] = self.products[np.ix_(old[known], old[known])]
        products[-len(ids) :, -len(ids) :] += gram
        return FoolsGoldMemory(ids=names, products=products)

    def of(self, ids: tuple[ClientId, ...]) -> Float:
        """The summed products of these clients."""
        place = {name: i for i, name in enumerate(self.ids)}
        rows = [place[name] for name in ids]
        return self.products[np.ix_(rows, rows)]


@dataclass(frozen=True, kw_only=True)
class FoolsGold(Rule):
    """Lowers the weight of clients whose updates have pointed the same way, round after round: sybils.

        c_kj = cos(h_k, h_j),   c_kk = 0,   v_k = max_j c_kj,   c_kj <- c_kj v_k / v_j  where v_j > v_k  (pardon)
        a_k = 1 - max_j c_kj, over the largest;   a_k <- kappa (ln(a_k / (1 - a_k)) + 1/2), cut to [0, 1]
        value = sum_k a_k w_k / sum_k a_k

    h_k is client k's history. Convention: inner products of the histories are taken as the inner products of each
    round, summed (products across rounds are dropped, so K x K numbers are remembered instead of K models), of the
    4,000 clients that took part last, which is 128 MB, or of all in the round if they are more. In the first round, or
    without memory, this is the published rule with every coordinate an indicative feature. Clients that all agree
    completely get equal weights. It defends against sybils only, not against a lone attacker.

    Args:
        kappa: confidence.
        memory: what earlier rounds left in `diagnostics["memory"]`; `rule.after(out.diagnostics)` carries it on.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[1.0, 0.0, 0.2], [0.0, 1.0, 0.1], [-1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
        >>> FoolsGold().mix(GramGeometry(X @ X.T)).matrix.round(2)
        array([[0.5, 0.5, 0. , 0. ]])

    Reference: Fung et al., The Limitations of Federated Learning in Sybil Settings, RAID 2020.
    """

    kappa: float = setting(1.0, above=0.0)
    memory: FoolsGoldMemory | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "foolsgold"
    summary: ClassVar[str] = "clients that move together over rounds lose weight"
    reference: ClassVar[str] = "Fung et al., RAID 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"memory", "reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Weights from the cosines of the histories, this round included."""
        K = geometry.K
        ids = tuple(geometry.ids) or tuple(range(K))
        memory = (self.memory or FoolsGoldMemory()).with_round(ids, geometry.gram_about_reference)
        diagnostics = {"memory": memory}
        if K == 1:
            return Mix.of_weights(np.ones(1), diagnostics=diagnostics)
        c = cosines(memory.of(ids))
        np.fill_diagonal(c, 0.0)  # so v is never negative, and pardon makes no likeness of opposition
        v = c.max(axis=1)
        pardoned = v[None, :] > v[:, None]
        c = np.where(pardoned, c * (v[:, None] / np.where(v > 0, v, 1.0)[None, :]), c)
        a = 1.0 - c.max(axis=1)
        if a.max() <= AGREE:
            return Mix.of_weights(np.full(K, 1.0 / K), diagnostics=diagnostics)
        a = np.clip(a / a.max(), 1e-12, 0.99)
        a = np.clip(self.kappa * (np.log(a / (1.0 - a)) + 0.5), 0.0, 1.0)
        return Mix.of_weights(a / a.sum(), diagnostics=diagnostics)
