"""The geometry of clients whose Gram matrix is known: distances, residuals, subsets and mixtures from it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property
from honestly.result import ClientId, Float
from honestly.rules.geometry import Coordinates, Statistics


def squared_distances(gram: Float) -> Float:
    """`D_kj = ||w_k - w_j||^2 = G_kk - 2 G_kj + G_jj`, exactly 0 on the diagonal, symmetric and never negative."""
    norms = gram.diagonal()
    distances = norms[:, None] + norms
    distances -= gram + gram.T
    np.maximum(distances, 0.0, out=distances)
    distances.flat[:: len(gram) + 1] = 0.0
    return distances


@dataclass(frozen=True)
class GramGeometry:
    """The geometry of K clients whose Gram matrix is known; what is rarely needed is computed when asked for.

    `GramGeometry(gram)` has a single layer; `GramGeometry.of_layers(layers)` has several.
    """

    gram: Float
    ids: Sequence[ClientId] = ()
    sizes: Float | None = None
    has_reference: bool = False
    #: (K, K), or (L, K, K) where there are layers, if they are known, or how to measure them; None: the Gram matrix is
    #: centred on the reference itself
    about_reference: Float | Callable[[], Float] | None = None
    signs: Callable[[], Float] | None = None
    root_products: Float | None = None
    #: counts of signs of the mixtures `A X`, or of the clients for None
    mixed_signs: Callable[[Float | None], Float] | None = None
    #: whole updates of the mixtures `A X`, or of the clients for None
    mixed_coordinates: Callable[[Float | None], Coordinates] | None = None
    #: running statistics of the mixtures `A X`, or of the clients for None
    mixed_statistics: Callable[[Float | None], Sequence[Statistics]] | None = None
    layers: Float = None  # type: ignore[assignment]  # `gram` alone unless given
    judged: npt.NDArray[np.bool_] = None  # type: ignore[assignment]
    layer_names: Sequence[str] = ()
    layer_sizes: Float = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        layers: Any = self.layers
        if layers is None:
            object.__setattr__(self, "layers", self.gram[None])
        elif layers.shape[1:] != self.gram.shape:
            raise ValueError(f"layers has shape {layers.shape}, but gram {self.gram.shape}: use GramGeometry.of_layers")
        count = len(self.layers)
        judged: Any = self.judged
        if judged is None:
            object.__setattr__(self, "judged", np.ones(count, bool))
        sizes: Any = self.layer_sizes
        if sizes is None:
            object.__setattr__(self, "layer_sizes", np.ones(count))
        if len(self.layer_names) != count:
            object.__setattr__(self, "layer_names", tuple(f"layer {i}" for i in range(count)))

    @classmethod
    def of_layers(cls, layers: Float, ids: Sequence[ClientId] = (), **more: Any) -> GramGeometry:
        """The geometry with one Gram matrix per layer, (L, K, K); `judged` says which of them count, all by default.

        Example:
            >>> X = np.random.default_rng(0).normal(size=(5, 6))
            >>> both = np.stack([X[:, :2] @ X[:, :2].T, X[:, 2:] @ X[:, 2:].T])
            >>> bool(np.allclose(GramGeometry.of_layers(both).gram, X @ X.T))
            True
        """
        return cls(_sum_of(layers, more.get("judged")), ids, layers=layers, **more)

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.gram)

    @cached_property
    def distances(self) -> Float:
        """(K, K) squared distances."""
        return squared_distances(self.gram)

    @cached_property
    def ranked(self) -> Float:
        """(K, K) squared distances with every row sorted: its own 0, the nearest neighbour's, ..."""
        return np.sort(self.distances, axis=1)

    @property
    def streaming(self) -> bool:
        """The Gram matrix is at hand."""
        return False

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`."""
        return self.gram if self.about_reference is None else _sum_of(self.layers_about_reference, self.judged)

    @property
    def layers_about_reference(self) -> Float:
        """(L, K, K) Gram matrices of `w_k - reference`."""
        about = self.about_reference
        if about is None:
            return self.layers
        if callable(about):
            about = about()
        return about[None] if about.ndim == 2 else about

    def residuals(self, a: Float) -> Float:
        """`r_k^2 = G_kk - 2 (G a)_k + a^T G a`."""
        mixed = a @ self.gram
        norm = (mixed * a).sum(axis=-1, keepdims=True)
        mixed *= -2.0
        mixed += self.gram.diagonal()
        mixed += norm
        return np.maximum(mixed, 0.0, out=mixed)

    def layer_residuals(self, a: Float) -> Float:
        """The same with each layer's Gram matrix, (L, K) or (m, L, K)."""
        rows = np.atleast_2d(a)
        mixed = np.swapaxes(rows @ self.layers, 0, 1)  # (m, L, K)
        norms = (mixed * rows[:, None, :]).sum(axis=-1, keepdims=True)
        squared = np.maximum(np.diagonal(self.layers, axis1=1, axis2=2) - 2.0 * mixed + norms, 0.0)
        return squared[0] if a.ndim == 1 else squared

    def sign_counts(self) -> Float:
        """(K, 3) how many coordinates of `w_k - reference` are > 0, == 0 and < 0."""
        if self.signs is not None:
            return self.signs()
        if self.mixed_signs is None:
            raise ValueError("this geometry has no coordinates, so signs cannot be counted; call hn.aggregate instead")
        return self.mixed_signs(None)

    def coordinates(self) -> Coordinates:
        """The updates themselves, by layer."""
        if self.mixed_coordinates is None:
            raise ValueError("this geometry has no coordinates, and the rule needs updates; call hn.aggregate instead")
        return self.mixed_coordinates(None)

    def statistics(self) -> Sequence[Statistics]:
        """BatchNorm's running means and variances, by layer."""
        return () if self.mixed_statistics is None else self.mixed_statistics(None)

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The geometry of some of the clients."""
        rows = np.asarray(clients)
        chosen, whole, running = np.eye(self.K)[rows], self.mixed_coordinates, self.mixed_statistics
        about = self.about_reference
        some = self.signs is not None or self.mixed_signs is not None
        return GramGeometry(
            self.gram[np.ix_(rows, rows)],
            tuple(self.ids[k] for k in rows) if self.ids else (),
            None if self.sizes is None else self.sizes[rows],
            self.has_reference,
            _changed(about, lambda G: G[..., rows, :][..., rows]),
            (lambda: self.sign_counts()[rows]) if some else None,
            None if self.root_products is None else self.root_products[[*rows, -1]],
            mixed_coordinates=None if whole is None else lambda B: whole(chosen if B is None else B @ chosen),
            mixed_statistics=None if running is None else lambda B: running(chosen if B is None else B @ chosen),
            layers=self.layers[:, rows][:, :, rows],
            judged=self.judged,
            layer_names=self.layer_names,
            layer_sizes=self.layer_sizes,
        )

    def mixtures(self, A: Float) -> GramGeometry:
        """The geometry of the mixtures `A X + (1 - A 1) reference`: `G' = A G A^T` about the reference."""
        sums = A.sum(axis=1)
        if np.allclose(sums, 1.0, rtol=0, atol=1e-12):
            layers, about = A @ self.layers @ A.T, _changed(self.about_reference, lambda G: A @ G @ A.T)
        else:  # a clipped mixture leans on the reference, so its coordinates are needed about the reference
            layers, about = A @ self.layers_about_reference @ A.T, None
        ids = self.ids if len(A) == self.K else tuple(range(len(A)))
        root, signs, whole = self.root_products, self.mixed_signs, self.mixed_coordinates
        running = self.mixed_statistics
        return GramGeometry.of_layers(
            layers,
            ids,
            has_reference=self.has_reference,
            about_reference=about,
            root_products=None if root is None else np.append(A @ root[:-1], root[-1]),
            mixed_signs=None if signs is None else lambda B: signs(A if B is None else B @ A),
            mixed_coordinates=None if whole is None else lambda B: whole(A if B is None else B @ A),
            mixed_statistics=None if running is None else lambda B: running(A if B is None else B @ A),
            judged=self.judged,
            layer_names=self.layer_names,
            layer_sizes=self.layer_sizes,
        )


def _changed(
    about: Float | Callable[[], Float] | None, change: Callable[[Float], Float]
) -> Float | Callable[[], Float] | None:
    """The Gram matrices about the reference, changed now or when they are measured."""
    if about is None:
        return None
    return (lambda: change(about())) if callable(about) else change(about)


def _sum_of(layers: Float, judged: npt.NDArray[np.bool_] | None) -> Float:
    """(K, K) the sum over the layers that are judged."""
    chosen = layers if judged is None or judged.all() else layers[judged]
    return chosen[0] if len(chosen) == 1 else chosen.sum(axis=0)
