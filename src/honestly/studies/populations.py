"""Honest populations of updates to attack: synthetic ones by name, recorded ones from files.

Every synthetic population has a mean of length about 1 and, but for the unequal ones, an honest spread of about 1,
which is as heterogeneous as updates of real clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from honestly.hints import unknown
from honestly.result import Float
from honestly.runs.npz import read_npz
from honestly.sim.attacks import ATTACKS, DataAttack
from honestly.studies import recordings
from honestly.studies.layers.space import LayeredPopulation
from honestly.studies.recordings import Course

DIMENSION = 2000


@dataclass(frozen=True)
class Population:
    """Honest updates of K clients, `w_k - reference`.

    Attributes:
        name: for tables.
        honest: (K, d).
        root: (d,) a trusted update that is not one of the clients', for rules that need one.
        poisoned: by the name of a data attack, (m, d): what the last m clients send when they train on poisoned data.
        recorded: True for updates of real training.
    """

    name: str
    honest: Float
    root: Float
    poisoned: Mapping[str, Float] = field(default_factory=dict[str, Float])
    recorded: bool = False

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.honest)


def _noise(rng: np.random.Generator, n: int, d: int) -> Float:
    """(n, d) isotropic noise of length about 1."""
    return rng.standard_normal((n, d)) / np.sqrt(d)


def isotropic(rng: np.random.Generator, K: int, d: int) -> Float:
    """Gaussian, the same in every direction: clients with equal data."""
    return _noise(rng, K, d)


def low_rank(rng: np.random.Generator, K: int, d: int) -> Float:
    """Eight directions carry nearly all differences: clients whose data differ in few respects."""
    rank = min(8, d)
    return rng.standard_normal((K, rank)) / np.sqrt(rank) @ _noise(rng, rank, d) + 0.3 * _noise(rng, K, d)


def heavy_tailed(rng: np.random.Generator, K: int, d: int) -> Float:
    """Student's t with 3 degrees of freedom in length: now and then an honest client is far out."""
    return _noise(rng, K, d) / np.sqrt(rng.chisquare(3, (K, 1)) / 3)


def unequal_norms(rng: np.random.Generator, K: int, d: int) -> Float:
    """The lengths of updates differ by a log-normal factor of 2: clients with unequal amounts of data."""
    return _noise(rng, K, d)  # the factor multiplies the mean too: see `synthetic`


def clustered(rng: np.random.Generator, K: int, d: int) -> Float:
    """Four groups of clients, each with its own centre: label skew."""
    return _noise(rng, 4, d)[np.arange(K) % 4] + 0.7 * _noise(rng, K, d)


KINDS: dict[str, Callable[[np.random.Generator, int, int], Float]] = {
    "isotropic": isotropic,
    "low_rank": low_rank,
    "heavy_tailed": heavy_tailed,
    "unequal_norms": unequal_norms,
    "clustered": clustered,
}


def synthetic(kind: str, *, clients: int, seed: int, dimension: int = DIMENSION) -> Population:
    """A synthetic population by name; one more client is drawn, whose update is the trusted root.

    >>> population = synthetic("isotropic", clients=20, seed=0)
    >>> population.honest.shape, round(float(np.linalg.norm(population.honest.mean(0))), 0)
    ((20, 2000), 1.0)
    """
    if kind not in KINDS:
        raise ValueError(unknown("population", kind, KINDS, ", or a .npz file or a folder of them"))
    rng = np.random.default_rng([seed, *kind.encode()])
    updates = _noise(rng, 1, dimension) + KINDS[kind](rng, clients + 1, dimension)
    if kind == "unequal_norms":
        updates *= np.exp(0.7 * rng.standard_normal((clients + 1, 1)))
    return Population(kind, updates[:clients], updates[clients])


