"""The paper's six tables: their layout, their 540 published numbers, and how ours compare."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from honestly.show.report.origin import READINGS, commits_of, reading_of
from honestly.show.report.results import METRICS, Result, SeedMean, is_warm_up, mean_of, same
from honestly.show.report.sources import FIRST

TOLERANCE = 0.02
DATASETS = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10"}
ATTACKS = {"sign_flip": "SignFlip", "backdoor": "Backdoor", "label_flip": "LabelFlip", "random": "Random"}
RULES = ("FedAvg", "Median", "TrimAvg", "GeoMed", "Krum", "Ours")
ALPHAS = (0.5, 1.0)
AXES = ("dataset", "config", "attack", "alpha", "rule")
#: Rules that the paper does not have; a row of ours is set beside the paper's "Ours" and not counted.
EXTRA = {"Ours (paper)": "Ours", f"Ours ({FIRST})": "Ours"}
#: The paper's rounds: a run of another length is not its experiment.
ROUNDS = {"mnist": 100, "fmnist": 100, "cifar10": 200}
#: "half": run for half of the paper's rounds, which is neither the paper's experiment nor nothing.
VERDICTS = ("reproduced", "better", "worse", "half", "not run")
VERDICT_WORDS = {"half": "half of the rounds"}
MARKS = {"reproduced": "=", "better": "▲", "worse": "▼", "half": "½", "not run": "·"}
SHARES = {1: "20 % malicious clients", 2: "40 % malicious clients", 3: "at most 45 % malicious clients, changing"}
TOLD = {1: "TrimAvg is told 0.2, Krum keeps 16", 2: "TrimAvg is told 0.4, Krum keeps 12",
        3: "TrimAvg is told 0.45, Krum keeps 11"}  # fmt: skip


class Column(NamedTuple):
    """A column of a table: an attack, alpha, and what is measured."""

    attack: str
    alpha: float
    metric: str


@dataclass(frozen=True)
class PaperTable:
    """One of the six."""

    number: int
    config: int
    attacks: tuple[str, str]

    @property
    def columns(self) -> list[Column]:
        """In the paper's order: by attack, alpha, then accuracy and (for the backdoor) success rate."""
        return [
            Column(attack, alpha, metric)
            for attack in self.attacks
            for alpha in ALPHAS
            for metric in (("ACC", "ASR") if attack == "backdoor" else ("ACC",))
        ]

    @property
    def caption(self) -> str:
        """What the paper says above the table, in short."""
        first, second = (ATTACKS[a] for a in self.attacks)
        return f"{first} and {second}, {SHARES[self.config]} (configuration {self.config}). {TOLD[self.config]}."

    @property
    def name(self) -> str:
        """For a label or an anchor."""
        return f"table-config{self.config}-{'-'.join(self.attacks).replace('_', '')}"


TABLES = tuple(
    PaperTable(number, config, attacks)
    for number, (attacks, config) in enumerate(
        ((attacks, c) for attacks in (("sign_flip", "backdoor"), ("label_flip", "random")) for c in (1, 2, 3)), start=1
    )
)


class Key(NamedTuple):
    """One of the 540 numbers."""

    dataset: str
    config: int
    rule: str
    column: Column


@cache
def published_numbers() -> Mapping[Key, float]:
    """The paper's numbers."""
    back = {label: name for names in (DATASETS, ATTACKS) for name, label in names.items()}
    with (files("honestly.show") / "report" / "paper.csv").open(encoding="utf-8") as file:
        return {
            Key(
                back[row["dataset"]], int(row["config"]), row["rule"],
                Column(back[row["attack"]], float(row["alpha"]), row["metric"]),
            ): float(row["value"])
            for row in csv.DictReader(file)
        }  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """A number of ours: the mean over seeds, and where it comes from.

    Attributes:
        seeds: mean, spread and number of seeds.
        reading: "code", "equal" or "text", the reading of the paper by which it was run.
        rounds: of each run.
        half: True if that is half of the paper's.
        commits: by which the runs were made.
        span: the lowest and the highest value in the last 20 rounds of the runs; None if that is not known.
    """

    seeds: SeedMean
    reading: str
    rounds: int
    half: bool
    commits: str
    span: tuple[float, float] | None


