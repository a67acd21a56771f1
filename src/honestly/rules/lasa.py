"""LASA: sparse updates, filtered layer by layer by length and by signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.clipping import clip_factors
from honestly.rules._lib.scores import largest, median_z
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class LASA(Rule):
    """In each layer the mean of the clients whose sparse update has a usual length and a usual share of plus signs.

        u_k <- u_k min(1, median_j ||u_j|| / ||u_k||);    s_k = u_k with its smallest coordinates set to 0
        in layer l:  n_k = ||s_k^l||,   p_k = (1 + (1 - sparsity) sum_i sign(s_ki) / sum_i |sign(s_ki)|) / 2
        kept: |n_k - median| / std < radius_n  and  |p_k - median| / std < radius_s;  all if none is
        value^l = reference^l + mean over the kept of u_k^l

    u_k = w_k - reference; p is the positive direction purity. Conventions: all tensors are made sparse (the authors
    spare biases), and the clipped updates are averaged, not their sparse parts, so the value is a weighted mean in
    each layer. Buffers get the mean weights of the layers that are judged.

    Args:
        sparsity: share of the coordinates of an update that is set to 0; the authors' 0.3.
        radius_n, radius_s: of the median z-scores; the authors' 1.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> from honestly.rules.geometry import Coordinates
        >>> X = np.array([[1.0, 1.0], [1.0, 1.2], [1.2, 1.0], [-1.1, -1.1]])
        >>> seen = GramGeometry(X @ X.T, mixed_coordinates=lambda A: Coordinates((X,), (np.zeros(2),)))
        >>> LASA(sparsity=0.0, radius_n=3.0).mix(seen).matrix.round(2)
        array([[0.33, 0.33, 0.33, 0.  ]])

    Reference: Xu, Zhang and Hu, Achieving Byzantine-Resilient FL via Layer-Adaptive Sparsified Aggregation, WACV 2025.
    """

    sparsity: float = setting(0.3, least=0.0, below=1.0)
    radius_n: float = setting(1.0, above=0.0)
    radius_s: float = setting(1.0, above=0.0)

    name: ClassVar[str] = "lasa"
    summary: ClassVar[str] = "in each layer the clients with usual lengths and signs of their sparse updates"
    reference: ClassVar[str] = "Xu, Zhang and Hu, WACV 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors over the number of the kept, in each layer."""
        K = geometry.K
        parts = [np.asarray(part, dtype=np.float64) for part in geometry.coordinates().updates]
        U = np.concatenate(parts, axis=1)
        lengths = np.sqrt(np.einsum("kd,kd->k", U, U))
        clip = clip_factors(lengths, float(np.median(lengths)))
        sparse = U * clip[:, None]
        if self.sparsity > 0.0:
            sparse = np.where(largest(np.abs(sparse), 1.0 - self.sparsity), sparse, 0.0)
        rows, selected, start = np.zeros((len(geometry.judged), K)), np.zeros((len(parts), K), bool), 0
        for i, part in enumerate(parts):
            S = sparse[:, start : start + part.shape[1]]
            start += part.shape[1]
            signs = np.sign(S)
            used = np.abs(signs).sum(axis=1)
            purity = 0.5 * (1.0 + (1.0 - self.sparsity) * signs.sum(axis=1) / np.where(used > 0, used, 1.0))
            norms = np.sqrt(np.einsum("kd,kd->k", S, S))
            selected[i] = (median_z(norms) < self.radius_n) & (median_z(purity) < self.radius_s)
            if not selected[i].any():
                selected[i] = True
        rows[geometry.judged] = np.where(selected, clip, 0.0) / selected.sum(axis=1, keepdims=True)
        rows[~geometry.judged] = rows[geometry.judged].mean(axis=0)
        return Mix.of_layers(rows, geometry.layer_sizes, diagnostics={"kept": selected})
