"""The first pass: who can be used at all, and the geometry of those who can.

Distances of float32 weights need a centre near the honest clients: the reference where there is one, else the median of
three clients (where the pass can take it on the way) or a central client found on a sample of columns. None is trusted:
if the Gram matrix shows that the centre is far away (a liar may look central where we looked), the pass is repeated on
a client that the matrix itself shows to be central.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from honestly.arrays import COMPUTE, LARGEST
from honestly.passes import BETWEEN, Passes
from honestly.result import AggregationError, ClientId, Float
from honestly.rules.base import GramGeometry, squared_distances
from honestly.sources import Source

# Distances are right to about 3e-7 (|c_i|^2 + |c_j|^2): with this ratio to the distance itself they are right to 1e-4.
FAR_CENTRE = 200.0
# More candidates than this for the centre are not compared with one another.
MOST_CANDIDATES = 256


class Survey:
    """Screening and measuring of a source's clients; `usable` shrinks and `reasons` grows as faults are found.

    Attributes:
        K: how many clients answered.
        usable: positions of the clients that have not been refused.
        ids: names of the usable clients.
        reasons: why the others were refused, by position.
    """

    def __init__(self, source: Source, passes: Passes) -> None:
        self.source = source
        self.passes = passes
        self.K = len(source.ids)
        self.reasons: dict[int, str] = dict(source.refused)
        self._list_usable()
        if not source.leaves and not source.integers and not self.reasons:
            raise AggregationError("the updates hold no values")

    def _list_usable(self) -> None:
        self.usable: list[int] = [k for k in range(self.K) if k not in self.reasons]
        self.ids: tuple[ClientId, ...] = tuple([self.source.ids[k] for k in self.usable])

    def screen(self, suspects: Sequence[int]) -> bool:
        """Read every value of these clients and refuse those with a fault; True if there was one."""
        known = self.source.faults()
        faults = {k: None if k in known else self.passes.fault(k) for k in suspects}
        faults |= {k: reason for k, reason in self.source.faults().items() if k in faults}
        found = {k: fault for k, fault in faults.items() if fault is not None}
        self.reasons |= found
        self._list_usable()
        return bool(found)

    def check_reference(self) -> None:
        """Raise ValueError if the reference itself is not finite: no client is to blame for that."""
        if self.source.has_reference:
            self._check_own("reference", self.K)

    def _check_own(self, name: str, position: int) -> None:
        fault = self.passes.fault(position)
        if fault is not None:
            raise ValueError(f"{name}: {fault}")

    def root_products(self, reference: int | None) -> Float:
        """(k + 1,) products of the usable clients, and of the root itself, with the root, about the reference."""
        products = self.passes.gram([*self.usable, self.K + 1], reference)[-1]
        if not products[-1] < self.overflow():
            self._check_own("root", self.K + 1)
        return products

    def gram(self) -> tuple[Float, int]:
        """Gram matrix of the usable clients and the position of its centre, after screening."""
        geometry, centre = self.measured(lambda G, _: GramGeometry(G))
        return geometry.gram, centre

    def measured(self, described: Callable[[Float, int], GramGeometry]) -> tuple[GramGeometry, int]:
        """The geometry of the usable clients, which `described` makes of their Gram matrix, and its centre."""
        tried: set[int] = set()
        between = not self.source.has_reference and self.passes.between(len(self.usable))
        centre = BETWEEN if between else self.first_centre(tried)
        while True:
            clients = self.usable
            G = self.passes.gram(clients, centre)
            tried.add(centre)
            wrong = {clients[j] for j in _not_finite(G, self.overflow())} | set(self.source.faults())
            suspects = [k for k in clients if k in wrong] if wrong else []
            if suspects and self.screen(suspects):
                kept = [j for j, k in enumerate(clients) if k not in self.reasons]
                G, suspects = G[np.ix_(kept, kept)], [k for k in suspects if k not in self.reasons]
                clients = self.usable
            if 2 * len(suspects) > len(clients):
                self.check_reference()
            geometry = described(G, centre)
            near = 2 * len(suspects) <= len(clients) and centre not in self.reasons
            if not clients or (near and not _far(geometry)):
                return geometry, centre
            better = self._better_centre(G, clients, tried)
            if better is None:
                return geometry, centre
            centre = better

    def gram_about(self, reference: int | None) -> Float:
        """The Gram matrix about the reference (None: about 0), where values may overflow that were close together.

        Raises `FaultFoundError` if that shows clients who cannot be used.
        """
        clients = self.usable
        G = self.passes.gram(clients, reference)
        wrong = _not_finite(G, self.overflow())
        if wrong and self.screen([clients[j] for j in wrong]):
            raise FaultFoundError
        return G

    def overflow(self) -> float:
        """The squared norm from which on a client's values have to be looked at one by one."""
        widest = {COMPUTE[leaf.spec.dtype].__name__ for leaf in self.source.leaves}
        return min(LARGEST[name] for name in widest) ** 2

    def first_centre(self, tried: set[int]) -> int:
        """The reference, else the most central client on a sample of columns that has no fault itself."""
        if self.source.has_reference and self.K not in tried:
            return self.K
        clients = self.usable
        for k in self._by_centrality(clients):
            if k not in tried:
                return k
        raise AggregationError("no usable client is left", self.named_reasons())

    def _by_centrality(self, clients: list[int]) -> list[int]:
        candidates = [
            clients[j] for j in np.linspace(0, len(clients) - 1, min(len(clients), MOST_CANDIDATES)).astype(int)
        ]
        if len(candidates) < 3:
            return candidates
        sample = self.passes.sample(candidates)
        with np.errstate(over="ignore", invalid="ignore"):
            order = _by_majority_radius(sample @ sample.T)
        return [candidates[j] for j in order]

    def _better_centre(self, G: Float, clients: list[int], tried: set[int]) -> int | None:
        by_matrix = [clients[j] for j in _by_majority_radius(G)] if np.isfinite(G).any() else []
        return next((k for k in [*by_matrix, *self._by_centrality(clients)] if k not in tried), None)

    def require(self, fewest: int, needed_by: object) -> None:
        """Raise AggregationError unless a majority of all clients, and at least `fewest`, can be used."""
        usable = len(self.usable)
        if 2 * usable > self.K and usable >= fewest:
            return
        if 2 * usable <= self.K:
            why = f"only {usable} of {self.K} clients can be used, which is not a majority"
        else:
            why = f"only {usable} of {self.K} clients can be used, but {needed_by} needs at least {fewest}"
        raise AggregationError(self.with_reasons(why), self.named_reasons())

    def with_reasons(self, why: str) -> str:
        """A sentence, and the first ten clients who were refused."""
        listed = [f"client {name!r}: {reason}" for name, reason in list(self.named_reasons().items())[:10]]
        more = [f"and {len(self.reasons) - 10} more"] if len(self.reasons) > 10 else []
        return "; ".join([why, *listed, *more])

    def named_reasons(self) -> dict[ClientId, str]:
        """Reasons by client id, in the clients' order."""
        return {self.source.ids[k]: self.reasons[k] for k in sorted(self.reasons)}


