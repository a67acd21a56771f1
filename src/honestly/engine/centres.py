"""Where the Gram matrix is centred: near the honest clients, as far as a sample of columns or a first matrix shows."""

from __future__ import annotations

import numpy as np

from honestly.engine.passes import BETWEEN, ZERO
from honestly.engine.passes.blas import gram_of
from honestly.engine.screening import Screen
from honestly.result import AggregationError, Float
from honestly.rules.rule import squared_distances

# More candidates than this for the centre are not compared with one another.
MOST_CANDIDATES = 256


def starting_centre(screen: Screen) -> int | None:
    """The reference, else what the passes centre on without extra cost, else a central client; None means zero."""
    free = None if screen.source.has_reference else screen.passes.free_centre(screen.usable)
    if free == BETWEEN:
        return BETWEEN
    if free == ZERO and _zero_is_central(screen):
        return None
    return first_centre(screen, set())


def _zero_is_central(screen: Screen) -> bool:
    """Whether a majority of the clients is as near to zero as to any client, on a sample of columns."""
    G = _sampled_gram(screen, _candidates(screen))
    radius = float(majority(G.diagonal()))
    return radius < np.inf and radius <= float(majority_radii(G).min())


def first_centre(screen: Screen, tried: set[int | None]) -> int:
    """The reference, else the most central client on a sample of columns that has no fault itself."""
    if screen.source.has_reference and screen.K not in tried:
        return screen.K
    for k in by_centrality(screen):
        if k not in tried:
            return k
    raise AggregationError("no usable client is left", screen.reasons_by_id())


def by_centrality(screen: Screen) -> list[int]:
    """Usable clients (a selection of very many), the most central on a sample of columns first."""
    candidates = _candidates(screen)
    if len(candidates) < 3:
        return candidates
    return [candidates[j] for j in by_majority_radius(_sampled_gram(screen, candidates))]


def _candidates(screen: Screen) -> list[int]:
    clients = screen.usable
    return [clients[j] for j in np.linspace(0, len(clients) - 1, min(len(clients), MOST_CANDIDATES)).astype(int)]


def _sampled_gram(screen: Screen, clients: list[int]) -> Float:
    """About zero, on some of the columns."""
    with np.errstate(over="ignore", invalid="ignore"):
        return gram_of(screen.passes.sample(clients))


def better_centre(screen: Screen, G: Float, tried: set[int | None]) -> int | None:
    """The most central client by the matrix, else on a sample, of those that were not tried; None if all were."""
    by_matrix = [screen.usable[j] for j in by_majority_radius(G)] if np.isfinite(G).any() else []
    return next((k for k in [*by_matrix, *by_centrality(screen)] if k not in tried), None)


def by_majority_radius(G: Float) -> list[int]:
    """Rows in order of the radius of the ball around them that holds a majority of all rows."""
    return np.argsort(majority_radii(G), kind="stable").tolist()


def majority_radii(G: Float) -> Float:
    """(k,) the squares of these radii."""
    with np.errstate(over="ignore", invalid="ignore"):
        return majority(squared_distances(G))


def majority(distances: Float) -> Float:
    """The distance within which a majority of the last axis lies; what is not finite is far away."""
    half = distances.shape[-1] // 2
    return np.partition(np.where(np.isfinite(distances), distances, np.inf), half, axis=-1)[..., half]
