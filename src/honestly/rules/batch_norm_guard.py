"""SoDa-BNGuard: finds clients whose BatchNorm statistics come from images unlike the others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules._lib.kmeans import two_means
from honestly.rules.rule import Geometry, Mix, Rule


@dataclass(frozen=True, kw_only=True)
class BatchNormGuard(Rule):
    """BNGuard: the mean of the larger of two clusters by the running statistics of the first BatchNorm layer.

        features_k = (mean of the running variances, their variance, mean of the running means, their variance)
        k-means with two clusters; value = mean of the clients in the larger one

    Made against attackers who train on images from elsewhere, which shift these statistics. It always makes two
    clusters, so it leaves out clients even if nobody attacks. Conventions: nothing is random, k-means starts from the
    best cut along each feature (the authors' from random centres); of two clusters of the same size the
    tighter is taken, and both if they are as tight. The features are not scaled, as in the authors' code.

    It needs the clients' buffers: state dicts with `running_mean` and `running_var`. A model without them is an error.

    Example:
        >>> from honestly.rules.geometry import Statistics
        >>> from honestly.rules.rule import GramGeometry
        >>> mean, variance = np.zeros((4, 3)), np.array([[1.0, 1.1, 0.9]] * 3 + [[5.0, 5.0, 4.0]])
        >>> seen = GramGeometry(np.eye(4), mixed_statistics=lambda A: [Statistics("bn1", mean, variance)])
        >>> BatchNormGuard().mix(seen).matrix.round(2)
        array([[0.33, 0.33, 0.33, 0.  ]])

    Reference: Xu et al., On the Out-of-Distribution Backdoor Attack for Federated Learning, 2025 (arXiv 2509.13219).
    """

    name: ClassVar[str] = "batch_norm_guard"
    summary: ClassVar[str] = "the larger of two clusters by the statistics of the first BatchNorm layer"
    reference: ClassVar[str] = "Xu et al., 2025"
    needs: ClassVar[frozenset[str]] = frozenset({"buffers"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the larger cluster."""
        K, layers = geometry.K, geometry.statistics()
        if not layers:
            raise ValueError(
                "BatchNormGuard judges clients by BatchNorm's running means and variances, and these updates have "
                "none: pass state dicts with running_mean and running_var, or take another rule"
            )
        first = layers[0]
        spread = [value.var(axis=1, ddof=1 if value.shape[1] > 1 else 0) for value in (first.variance, first.mean)]
        features = np.stack([first.variance.mean(axis=1), spread[0], first.mean.mean(axis=1), spread[1]], axis=1)
        label = two_means(features)
        sides = [np.flatnonzero(label == side) for side in np.unique(label)]
        ranks = [(len(side), -float(np.round(features[side].var(axis=0).sum(), 12))) for side in sides]
        selected = np.concatenate([side for side, rank in zip(sides, ranks, strict=True) if rank == max(ranks)])
        weights = np.zeros(K)
        weights[selected] = 1.0 / len(selected)
        return Mix.of_weights(weights, diagnostics={"features": features, "selected": np.sort(selected)})