@dataclass(frozen=True)
class Comparison:
    """A number of the paper's and those of ours; the first of them counts."""

    key: Key
    published: float
    measured: tuple[Measurement, ...] = ()

    @property
    def counted(self) -> Measurement | None:
        """The number that counts: of the paper's rounds rather than half of them, of the code rather than the text."""
        return self.measured[0] if self.measured else None

    @property
    def other_reading(self) -> Measurement | None:
        """The number by the other reading of the paper, if that was run."""
        return next((m for m in self.measured[1:] if m.reading != self.measured[0].reading), None)

    @property
    def seeds(self) -> SeedMean | None:
        """The mean that counts."""
        return self.measured[0].seeds if self.measured else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.seeds is None else self.seeds.mean - self.published

    @property
    def verdict(self) -> str:
        """ "reproduced" within 0.02, else "better" or "worse" (a lower success rate of the attack is better); "half"
        if it was run for half of the rounds."""
        if self.counted is not None and self.counted.half:
            return "half"
        return verdict(None if self.seeds is None else self.seeds.mean, self.published, self.key.column.metric)


def verdict(ours: float | None, published: float, metric: str) -> str:
    """How a number compares with a published one.

    >>> [verdict(v, 0.5, "ACC") for v in (0.52, 0.53, 0.47, None)], verdict(0.47, 0.5, "ASR")
    (['reproduced', 'better', 'worse', 'not run'], 'better')
    """
    if ours is None:
        return "not run"
    if abs(ours - published) <= TOLERANCE + 1e-9:
        return "reproduced"
    return "better" if (ours > published) == (metric == "ACC") else "worse"


def of_the_paper(result: Result) -> bool:
    """Whether a run is named like one of the tables' cells."""
    named = all(axis in result.cell for axis in AXES) and not is_warm_up(result.cell)
    return named and result.cell["dataset"] in DATASETS and result.cell["attack"] in ATTACKS


def fits(result: Result) -> bool:
    """Whether a run is one of the tables' cells, with the paper's number of rounds."""
    return of_the_paper(result) and result.entry.of == ROUNDS[result.cell["dataset"]]


def key_of(result: Result, metric: str) -> Key:
    """The number that a run gives."""
    c = result.cell
    column = Column(str(c["attack"]), _float(c["alpha"]), metric)
    return Key(str(c["dataset"]), _int(c["config"]), str(c["rule"]), column)


def half(result: Result) -> bool:
    """Whether a run is one of the tables' cells, with half of the paper's rounds."""
    return of_the_paper(result) and 2 * result.entry.of == ROUNDS[result.cell["dataset"]]


def compare(results: Sequence[Result], statistic: str) -> dict[Key, Comparison]:
    """All 540 numbers, and those of the rules that are set beside "Ours"; each with the means over our seeds."""
    runs: dict[Key, list[Result]] = {}
    for result in results:
        if fits(result) or half(result):
            for metric in METRICS:
                runs.setdefault(key_of(result, metric), []).append(result)
    comparisons: dict[Key, Comparison] = {}
    for key, value in _wanted_numbers({key.rule for key, here in runs.items() if any(r.done for r in here)}):
        groups: dict[tuple[bool, int], list[Result]] = {}
        for r in runs.get(key, []):
            groups.setdefault((half(r), list(READINGS).index(reading_of(r.entry))), []).append(r)
        measured = [_measurement(groups[group], key.column.metric, statistic) for group in sorted(groups)]
        comparisons[key] = Comparison(key, value, tuple(m for m in measured if m is not None))
    return comparisons


def _measurement(results: Sequence[Result], metric: str, statistic: str) -> Measurement | None:
    """The mean over runs of one reading and length; None if none of them is done."""
    ended = [r for r in results if r.get(metric, statistic) is not None]
    mean = mean_of([r.get(metric, statistic) for r in ended])
    if mean is None:
        return None
    spans = [r.spans[metric] for r in ended if metric in r.spans]
    span = (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
    first = ended[0]
    entries = [r.entry for r in ended]
    return Measurement(mean, reading_of(first.entry), first.entry.of, half(first), commits_of(entries), span)


def _wanted_numbers(rules: Set[str]) -> Iterator[tuple[Key, float]]:
    extra = [rule for rule in EXTRA if rule in rules]
    for key, value in published_numbers().items():
        yield key, value
        for rule in extra:
            if key.rule == EXTRA[rule]:
                yield key._replace(rule=rule), value


def rows_of(comparisons: Mapping[Key, Comparison]) -> list[str]:
    """The rules of a table's rows: the paper's six, and those set beside them."""
    return [*RULES, *(rule for rule in EXTRA if any(key.rule == rule for key in comparisons))]


def count(comparisons: Mapping[Key, Comparison], **where: Any) -> Counter[str]:
    """How many of the 540 have each verdict, or of those with the given `dataset`, `config` or `rule`."""
    return Counter(
        one.verdict
        for key, one in comparisons.items()
        if key in published_numbers() and all(same(getattr(key, axis), value) for axis, value in where.items())
    )


def _int(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