def _not_finite(G: Float, limit: float) -> list[int]:
    """Rows with an overflowed norm, then rows that are not finite for another reason than such a row's column."""
    norms = G.diagonal()
    if len(G) and float(norms.max()) < limit and math.isfinite(float(G.sum())):
        return []
    fine = norms < limit
    fine[fine] = np.isfinite(G[np.ix_(fine, fine)]).all(axis=1)
    return np.flatnonzero(~fine).tolist()


def _by_majority_radius(G: Float) -> list[int]:
    """Rows in order of the radius of the ball around them that holds a majority of all rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        distances = squared_distances(G)
    distances = np.where(np.isfinite(distances), distances, np.inf)
    half = len(G) // 2
    return np.argsort(np.partition(distances, half, axis=1)[:, half], kind="stable").tolist()


def _far(clients: GramGeometry) -> bool:
    """True if the centre is so far from the tightest majority that their distances have drowned in its norm."""
    K = clients.K
    if K < 2:
        return False
    shortest, _, norm = clients.extent
    if 2.0 * norm <= FAR_CENTRE * shortest:
        return False  # true of every pair
    norms, ranked = clients.gram.diagonal(), clients.ranked
    nearest = np.argpartition(clients.distances[np.argmin(ranked[:, K // 2])], K // 2)[: K // 2 + 1]
    few = norms[nearest]
    sums = np.sort(few[:, None] + few, axis=None)
    apart = np.sort(clients.distances[nearest][:, nearest], axis=None)
    middle = (len(apart) + len(nearest)) // 2  # the median pair: the diagonal's zeros come first
    return bool(sums[middle] > FAR_CENTRE * apart[middle])


class FaultFoundError(Exception):
    """A pass over thousands of clients has met values that cannot be used: the round starts anew without them."""


class StreamGeometry:
    """The geometry of thousands of clients: no K x K matrix, a pass over the data for each question.

    Rows are multiplied where they lie, without a centre, as long as the residuals show that this is precise enough;
    else they are centred on the way, which costs a copy of each block.
    """

    root_products: Float | None = None
    streaming: bool = True

    def __init__(self, survey: Survey, sizes: Float | None) -> None:
        self.survey = survey
        self.has_reference = survey.source.has_reference
        self._clients = survey.usable
        self.ids = survey.ids
        self.sizes = None if sizes is None else sizes[self._clients]
        self._centre: int | None = None
        self._norms: Float | None = None

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self._clients)

    @property
    def gram(self) -> Float:
        """The whole Gram matrix all the same, at K^2 d work."""
        return self.survey.gram()[0]

    @property
    def gram_about_reference(self) -> Float:
        """The Gram matrix about the reference, at K^2 d work."""
        return self.survey.passes.gram(self._clients, self.survey.K if self.has_reference else None)

    def residuals(self, a: Float) -> Float:
        """One pass for all rows of `a`; the first one also shows which clients can be used."""
        rows, norms = self._residuals(np.atleast_2d(a))
        if self._centre is None and np.median(norms) > FAR_CENTRE * np.median(rows):
            self._centre, self._norms = self.survey.first_centre(set()), None
            rows, _ = self._residuals(np.atleast_2d(a))
        return rows[0] if a.ndim == 1 else rows

    def _residuals(self, a: Float) -> tuple[Float, Float]:
        known = self._norms is not None
        rows, norms = self.survey.passes.residuals(a, self._clients, self._centre, self._norms)
        if not known:
            self._screen([self._clients[j] for j in np.flatnonzero(~(norms < self.survey.overflow()))])
            self._norms = norms
        return rows, norms

    def _screen(self, suspects: Sequence[int]) -> None:
        if len(suspects) and self.survey.screen(suspects):
            raise FaultFoundError

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The exact geometry of a few clients, one pass over theirs."""
        chosen = [self._clients[k] for k in clients]
        sizes = None if self.sizes is None else self.sizes[np.asarray(clients)]
        ids = tuple(self.ids[k] for k in clients)
        centre = self.survey.first_centre(set())
        few = GramGeometry(self.survey.passes.gram(chosen, centre), ids, sizes)
        wrong = _not_finite(few.gram, self.survey.overflow())
        if wrong:
            self._screen(sorted({centre, *(chosen[j] for j in wrong)} - {self.survey.K}))
        if not _far(few):
            return few
        return replace(few, gram=self.survey.passes.gram(chosen, chosen[_by_majority_radius(few.gram)[0]]))

    def sign_counts(self) -> Float:
        """One pass."""
        reference = self.survey.K if self.has_reference else None
        return self.survey.passes.sign_counts(self._clients, reference, None)
