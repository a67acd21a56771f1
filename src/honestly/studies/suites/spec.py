"""What a suite is: courses of training to record, attacks to run on them, and the hash of both."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from honestly.hints import unknown
from honestly.lazy import cached_property
from honestly.sim.data.files import home
from honestly.studies.layers.forge import check
from honestly.studies.recordings import Course, read

#: The suites of the package.
SUITES = ("small-1", "core-1", "images-1")
#: Lengths and variances of two recordings of a round agree if they differ by no more than this factor.
FACTOR = 1.5
#: The share of rounds that must agree in a recording made on another machine.
SHARE = 0.8


@dataclass(frozen=True)
class Recipe:
    """One course: its name and the words that `honestly stress --record` understands, or `language=lora ...`."""

    name: str
    words: str


@dataclass(frozen=True)
class Suite:
    """A specification.

    Attributes:
        name: with its version; a change of anything else needs another name.
        about: one sentence for people.
        attacks: words of the fixed attacks.
        malicious: shares of the clients.
        tries: lies that the adaptive attacker tries against each rule, in each round, for each of its two goals.
        courses: what to record.
    """

    name: str
    about: str
    attacks: tuple[str, ...]
    malicious: tuple[float, ...]
    tries: int
    courses: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        """Check attacks, shares and names."""
        for spec in self.attacks:
            check(spec)
        if any(not 0 <= share < 0.5 for share in self.malicious):
            raise ValueError(f"malicious = {list(self.malicious)}: give shares from 0 to below 0.5")
        names = [course.name for course in self.courses]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"courses of {self.name}: give at least one, and every name once")

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the specification in canonical form."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def counts(self, clients: int) -> list[int]:
        """The numbers of attackers among this many clients: at least one unless the share is 0, always a minority."""
        counts = {0 if share == 0 else max(1, round(share * clients)) for share in self.malicious}
        return sorted(M for M in counts if clients > 2 * M)


def load(name: str) -> Suite:
    """The suite of that name.

    >>> load("small-1").counts(10)
    [0, 2, 4]
    """
    if name not in SUITES:
        raise ValueError(unknown("suite", name, SUITES))
    raw = tomllib.loads((files("honestly.studies.suites") / f"{name}.toml").read_text(encoding="utf-8"))
    courses = tuple(Recipe(key, " ".join(words.split())) for key, words in raw["courses"].items())
    attacks, malicious = tuple(raw["attacks"]), tuple(float(share) for share in raw["malicious"])
    return Suite(name, raw["about"], attacks, malicious, int(raw["tries"]), courses)


def place(suite: Suite, folder: Path | None = None) -> Path:
    """The path of the recording: in the folder, if one is given and has it; in the package; in the default folder."""
    shipped = Path(str(files("honestly.studies.suites") / f"{suite.name}.npz"))
    own = home(folder) / "suites" / f"{suite.name}.npz"
    return shipped if shipped.is_file() and not (folder is not None and own.is_file()) else own


def open_courses(suite: Suite, folder: Path | None = None) -> tuple[Course, ...]:
    """Read the recorded courses, which must be those of the specification."""
    path = place(suite, folder)
    if not path.is_file():
        raise ValueError(
            f"suite {suite.name} is not on this machine: make it with `honestly stress --make-suite {suite.name}`"
        )
    courses = read(path)
    names, wanted = [course.name for course in courses], [recipe.name for recipe in suite.courses]
    if names != wanted:
        raise ValueError(
            f"{path}: holds other courses than {suite.name} has: make it again by "
            f"`honestly stress --make-suite {suite.name}`"
        )
    return courses


def content_hash(courses: Sequence[Course]) -> str:
    """SHA-256 of the numbers as they are stored, whatever the compression is."""
    digest = hashlib.sha256()
    for course in courses:
        digest.update(repr((course.name, course.layers, course.sizes.tolist(), course.rows)).encode())
        for number, gram in course.rounds.items():
            digest.update(f"|r{number}|".encode())
            digest.update(np.tril(gram).astype("<f4").tobytes())
    return digest.hexdigest()


def outline(courses: Sequence[Course]) -> dict[str, list[float]]:
    """By course and round, the squared length of the honest mean and the honest variance, to compare machines."""
    lengths: dict[str, list[float]] = {}
    for course in courses:
        for number, gram in course.rounds.items():
            honest = gram[:, : course.clients, : course.clients].sum(axis=0)
            length = float(honest.mean())
            variance = float(honest.diagonal().mean()) - length
            lengths[f"{course.name} r{number}"] = [float(f"{length:.6g}"), float(f"{variance:.6g}")]
    return lengths


def published_outline(suite: Suite) -> dict[str, Any] | None:
    """Hash and outline of the recording behind the published results; None if there is none yet."""
    known = json.loads((files("honestly.studies.suites") / "published.json").read_text(encoding="utf-8"))
    return known.get(suite.name)


@dataclass(frozen=True)
class RecordingComparison:
    """How a recording relates to the published one.

    Attributes:
        word: "published" to the bit, "equivalent" or "different".
        agree, rounds: how many rounds agree within `FACTOR` in length and variance, and of how many.
        others: the names of the rounds that do not.
    """

    word: str
    agree: int = 0
    rounds: int = 0
    others: tuple[str, ...] = ()


def compare(suite: Suite, courses: Sequence[Course]) -> RecordingComparison:
    """Compare a recording with the published one.

    Training in floating point ends differently on another processor: the first recorded round of a course differs in
    the last digits, a late one by the path that training took. So a recording is equivalent if the first rounds of all
    courses agree, and at least `SHARE` of all rounds.
    """
    known = published_outline(suite)
    if known is None or known["spec"] != suite.hash:
        return RecordingComparison("different")
    ours, theirs = outline(courses), known["outline"]
    if set(ours) != set(theirs):
        return RecordingComparison("different")
    far: list[str] = []
    for key, pair in theirs.items():
        ratio = np.maximum(ours[key], 1e-12) / np.maximum(pair, 1e-12)
        if ((ratio > FACTOR) | (ratio < 1 / FACTOR)).any():
            far.append(key)
    count, agree = len(theirs), len(theirs) - len(far)
    if known["content"] == content_hash(courses):
        return RecordingComparison("published", agree, count)
    first = {f"{course.name} r{min(course.rounds)}" for course in courses}
    same = not first & set(far) and agree >= SHARE * count
    return RecordingComparison("equivalent" if same else "different", agree, count, tuple(far))
