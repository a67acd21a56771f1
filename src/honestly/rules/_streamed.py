"""`Bayesian` on thousands of clients: what it needs to know before the EM, from two passes over the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules._votes import copies, merging, shared_votes
from honestly.rules.base import Geometry, GramGeometry

SAMPLE = 384  # clients whose Gram matrix is formed
ANCHORS = 15  # of them, to which every client's distance is measured in one pass
EQUAL = 1e-5  # relative difference of squared distances that single precision leaves between copies


@dataclass(frozen=True)
class Survey:
    """What is known before the EM.

    Attributes:
        start: (K,) weights of the centre to start from.
        r2: (K,) squared distances to that centre.
        group: (K,) each client's group of copies.
        first: each group's first client.
        votes: each group's share of a vote.
        apart: each group's prior log-odds.
    """

    start: Float
    r2: Float
    group: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    votes: Float
    apart: Float


@dataclass(frozen=True)
class Representatives:
    """The geometry of one client of each group of copies, in the eyes of the EM."""

    whole: Geometry
    first: npt.NDArray[np.intp]

    @property
    def K(self) -> int:
        """Number of groups."""
        return len(self.first)

    def residuals(self, a: Float) -> Float:
        """One pass."""
        weights = np.zeros(self.whole.K)
        weights[self.first] = a
        return self.whole.residuals(weights)[self.first]


def survey(geometry: Geometry, centres: Callable[[GramGeometry], tuple[Float, Float, Float | None]]) -> Survey:
    """A sample's Gram matrix gives the centres; one pass gives all distances to them and to a few anchors.

    If a group of the sample stands apart, every client that is nearer to its centre than to the believed one gets the
    group's prior. The sample is drawn with a seed that depends on K alone: same input, same answer.

    Arguments:
        geometry: thousands of clients.
        centres: clients -> weights of a robust centre, weights of the centre to start from, prior log-odds.
    """
    K = geometry.K
    rng = np.random.default_rng(K)
    sample = np.sort(rng.choice(K, size=min(SAMPLE, K), replace=False))
    few = geometry.subset(sample.tolist())
    same = copies(few)
    A = merging(np.arange(few.K) if same is None else same)
    median, start, apart = centres(few if same is None else GramGeometry(A @ few.gram @ A.T))
    apart = np.zeros(len(A)) if apart is None else apart
    outside = np.where(apart < np.log(0.5), 1.0, 0.0)
    anchors = rng.choice(sample, size=min(ANCHORS, len(sample)), replace=False)
    rows = np.zeros((3 + len(anchors), K))
    rows[0, sample] = median @ A
    rows[1, sample] = start @ A
    rows[2, sample] = (outside / outside.sum() if outside.any() else start) @ A
    rows[np.arange(3, len(rows)), anchors] = 1.0
    distances = geometry.residuals(rows)
    group = _equal(distances)
    first = np.unique(group, return_index=True)[1]
    votes = _votes(distances[0], distances[3:], anchors, group, first)
    prior = np.where(distances[2] < distances[1], float(apart.min()), 0.0)[first]
    return Survey(rows[1], distances[1], group, first, votes, prior)


def _equal(distances: Float) -> npt.NDArray[np.intp]:
    """Clients whose distances to the centre and to all anchors are the same up to rounding: copies."""
    order = np.argsort(distances[0], kind="stable")
    ranked = distances[:, order]
    new = (np.abs(np.diff(ranked, axis=1)) > EQUAL * (ranked[:, 1:] + ranked[:, :-1] + ranked[0, 1:])).any(axis=0)
    group = np.empty(len(order), dtype=np.intp)
    group[order] = np.concatenate([[0], np.cumsum(new)])
    # number the groups by their first client
    _, index, inverse = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(index))[inverse]


def _votes(
    r2: Float, D: Float, anchors: npt.NDArray[np.intp], group: npt.NDArray[np.intp], first: npt.NDArray[np.intp]
) -> Float:
    """`v_k` with the sum over all others estimated from the anchors, each group of copies counted once."""
    lengths = 2.0 * np.sqrt(r2[first, None] * r2[None, anchors])
    inner = r2[first, None] + r2[None, anchors] - D[:, first].T
    cosines = np.divide(inner, lengths, out=np.zeros_like(inner), where=lengths > 0.0)
    cosines[group[first][:, None] == group[anchors][None, :]] = 0.0  # its own group is the 1 below
    counted = 1.0 / np.bincount(group)[group[anchors]]
    others = (np.clip(cosines, 0.0, 1.0) ** 4) @ counted / counted.sum() * len(first)
    return shared_votes((1.0 + others)[:, None])
