"""Whether Gram matrices can be used: finite, and about a centre so near that rounding hides no distance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from honestly.engine.centres import majority, majority_radii
from honestly.result import Float
from honestly.rules.rule import GramGeometry

# Distances have an error of about 3e-7 (|c_i|^2 + |c_j|^2): at this ratio to the distance itself, about 1e-4 of it.
FAR_CENTRE = 200.0
# The same in a single layer, where it takes a pass of its own to do better: about 1 % of the distance.
FAR_IN_LAYER = 1e4


def not_finite(layers: Float, limit: float) -> list[int]:
    """Rows whose norm overflows, and rows that are not finite even without the columns of those."""
    G = layers[0] if len(layers) == 1 else _sum_up(layers)
    norms = G.diagonal()
    if len(G) and float(norms.max()) < limit and math.isfinite(float(G.sum())):
        return []
    fine = norms < limit
    fine[fine] = np.isfinite(G[np.ix_(fine, fine)]).all(axis=1)
    return np.flatnonzero(~fine).tolist()


def _sum_up(layers: Float) -> Float:
    with np.errstate(over="ignore", invalid="ignore"):
        return layers.sum(axis=0)


def centre_is_far(clients: GramGeometry) -> bool:
    """True if the centre is so far from the tightest majority that rounding hides the distances among them."""
    K = clients.K
    if K < 2:
        return False
    norms, products = clients.gram.diagonal(), clients.gram.copy()
    products.flat[:: K + 1] = -np.inf
    if norms.max() <= FAR_CENTRE * (norms.min() - products.max()):
        return False  # true of every pair: its squared distance is at least twice that difference
    ranked = clients.ranked
    nearest = np.argpartition(clients.distances[np.argmin(ranked[:, K // 2])], K // 2)[: K // 2 + 1]
    few = norms[nearest]
    sums = np.sort(few[:, None] + few, axis=None)
    apart = np.sort(clients.distances[nearest][:, nearest], axis=None)
    middle = (len(apart) + len(nearest)) // 2  # the median pair: the diagonal's zeros come first
    return bool(sums[middle] > FAR_CENTRE * apart[middle])


def far_layers(layers: Float) -> npt.NDArray[np.bool_]:
    """(L,) whether a majority of the clients is far from the centre and near to one another."""
    norms, half = majority_norms(layers), layers.shape[1] // 2
    with np.errstate(invalid="ignore"):
        lengths = np.sort(np.sqrt(np.diagonal(layers, axis1=1, axis2=2)), axis=1)
        # lengths in a ball differ by its diameter at most: where those of all majorities differ more, it is not small
        diameter = (lengths[:, half:] - lengths[:, : lengths.shape[1] - half]).min(axis=1)
        far = ~(norms <= FAR_IN_LAYER * (diameter / 2) ** 2)
    for layer in np.flatnonzero(far):
        far[layer] = norms[layer] > FAR_IN_LAYER * majority_radii(layers[layer]).min()
    return far


def majority_norms(layers: Float) -> Float:
    """(L,) the squared distance from the centre within which a majority lies."""
    return majority(np.diagonal(layers, axis1=1, axis2=2))
