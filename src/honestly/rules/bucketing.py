"""Bucketing, a pre-aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from honestly.result import Float
from honestly.rules.rule import Geometry, Mixer
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class Bucketing(Mixer):
    """Replaces the K clients by ceil(K / size) means of randomly drawn buckets; the last bucket may be smaller.

        w'_b = mean of w_p(k), k in bucket b, with p a random permutation

    f attackers spoil at most f of the buckets, so the rule that follows must withstand f of ceil(K / size). The
    permutation depends only on `seed` and the number of clients: change the seed every round (`after` adds 1), or
    attackers learn it.

    Args:
        size: clients per bucket; 1 leaves them as they are.
        seed: of the permutation.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> Bucketing(size=2, seed=0).mix(GramGeometry(np.eye(3))).sum(axis=1)
        array([1., 1.])

    Reference: Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    size: int = setting(2, whole=True, least=1)
    seed: int = setting(0, whole=True, least=0)

    name: ClassVar[str] = "bucketing"
    summary: ClassVar[str] = "means of randomly drawn buckets of clients"
    reference: ClassVar[str] = "Karimireddy et al., ICLR 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"randomness"})
    gram_needed: ClassVar[bool] = False

    def mix(self, geometry: Geometry) -> Float:
        """(ceil(K / size), K): row b has 1/|b| for the clients of bucket b."""
        K = geometry.K
        if self.size == 1:  # K mixtures keep the clients' names, which MoNNA and memories go by: so no permutation
            return np.eye(K)
        bucket = np.empty(K, dtype=np.intp)
        bucket[np.random.default_rng(self.seed).permutation(K)] = np.arange(K) // self.size
        A = np.zeros((-(-K // self.size), K))
        A[bucket, np.arange(K)] = 1.0
        return A / A.sum(axis=1, keepdims=True)

    def after(self, diagnostics: Mapping[str, Any]) -> Self:
        """The next permutation."""
        return replace(self, seed=self.seed + 1)