def read_population(path: Path, *, clients: int) -> Population:
    """The population of one round, as `honestly simulate --record` writes it.

    The file (.npz, never pickled) holds ``honest`` (K, d), and by the name of a data attack the updates (m, d) that the
    last m clients send if they train on poisoned data. If fewer clients are asked for, the last ones are taken, so
    the poisoned updates stay theirs. The root is the first client's update, which a server could have made itself.
    """
    try:
        with path.open("rb") as stream:
            arrays = read_npz(stream)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; make one with `honestly simulate --record`") from error
    if "honest" not in arrays or arrays["honest"].ndim != 2:
        raise ValueError(f"{path}: has no array 'honest' of shape (K, d); it has {', '.join(arrays) or 'nothing'}")
    honest = arrays.pop("honest").astype(np.float64)
    if clients > len(honest):
        raise ValueError(
            f"{path}: has {len(honest)} clients, but {clients} were asked for: use --clients {len(honest)} or fewer"
        )
    if not np.isfinite(honest).all():
        raise ValueError(f"{path}: 'honest' has values that are not finite")
    data = {name for name, attack in ATTACKS.items() if issubclass(attack, DataAttack)}
    poisoned = {name: rows.astype(np.float64) for name, rows in arrays.items() if name in data and len(rows)}
    return Population(path.stem, honest[len(honest) - clients :], honest[0], poisoned, recorded=True)


#: Recordings by layer that come with the package, and how many of the first clients are idle there.
RECORDED = {"digits": 0, "digits_idle": 0.3}


@dataclass(frozen=True)
class PopulationSource:
    """Where a population comes from: a synthetic kind and its seed, or a file (whose seed only draws the attacks).

    ``course`` and ``round`` are of a recording by layer; ``idle`` is the share of its clients that do not train.
    """

    name: str
    seed: int
    course: str = ""
    round: int = 0
    idle: float = 0.0

    @property
    def clients(self) -> int | None:
        """The number of clients if it comes with the package; None if the file must be opened to know."""
        shipped = str(recordings.shipped_recording())
        return _courses(shipped)[0].clients if self.name == shipped else None

    def open(self, clients: int) -> Population | LayeredPopulation:
        """The population, with as many clients as asked for."""
        if self.course:
            course = next(course for course in _courses(self.name) if course.name == self.course)
            return LayeredPopulation.of(course, self.round, clients=clients, idle=int(self.idle * clients))
        if self.name.endswith(".npz"):
            return read_population(Path(self.name), clients=clients)
        return synthetic(self.name, clients=clients, seed=self.seed)


@cache
def _courses(path: str) -> tuple[Course, ...]:
    return recordings.read(path)


def sources(names: Sequence[str], *, seeds: Sequence[int]) -> tuple[PopulationSource, ...]:
    """Every population by name: a kind (one for each seed), a .npz file or a folder of them (one each).

    A recording by layer has one population for each of its rounds.

    >>> sources(["low_rank"], seeds=[0, 1])[1].seed
    1
    """
    listed: list[PopulationSource] = []
    for name in names:
        path = Path(name)
        if name in KINDS:
            listed += [PopulationSource(name, seed) for seed in seeds]
        elif name in RECORDED:
            every = _of_file(recordings.shipped_recording(), seeds[0])
            late = max(source.round for source in every)
            chosen = [s for s in every if not RECORDED[name] or ("-o0-" in s.course and s.round == late)]
            listed += [replace(source, idle=RECORDED[name]) for source in chosen]
        elif path.is_dir():
            files = sorted(path.glob("*.npz"))
            if not files:
                raise ValueError(f"{path}: holds no .npz file; record some with `honestly simulate --record`")
            listed += [source for file in files for source in _of_file(file, seeds[0])]
        elif path.suffix == ".npz":
            if not path.is_file():
                raise ValueError(f"{path}: no such file")
            listed += _of_file(path, seeds[0])
        else:
            raise ValueError(unknown("population", name, [*KINDS, *RECORDED], ", or a .npz file or a folder of them"))
    return tuple(listed)


def _of_file(path: Path, seed: int) -> list[PopulationSource]:
    if not recordings.is_recording(path):
        return [PopulationSource(str(path), seed)]
    return [PopulationSource(str(path), seed, course.name, r) for course in _courses(str(path)) for r in course.rounds]
