"""The first pass: the geometry of the clients that can be used, accurate to float32.

Distances of float32 weights need a centre near the honest clients: the reference where there is one, else the median of
three clients (where the pass can take it on the way), else zero (where rows are then multiplied in place) or a central
client, by a sample of columns. None is trusted: if the Gram matrix shows that the centre is far away (a liar may look
central where we looked), the pass is repeated on a client that the matrix itself shows to be central.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.engine.centres import (
    better_centre,
    by_centrality,
    by_majority_radius,
    first_centre,
    majority,
    majority_radii,
    starting_centre,
)
from honestly.engine.pipeline import Pipeline
from honestly.engine.screening import Screen
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import Geometry, GramGeometry

# With this many clients or more, a rule that can do so iterates on residuals: a step costs K d, the Gram matrix K^2 d.
# Measured by benchmarks/crossover.py, which prints the time of both ways for rising K.
STREAM_FROM = 1500
# Distances have an error of about 3e-7 (|c_i|^2 + |c_j|^2): at this ratio to the distance itself, about 1e-4 of it.
FAR_CENTRE = 200.0
# The same in a single layer, where it takes a pass of its own to do better: about 1 % of the distance.
FAR_IN_LAYER = 1e4


def measure(screen: Screen, pipeline: Pipeline, sizes: Float | None = None) -> Geometry:
    """Measure what the pipeline needs, over the clients that turn out to be usable."""
    if not pipeline.gram_needed:
        return _bare(screen, sizes)
    if pipeline.streams and len(screen.usable) >= STREAM_FROM:
        return stream_geometry(screen, sizes)
    return measure_grams(screen, sizes, root=pipeline.rule.root is not None)


def _bare(screen: Screen, sizes: Float | None) -> GramGeometry:
    """K, ids and sizes, for steps that need nothing else."""
    used = None if sizes is None else sizes[screen.usable]
    return GramGeometry(_nothing(len(screen.usable)), screen.ids, used, screen.source.has_reference)


@lru_cache(maxsize=64)
def _nothing(k: int) -> Float:
    """(k, k) zeros that cannot be written to, in the memory of one."""
    return np.broadcast_to(np.float64(0), (k, k))


def measure_grams(screen: Screen, sizes: Float | None = None, *, root: bool = False) -> GramGeometry:
    """The Gram matrices of the usable clients by layer; clients with a fault are refused on the way."""
    tried: set[int | None] = set()
    centre = starting_centre(screen)
    known, limit, reference = _names(screen), screen.overflow(), screen.reference  # now: a device may have begun
    while True:
        clients = screen.usable
        layers = screen.passes.gram(clients, centre)
        tried.add(centre)
        wrong = {clients[j] for j in not_finite(layers, limit)} | set(screen.source.faults())
        suspects = [k for k in clients if k in wrong] if wrong else []
        if suspects and screen.refuse_faulty(suspects):
            usable = [j for j, k in enumerate(clients) if k not in screen.reasons]
            layers = np.ascontiguousarray(layers[:, usable][:, :, usable])
            suspects = [k for k in suspects if k not in screen.reasons]
            clients = screen.usable
        if 2 * len(suspects) > len(clients):
            screen.check_reference()
        geometry = _build_geometry(screen, layers, centre, sizes, known, root=root)
        near = 2 * len(suspects) <= len(clients) and centre not in screen.reasons
        if suspects and not np.isfinite(layers).all():  # of clients without a fault: the centre has one
            near = False
        if not clients:
            return geometry
        if near and not _far(geometry):
            break
        better = better_centre(screen, geometry.gram, tried)
        if better is None:
            return geometry
        centre = better
    nearer = layers if centre == reference or len(layers) < 2 else _nearer_in_layers(screen, layers)
    if nearer is layers:
        return geometry
    return _build_geometry(screen, nearer, centre, sizes, known, root=root)


def _nearer_in_layers(screen: Screen, layers: Float) -> Float:
    """The same Gram matrices, those of layers in which the centre is far away about a client that is central there.

    A centre that is near in all layers together may be far away in a small one, and a liar will see to it. The
    distances there would be lost in rounding, and with them the promise that the answer keeps in every layer.
    """
    tried: set[int] = set()
    while True:
        far = far_layers(layers)
        clients = [screen.usable[by_majority_radius(layers[layer])[0]] for layer in np.flatnonzero(far)]
        k = next((k for k in clients if k not in tried), None)
        if k is None:
            return layers
        tried.add(k)
        again = screen.passes.gram(screen.usable, k)
        better = far & np.isfinite(again).all(axis=(1, 2)) & (_majority_norms(again) < _majority_norms(layers))
        layers = np.where(better[:, None, None], again, layers)


def far_layers(layers: Float) -> npt.NDArray[np.bool_]:
    """(L,) whether a majority of the clients is far from the centre and near to one another."""
    norms, half = _majority_norms(layers), layers.shape[1] // 2
    with np.errstate(invalid="ignore"):
        lengths = np.sort(np.sqrt(np.diagonal(layers, axis1=1, axis2=2)), axis=1)
        # lengths in a ball differ by its diameter at most: where those of all majorities differ more, it is not small
        diameter = (lengths[:, half:] - lengths[:, : lengths.shape[1] - half]).min(axis=1)
        far = ~(norms <= FAR_IN_LAYER * (diameter / 2) ** 2)
    for layer in np.flatnonzero(far):
        far[layer] = norms[layer] > FAR_IN_LAYER * majority_radii(layers[layer]).min()
    return far


def _majority_norms(layers: Float) -> Float:
    """(L,) the squared distance from the centre within which a majority lies."""
    return majority(np.diagonal(layers, axis1=1, axis2=2))


def _build_geometry(
    screen: Screen, layers: Float, centre: int | None, sizes: Float | None, known: Mapping[str, Any], *, root: bool
) -> GramGeometry:
    """The geometry with these Gram matrices; what few rules ask for takes a pass of its own."""
    reference, clients = screen.reference, screen.usable
    return GramGeometry.of_layers(
        layers,
        screen.ids,
        sizes=None if sizes is None else sizes[clients],
        has_reference=screen.source.has_reference,
        about_reference=None if centre == reference else (lambda: _about(screen, clients, reference)),
        root_products=_root_products(screen, clients, reference) if root else None,
        mixed_signs=lambda mixing: screen.passes.sign_counts(clients, reference, mixing),
        mixed_coordinates=lambda mixing: screen.passes.coordinates(clients, reference, mixing),
        mixed_statistics=lambda mixing: screen.passes.statistics(clients, reference, mixing),
        **known,
    )


def _names(screen: Screen) -> dict[str, Any]:
    """What is known of the layers before they are read."""
    layers = screen.source.layers
    return {
        "judged": np.array([not layer.follows for layer in layers]),
        "layer_names": tuple(layer.name for layer in layers),
        "layer_sizes": np.array([layer.size for layer in layers], dtype=np.float64),
    }


def _about(screen: Screen, clients: list[int], reference: int | None) -> Float:
    """The Gram matrices about the reference (None: about 0). Values that were close together may overflow here.

    A client that turns out to be unusable is refused and counts as zero here; the engine then starts again.
    """
    layers = screen.passes.gram(clients, reference)
    wrong = not_finite(layers, screen.overflow())
    if wrong and screen.refuse_faulty([clients[j] for j in wrong]):
        layers[:, wrong, :] = layers[:, :, wrong] = 0.0
    return layers


def _root_products(screen: Screen, clients: list[int], reference: int | None) -> Float:
    """(k + 1,) products of the usable clients, and of the root itself, with the root, about the reference."""
    judged = np.array([not layer.follows for layer in screen.source.layers])
    products = screen.passes.gram([*clients, screen.K + 1], reference)[judged, -1].sum(axis=0)
    if not products[-1] < screen.overflow():
        screen.check_own("root", screen.K + 1)
    return products


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


def _far(clients: GramGeometry) -> bool:
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


def stream_geometry(screen: Screen, sizes: Float | None) -> Geometry:
    """The geometry of thousands of clients: one pass for their norms, which shows who can be used."""
    while True:
        clients = screen.usable
        central = clients.index(by_centrality(screen)[0])
        at = np.zeros((1, len(clients)))
        at[0, central] = 1.0
        apart, norms = screen.passes.residuals(at, clients, None, None)
        wrong = np.flatnonzero(~(norms.sum(axis=0) < screen.overflow()))
        if not len(wrong) or not screen.refuse_faulty([clients[j] for j in wrong]):
            break
        if not screen.usable:  # the engine then says why
            return _bare(screen, sizes)
    judged = np.array([not layer.follows for layer in screen.source.layers])
    near = np.median(norms[judged].sum(axis=0)) <= FAR_CENTRE * np.median(apart[0, judged].sum(axis=0))
    if near:
        return StreamGeometry(screen, sizes, None, norms)
    return StreamGeometry(screen, sizes, screen.K if screen.source.has_reference else clients[central], None)


class StreamGeometry:
    """The geometry of thousands of clients: no K x K matrix, a pass over the data for each question.

    Rows are multiplied where they lie, without a centre, if their norms show that this is precise enough; else they are
    centred on the way, which costs a copy of each block.
    """

    root_products: Float | None = None
    streaming: bool = True

    def __init__(self, screen: Screen, sizes: Float | None, centre: int | None, norms: Float | None) -> None:
        self._screen = screen
        self.has_reference = screen.source.has_reference
        self._clients = screen.usable
        self.ids = screen.ids
        self.sizes = None if sizes is None else sizes[self._clients]
        self._centre, self._norms = centre, norms
        layers = screen.source.layers
        self.judged: npt.NDArray[np.bool_] = np.array([not layer.follows for layer in layers])
        self.layer_names = tuple(layer.name for layer in layers)
        self.layer_sizes: Float = np.array([layer.size for layer in layers], dtype=np.float64)

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self._clients)

    @property
    def gram(self) -> Float:
        """The whole Gram matrix, at the cost of K^2 d operations."""
        return measure_grams(self._screen).gram

    @property
    def layers(self) -> Float:
        """The Gram matrices by layer, at the cost of K^2 d operations."""
        return measure_grams(self._screen).layers

    @property
    def gram_about_reference(self) -> Float:
        """The Gram matrix about the reference, at the cost of K^2 d operations."""
        return self._screen.passes.gram(self._clients, self._screen.reference)[self.judged].sum(axis=0)

    def residuals(self, a: Float) -> Float:
        """One pass for all rows of `a`."""
        return self.layer_residuals(a)[..., self.judged, :].sum(axis=-2)

    def layer_residuals(self, a: Float) -> Float:
        """The same by layer, (L, K) or (m, L, K)."""
        rows, self._norms = self._screen.passes.residuals(np.atleast_2d(a), self._clients, self._centre, self._norms)
        return rows[0] if a.ndim == 1 else rows

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The exact geometry of a few clients, from one pass over their updates."""
        chosen = [self._clients[k] for k in clients]
        centre = first_centre(self._screen, set())
        few = self._few(clients, self._screen.passes.gram(chosen, centre))
        if not_finite(few.layers, self._screen.overflow()):
            self._screen.check_reference()
        if not _far(few):
            return few
        return self._few(clients, self._screen.passes.gram(chosen, chosen[by_majority_radius(few.gram)[0]]))

    def _few(self, clients: Sequence[int], layers: Float) -> GramGeometry:
        return GramGeometry.of_layers(
            layers,
            tuple(self.ids[k] for k in clients),
            sizes=None if self.sizes is None else self.sizes[np.asarray(clients)],
            judged=self.judged,
            layer_names=self.layer_names,
            layer_sizes=self.layer_sizes,
        )

    def sign_counts(self) -> Float:
        """One pass."""
        return self._screen.passes.sign_counts(self._clients, self._screen.reference, None)

    def coordinates(self) -> Coordinates:
        """One pass."""
        return self._screen.passes.coordinates(self._clients, self._screen.reference, None)

    def statistics(self) -> Sequence[Statistics]:
        """The buffers alone are read."""
        return self._screen.passes.statistics(self._clients, self._screen.reference, None)
