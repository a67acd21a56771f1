"""FreqFed: the majority whose updates agree in their low frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from honestly.rules._lib.clipping import cosines
from honestly.rules._lib.clusters import majority_component
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class FreqFed(Rule):
    """The mean of the densest majority by the low frequencies of the updates.

        V_k = the lowest frequencies of the discrete cosine transform of u_k;   value = mean of the majority
        majority = HDBSCAN of 1 - cos(V_k, V_j) with clusters of at least floor(K/2) + 1

    Lengths are not bounded: a huge update in a usual direction moves the mean.

    Conventions: the transform (DCT-II, orthonormal) is taken of each layer as one row of numbers, where the authors
    transform matrices in two dimensions; with so large a cluster HDBSCAN has a closed form, as in FLAME.

    Args:
        low: the share of frequencies that is kept in each layer, at least one; the authors keep the lower half.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> from honestly.rules.geometry import Coordinates
        >>> X = np.array([[1.0, 1.1, 0.9], [1.0, 0.9, 1.1], [1.1, 1.0, 1.0], [-2.0, -2.0, -2.0]])
        >>> seen = GramGeometry(X @ X.T, mixed_coordinates=lambda A: Coordinates((X,), (np.zeros(3),)))
        >>> FreqFed().mix(seen).matrix.round(2)
        array([[0.33, 0.33, 0.33, 0.  ]])

    Reference: Fereidooni et al., FreqFed: A Frequency Analysis-Based Approach for Mitigating Poisoning, NDSS 2024.
    """

    low: float = setting(0.5, above=0.0, most=1.0)

    name: ClassVar[str] = "freq_fed"
    summary: ClassVar[str] = "the majority that agrees in the low frequencies of its updates"
    reference: ClassVar[str] = "Fereidooni et al., NDSS 2024"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for the majority."""
        V = np.concatenate([self._low(part) for part in geometry.coordinates().updates], axis=1)
        members = majority_component(1.0 - cosines(V @ V.T))
        weights = np.zeros(geometry.K)
        weights[members] = 1.0 / len(members)
        return Mix.of_weights(weights, diagnostics={"selected": members})

    def _low(self, part: Any) -> Any:
        count = max(int(np.ceil(self.low * part.shape[1])), 1)
        return dct(np.asarray(part, dtype=np.float64))[:, :count]


def dct(rows: Any) -> Any:
    """(K, n) the orthonormal DCT-II of each row, by one FFT of its even extension.

    Example:
        >>> dct(np.ones((1, 4))).round(6)
        array([[2., 0., 0., 0.]])
    """
    n = rows.shape[1]
    spectrum = np.fft.rfft(np.concatenate([rows, rows[:, ::-1]], axis=1), axis=1)[:, :n]
    coefficients = (spectrum * np.exp(-0.5j * np.pi * np.arange(n) / n)).real * np.sqrt(0.5 / n)
    coefficients[:, 0] *= np.sqrt(0.5)
    return coefficients
