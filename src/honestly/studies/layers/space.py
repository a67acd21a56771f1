"""Everything that clients can send in one round, layer by layer, from Gram matrices instead of updates.

In each layer a client is a row of coefficients over a small basis: the recorded updates about the honest mean, that
mean, one random direction, and a noise vector for each attacker. Noise has the distribution that it would have in a
layer of p values (a part along the recorded updates, and the rest). So an attack that combines updates and adds noise
has exactly the Gram matrix that it would have with the updates themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.studies.recordings import Course

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class LayeredPopulation:
    """The updates of one round, by their inner products in each layer.

    Attributes:
        name: for tables.
        grams: (L, n, n) inner products of `w_k - reference`: K honest clients, then rows of poisoned training.
        sizes: (L,) values of each layer.
        clients: K.
        poisoned: by the name of a data attack, the rows of what the last clients send under it.
        layers: names of the layers.
        recorded: True for updates of real training.
    """

    name: str
    grams: Float
    sizes: npt.NDArray[np.int64]
    clients: int
    poisoned: Mapping[str, Rows] = field(default_factory=dict[str, Rows])
    layers: tuple[str, ...] = ()
    recorded: bool = True

    @classmethod
    def of(cls, course: Course, round: int, *, clients: int | None = None, idle: int = 0) -> LayeredPopulation:
        """One round of a course: the last ``clients`` of it (all, if None), so poisoned rows stay theirs.

        ``idle`` is how many of them, the first ones, send the model back unchanged whatever was recorded.
        """
        n = course.clients
        K = n if clients is None else clients
        if n < K:
            raise ValueError(f"{course.name}: has {n} clients, but {K} were asked for: use --clients {n} or fewer")
        chosen = np.concatenate([np.arange(n - K, n), np.arange(n, len(course.rows))])
        grams = course.rounds[round][:, chosen[:, None], chosen].copy()
        grams[:, :idle, :] = grams[:, :, :idle] = 0.0
        poisoned = {name: rows[-K:] - (n - K) for name, rows in course.poisoned.items()}
        name = f"{course.name} r{round}" + (f" idle {idle}" if idle else "")
        return cls(name, grams, course.sizes, K, poisoned, course.layers)

    def whole(self) -> LayeredPopulation:
        """The same updates as one layer."""
        total = self.sizes.sum(keepdims=True)
        return LayeredPopulation(
            self.name, self.grams.sum(0, keepdims=True), total, self.clients, self.poisoned, ("all",), self.recorded
        )


@dataclass(frozen=True)
class Space:
    """What can be sent, if the last M of K clients are malicious.

    Attributes:
        products: (L, b, b) inner products of the basis.
        H: number of honest clients; M: of malicious ones.
        n: number of recorded rows, the first ones of the basis; `mean`, `random` and `noise` come after them.
        poisoned: rows of the data attacks, M each.
        sizes: (L,) values of each layer.
        variance: (L,) mean squared distance of the honest clients to their mean.
    """

    products: Float
    H: int
    M: int
    n: int
    poisoned: Mapping[str, Rows]
    sizes: npt.NDArray[np.int64]
    variance: Float

    @classmethod
    def of(cls, population: LayeredPopulation, M: int, rng: np.random.Generator) -> Space:
        """The space of a population; ``rng`` draws the random direction and the noise."""
        H, n = population.clients - M, population.grams.shape[1]
        Y = _coordinates(population.grams, population.sizes, M + 1, rng)
        centring = np.eye(n)
        centring[:, :H] -= 1.0 / H
        mean = np.zeros((1, n))
        mean[0, :H] = 1.0 / H
        basis = np.concatenate([centring @ Y[:, :n], mean @ Y[:, :n], Y[:, n:]], axis=1)
        products = basis @ basis.transpose(0, 2, 1)
        variance = products[:, np.arange(H), np.arange(H)].mean(axis=1)
        poisoned = {name: rows[len(rows) - M :] for name, rows in population.poisoned.items() if len(rows) >= M}
        return cls(products, H, M, n, poisoned, population.sizes, variance)

    @property
    def L(self) -> int:
        """Number of layers."""
        return len(self.products)

    @property
    def b(self) -> int:
        """Size of the basis."""
        return self.products.shape[1]

    @property
    def spread(self) -> Float:
        """(L,) root mean squared distance of the honest clients to their mean, in each layer."""
        return np.sqrt(self.variance)

    @property
    def share(self) -> Float:
        """(L,) length of isotropic noise in each layer, if it has length 1 in all."""
        return np.sqrt(self.sizes / self.sizes.sum())

    def at(self, index: int) -> Float:
        """(b,) coefficients of one row of the basis."""
        row = np.zeros(self.b)
        row[index] = 1.0
        return row

    @property
    def mean(self) -> Float:
        """(b,) coefficients of the honest mean (as a vector from the reference)."""
        return self.at(self.n)

    @property
    def random(self) -> Float:
        """(b,) coefficients of a random direction of length 1 in every layer."""
        return self.at(self.n + 1)

    @property
    def noise(self) -> Float:
        """(M, b) coefficients of a noise vector for each attacker, of length about 1 in every layer."""
        return np.stack([self.at(self.n + 2 + m) for m in range(self.M)])

    def updates(self, rows: Rows) -> Float:
        """(m, b) coefficients of recorded updates, about the honest mean."""
        return np.stack([self.at(int(k)) for k in rows])

    @property
    def own(self) -> Float:
        """(M, b) coefficients of what the attackers' honest training gave, about the honest mean."""
        return self.updates(np.arange(self.H, self.H + self.M))

    def length(self, c: Float) -> Float:
        """(L,) length of a vector with coefficients (b,) or (L, b)."""
        c = np.broadcast_to(c, (self.L, self.b))
        return np.sqrt(np.maximum(np.einsum("li,lij,lj->l", c, self.products, c), 0.0))

    def grams(self, forged: Float) -> Float:
        """(L, K, K) what the server gets, about the honest mean, if attackers send rows (M, b) or (L, M, b)."""
        H = self.H
        F = np.broadcast_to(forged, (self.L, self.M, self.b))
        G = np.empty((self.L, H + self.M, H + self.M))
        G[:, :H, :H] = self.products[:, :H, :H]
        if self.M:
            FP = F @ self.products
            G[:, H:, :H] = FP[:, :, :H]
            G[:, :H, H:] = FP[:, :, :H].transpose(0, 2, 1)
            block = FP @ F.transpose(0, 2, 1)
            G[:, H:, H:] = 0.5 * (block + block.transpose(0, 2, 1))
        return G

    def towards_mean(self, forged: Float) -> Float:
        """(L, K) inner products of the clients, about the honest mean, with that mean (from the reference)."""
        F = np.broadcast_to(forged, (self.L, self.M, self.b))
        with_mean = self.products[:, :, self.n]
        return np.concatenate([with_mean[:, : self.H], np.einsum("lmb,lb->lm", F, with_mean)], axis=1)


