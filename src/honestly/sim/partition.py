"""Which client holds which training images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Parts: TypeAlias = list[npt.NDArray[np.int64]]
SWEEPS = 1000


def balanced(labels: npt.NDArray[np.int64], clients: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """The paper's: Dirichlet(alpha) shares of each class, made doubly stochastic, so all clients are equal in size.

    `P` (classes x clients) has Dirichlet rows; Sinkhorn sweeps (columns, then rows) give every column the same sum, and
    `P[c, k]` is the share of class c that client k gets.
    """
    values, counts = np.unique(labels, return_counts=True)
    # a Dirichlet draw of a small alpha underflows to 0, which no sweep can repair
    P = np.maximum(rng.dirichlet(np.full(clients, alpha), size=len(values)), 1e-12)
    for _ in range(SWEEPS):
        # columns hold equal numbers of *images*, also where classes differ in size
        P *= (counts.sum() / clients) / (counts @ P)
        P /= P.sum(axis=1, keepdims=True)
    return _deal(labels, values, P, rng)


def dirichlet(labels: npt.NDArray[np.int64], clients: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Dirichlet(alpha) shares of each class; clients differ in size."""
    values = np.unique(labels)
    return _deal(labels, values, rng.dirichlet(np.full(clients, alpha), size=len(values)), rng)


def iid(labels: npt.NDArray[np.int64], clients: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """A random equal part for each client; ``alpha`` has no meaning here."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def shards(labels: npt.NDArray[np.int64], clients: int, *, alpha: float, rng: np.random.Generator) -> Parts:
    """Images sorted by class, cut into two shards per client, dealt at random (McMahan et al. 2017); no ``alpha``."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, 2 * clients)
    dealt = rng.permutation(2 * clients)
    return [np.sort(np.concatenate([pieces[dealt[2 * k]], pieces[dealt[2 * k + 1]]])) for k in range(clients)]


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "balanced": balanced,
    "dirichlet": dirichlet,
    "iid": iid,
    "shards": shards,
}


def partition(
    labels: npt.NDArray[np.int64], clients: int, *, kind: str, alpha: float, rng: np.random.Generator
) -> Parts:
    """The sample numbers of each client; every client has at least one.

    >>> labels = np.repeat(np.arange(10), 100)
    >>> parts = partition(labels, 20, kind="balanced", alpha=0.5, rng=np.random.default_rng(0))
    >>> min(map(len, parts)) >= 45, max(map(len, parts)) <= 55, sum(map(len, parts))
    (True, True, 1000)
    """
    if clients > len(labels):
        raise ValueError(f"clients = {clients}: only {len(labels)} training images to share; use fewer clients")
    parts = PARTITIONS[kind](labels, clients, alpha=alpha, rng=rng)
    sizes = np.array([len(part) for part in parts])
    for poor in np.flatnonzero(sizes == 0).tolist():
        rich = int(sizes.argmax())
        gift = rng.integers(sizes[rich])
        parts[poor] = parts[rich][gift : gift + 1]
        parts[rich] = np.delete(parts[rich], gift)
        sizes[rich] -= 1
    return parts


def _deal(
    labels: npt.NDArray[np.int64], values: npt.NDArray[np.int64], P: npt.NDArray[np.float64], rng: np.random.Generator
) -> Parts:
    """Deal each class in random order by the shares `P[c]`, rounded so that no image is lost."""
    dealt: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(P.shape[1])]
    for value, share in zip(values, P, strict=True):
        members = rng.permutation(np.flatnonzero(labels == value))
        ends = np.rint(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        for k, piece in enumerate(np.split(members, ends)):
            dealt[k].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in dealt]
