"""The first pass: the geometry of the clients that can be used, accurate to float32.

Distances of float32 weights need a centre near the honest clients: the reference where there is one, else the median of
three clients (where the pass can take it on the way), else zero (where rows are then multiplied in place) or a central
client, by a sample of columns. None is trusted: if the Gram matrix shows that the centre is far away (a liar may look
central where we looked), the pass is repeated on a client that the matrix itself shows to be central.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from honestly.engine.centres import better_centre, by_majority_radius, starting_centre
from honestly.engine.precision import centre_is_far, far_layers, majority_norms, not_finite
from honestly.engine.screening import Screen
from honestly.result import Float
from honestly.rules.rule import GramGeometry
from honestly.sources import Layer


def bare_geometry(screen: Screen, sizes: Float | None) -> GramGeometry:
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
    known = known_layers(screen.source.layers)  # this, too, before the pass: a device may have begun already
    limit, reference = screen.overflow(), screen.reference
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
        if near and not centre_is_far(geometry):
            break
        better = better_centre(screen, geometry.gram, tried)
        if better is None:
            return geometry
        centre = better
    nearer = layers if len(layers) < 2 else _nearer_in_layers(screen, layers)
    if nearer is layers:
        return geometry
    again = _build_geometry(screen, nearer, centre, sizes, known, root=root)
    return again if centre != reference else replace(again, about_reference=layers)


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
        again = screen.passes.gram(screen.usable, k, np.flatnonzero(far).tolist())
        better = far & np.isfinite(again).all(axis=(1, 2)) & (majority_norms(again) < majority_norms(layers))
        layers = np.where(better[:, None, None], again, layers)


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


def known_layers(layers: Sequence[Layer]) -> dict[str, Any]:
    """What a geometry says of the layers, which is known before they are read."""
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
    judged = known_layers(screen.source.layers)["judged"]
    products = screen.passes.gram([*clients, screen.K + 1], reference)[judged, -1].sum(axis=0)
    if not products[-1] < screen.overflow():
        screen.check_own("root", screen.K + 1)
    return products
