"""Robust learning rate: coordinates on which too few clients agree are moved the other way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from honestly.rules.rule import ColumnRule, Geometry, Mix
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class RLR(ColumnRule):
    """The mean update, reversed in every coordinate whose sign too few clients share.

        eta_i = 1 if |sum_k sign(u_ki)| >= threshold * K, else -1;    value_i = reference_i + eta_i * mean_k u_ki

    u_k = w_k - reference. Lengths are not bounded: a client with huge values moves the mean. Convention: the threshold
    is a share of the clients, where the authors give a number of them (4 of 10). In each column K + 1 copies of the
    reference stand beside the clients' values, so the column's median is the reference: a rule for columns sees
    sorted values and nothing else.

    Args:
        threshold: the agreement that is asked for, in (0, 1].

    Example:
        >>> ranked = np.sort([[2.0, 3.0], [4.0, -1.0], [3.0, -8.0], *[[0.0, 0.0]] * 4], axis=0)
        >>> RLR(threshold=0.5).reduce(ranked, np)
        array([3., 2.])

    Reference: Ozdayi, Kantarcioglu and Gel, Defending against Backdoors in FL with Robust Learning Rate, AAAI 2021.
    """

    threshold: float = setting(0.4, above=0.0, most=1.0)

    name: ClassVar[str] = "rlr"
    summary: ClassVar[str] = "the mean, reversed where too few clients agree on the sign"
    reference: ClassVar[str] = "Ozdayi et al., AAAI 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})
    gram_needed: ClassVar[bool] = True  # the matrix is not the identity

    def mix(self, geometry: Geometry) -> Mix:
        """Every client, then K + 1 rows that are the reference alone."""
        K = geometry.K
        return Mix(np.concatenate([np.eye(K), np.zeros((K + 1, K))]))

    def reduce(self, ranked: Any, xp: Any) -> Any:
        """The mean about the median row, which is the reference."""
        K = ranked.shape[0] // 2
        middle = ranked[K, ...]
        total, votes = xp.zeros_like(middle), xp.zeros_like(middle)
        for i in range(ranked.shape[0]):
            u = ranked[i, ...] - middle
            total = total + u
            votes = votes + xp.sign(u)
        agreed = xp.abs(votes) >= self.threshold * K - 1e-9
        return middle + xp.where(agreed, total, -total) / K
