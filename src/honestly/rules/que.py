"""QUE: quantum-entropy scores, which find outliers in many directions at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.minority import Minority
from honestly.rules._lib.spectra import centre_gram
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class QUE(Minority, Rule):
    """The mean of what is left after f clients were dropped, each time the one with the largest QUE score.

        Sigma = covariance of the clients that are left,   U = exp(alpha Sigma / ||Sigma||) / trace
        score_k = <w_k - mean, U (w_k - mean)>

    alpha = 0 scores by the distance from the mean, a large alpha by the main direction alone (DnC); in between all
    directions with much variance count. From the Gram matrix: with eigenvalues l_j and eigenvectors u_j of the centred
    matrix, `score_k = sum_j l_j u_kj^2 exp(alpha l_j / l_1)` up to a factor. Convention: one client is dropped at a
    time, f times; the paper's filter lowers weights until the spectral norm is small, and needs no f but the variance.

    Args:
        f: the number of attackers to withstand; K >= 2f + 1.
        alpha: the paper's 4.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [50.0, 0.0], [0.0, 40.0]])
        >>> QUE(f=2).mix(GramGeometry(X @ X.T)).matrix.round(3)
        array([[0.333, 0.333, 0.333, 0.   , 0.   ]])

    Reference: Dong, Hopkins and Li, Quantum Entropy Scoring for Fast Robust Mean Estimation, NeurIPS 2019.
    """

    alpha: float = setting(4.0, least=0.0, most=100.0)

    name: ClassVar[str] = "que"
    summary: ClassVar[str] = "drops clients that stretch the spread in any direction, by quantum-entropy scores"
    reference: ClassVar[str] = "Dong, Hopkins and Li, NeurIPS 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"f"})

    def mix(self, geometry: Geometry) -> Mix:
        """Equal weights for those who are left."""
        K = geometry.K
        self.check(K)
        left = np.arange(K)
        first = que_scores(geometry.gram, self.alpha)
        scores = first
        for _ in range(self.f):
            left = np.delete(left, int(np.argmax(scores)))
            scores = que_scores(geometry.gram[np.ix_(left, left)], self.alpha)
        weights = np.zeros(K)
        weights[left] = 1.0 / len(left)
        return Mix.of_weights(weights, diagnostics={"scores": first, "selected": left})


def que_scores(G: Float, alpha: float) -> Float:
    """(K,) QUE scores of vectors with this Gram matrix, up to a common factor."""
    K = len(G)
    values, vectors = np.linalg.eigh(centre_gram(G, np.full(K, 1.0 / K)))
    values = np.maximum(values, 0.0)
    top = float(values[-1]) if K else 0.0
    if not top > 0.0:
        return np.zeros(K)
    # exp(alpha (l_j / l_1 - 1)): the same order, and no overflow
    return (vectors * vectors) @ (values * np.exp(alpha * (values / top - 1.0)))