def _coordinates(grams: Float, sizes: npt.NDArray[np.int64], extra: int, rng: np.random.Generator) -> Float:
    """(L, n + extra, n + extra) points with these Gram matrices, then random ones as in layers of these sizes.

    The first random one has length 1; the others are normal with variance 1 / size in each direction.
    """
    L, n, _ = grams.shape
    values, vectors = np.linalg.eigh(grams)
    Y = np.zeros((L, n + extra, n + extra))
    Y[:, :n, :n] = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    for layer, size in enumerate(sizes.tolist()):
        rank = min(n, size)
        Y[layer, :n, : n - rank] = 0.0  # eigenvalues come in ascending order: a layer of p values has p directions
        Y[layer, n:, n - rank : n] = rng.standard_normal((extra, rank))
        Y[layer, n:, n:] = _others(size - rank, extra, rng)
        Y[layer, n:] /= np.sqrt(size)
        Y[layer, n] /= np.linalg.norm(Y[layer, n])
    return Y


def _others(dimension: int, m: int, rng: np.random.Generator) -> Float:
    """(m, m) rows with the Gram matrix of m standard normal vectors in so many dimensions (Bartlett)."""
    if dimension < m:
        return np.pad(rng.standard_normal((m, dimension)), ((0, 0), (0, m - dimension)))
    below = np.tril(rng.standard_normal((m, m)), -1)
    return below + np.diag(np.sqrt(rng.chisquare(dimension - np.arange(m))))
