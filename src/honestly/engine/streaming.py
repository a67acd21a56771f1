"""Thousands of clients: a pass over the data for each question instead of a K x K matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from honestly.engine.centres import by_centrality, by_majority_radius, first_centre
from honestly.engine.geometry import bare_geometry, known_layers, measure_grams
from honestly.engine.precision import FAR_CENTRE, centre_is_far, not_finite
from honestly.engine.screening import Screen
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import Geometry, GramGeometry

# With this many clients or more, a rule that can do so iterates on residuals: a step costs K d, the Gram matrix K^2 d.
# Measured by benchmarks/crossover.py, which prints the time of both ways for rising K.
STREAM_FROM = 1500


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
            return bare_geometry(screen, sizes)
    judged = known_layers(screen.source.layers)["judged"]
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
        known = known_layers(screen.source.layers)
        self.judged: npt.NDArray[np.bool_] = known["judged"]
        self.layer_names: tuple[str, ...] = known["layer_names"]
        self.layer_sizes: Float = known["layer_sizes"]

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
        if not centre_is_far(few):
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
