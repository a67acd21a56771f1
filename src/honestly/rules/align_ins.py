"""AlignIns: keeps clients whose direction and whose principal signs are those of most others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors
from honestly.rules._lib.scores import largest, median_z
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class AlignIns(Rule):
    """The clipped mean of the clients with usual directions.

        TDA_k = cos(u_k, reference)
        MPSA_k = share of the largest coordinates of u_k whose sign is the principal one, sign(sum_j sign(u_j))
        kept: |TDA_k - median| / std < lambda_c  and  |MPSA_k - median| / std < lambda_s
        value = reference + mean over the kept of u_k min(1, c / ||u_k||),   c = median length of the kept

    u_k = w_k - reference, TDA is temporal direction alignment and MPSA masked principal sign alignment. Without a
    reference there is no TDA. If no client is kept the model stays as it is (without a reference: the mean). If most of
    the kept lie, the radius is theirs, and lengths are not bounded.
    Convention: all coordinates as large as the smallest one under the mask are under it, too.

    Args:
        radius_c: lambda_c, of the median z-score of TDA; the authors' 1.
        radius_s: lambda_s, of that of MPSA; the authors' 1.
        top: the share of coordinates under the mask; the authors' 0.3.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> from honestly.rules.geometry import Coordinates
        >>> X = np.array([[1.0, 1.0], [1.0, 1.2], [1.2, 1.0], [-1.0, -1.0]])
        >>> seen = GramGeometry(X @ X.T, mixed_coordinates=lambda A: Coordinates((X,), (np.zeros(2),)))
        >>> AlignIns().mix(seen).matrix.round(2)
        array([[0.33, 0.33, 0.33, 0.  ]])

    Reference: Xu et al., Detecting Backdoor Attacks in FL via Direction Alignment Inspection, CVPR 2025.
    """

    radius_c: float = setting(1.0, above=0.0)
    radius_s: float = setting(1.0, above=0.0)
    top: float = setting(0.3, above=0.0, most=1.0)

    name: ClassVar[str] = "align_ins"
    summary: ClassVar[str] = "clients whose direction and principal signs are usual, clipped"
    reference: ClassVar[str] = "Xu et al., CVPR 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors of the kept over their number."""
        updates = geometry.coordinates()
        U = np.concatenate([np.asarray(part, dtype=np.float64) for part in updates.updates], axis=1)
        model = np.concatenate([np.asarray(part, dtype=np.float64) for part in updates.reference])
        lengths = np.sqrt(np.einsum("kd,kd->k", U, U))
        size = float(np.linalg.norm(model))
        units = np.where(lengths > 0, lengths, 1.0)
        tda = U @ model / units / size if size > 0 else np.zeros(geometry.K)
        signs = np.sign(U)
        agree = signs == np.sign(signs.sum(axis=0))
        mask = largest(np.abs(U), self.top)
        mpsa = (agree & mask).sum(axis=1) / mask.sum(axis=1)
        selected = (median_z(tda) < self.radius_c) & (median_z(mpsa) < self.radius_s)
        report = {"tda": tda, "mpsa": mpsa, "selected": np.flatnonzero(selected)}
        if not selected.any():
            weights = np.zeros(geometry.K) if geometry.has_reference else np.full(geometry.K, 1.0 / geometry.K)
            return Mix.of_weights(weights, diagnostics=report)
        radius = float(np.median(lengths[selected]))
        return Mix.of_weights(
            np.where(selected, clip_factors(lengths, radius), 0.0) / selected.sum(), diagnostics=report
        )
