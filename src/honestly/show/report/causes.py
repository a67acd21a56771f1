"""Why a number of ours differs from the published one, by rules from what the studies themselves found.

A cause is named only where a run shows it; all other differences are unexplained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from honestly.show.report.origin import settings_of
from honestly.show.report.published import (
    DATASETS,
    EXTRA,
    RULES,
    TOLERANCE,
    Comparison,
    Key,
    Measurement,
    published_numbers,
)
from honestly.show.report.results import Result, mean_of
from honestly.show.tables import Table

#: Published numbers have two decimals.
ROUNDING = 0.005
KINDS = {
    "rounds": "the accuracy jumps from round to round, and the published number is among the last 20 rounds",
    "noise": "the text's random noise, which every attacker draws by itself, averages out",
    "failed": "the published run looks like one that failed",
    "repairs": "the default rule is not the published algorithm, which gives the published number here",
    "images": "padded images (the text) instead of resized ones (the code)",
    "weights": "clients that weigh the same, not the images that they trained on (the code)",
    "unexplained": "unexplained",
}
#: Configurations whose malicious clients are always as many.
MALICIOUS = {1: 4, 2: 8}


class Cause(NamedTuple):
    """A kind, and a sentence with the numbers that show it."""

    kind: str
    sentence: str


class Setting(NamedTuple):
    """What the two forms of the random attack are compared in."""

    dataset: str
    rule: str
    malicious: int
    alpha: float


Noise = Mapping[Setting, tuple[float, float]]


def noise(results: Sequence[Result], statistic: str) -> Noise:
    """Accuracy under the text's random attack and under the code's, where both were run (images are padded)."""
    values: dict[Setting, dict[str, list[float | None]]] = {}
    for r in results:
        settings = settings_of(r.entry)
        attack = settings.get("attack")
        name = attack.get("name") if isinstance(attack, Mapping) else attack  # pyright: ignore[reportUnknownMemberType]
        if name not in ("random", "random_colluding") or settings.get("dynamic") or "rule" not in r.cell:
            continue
        if settings.get("fit") == "resize":
            continue
        setting = Setting(str(settings["dataset"]), str(r.cell["rule"]), int(settings["malicious"]), settings["alpha"])
        values.setdefault(setting, {}).setdefault(str(name), []).append(r.get("ACC", statistic))
    pairs: dict[Setting, tuple[float, float]] = {}
    for setting, by in values.items():
        own, common = (mean_of(by.get(name, [])) for name in ("random", "random_colluding"))
        if own is not None and common is not None:
            pairs[setting] = (own.mean, common.mean)
    return pairs


def causes(comparisons: Mapping[Key, Comparison], noise_means: Noise) -> dict[Key, Cause]:
    """A cause for each of the 540 numbers that was run with the paper's rounds and differs by more than 0.02."""
    differing = [
        one for key, one in comparisons.items() if key in published_numbers() and one.verdict in ("better", "worse")
    ]
    return {one.key: _cause(one, comparisons, noise_means) for one in differing}


def _cause(one: Comparison, comparisons: Mapping[Key, Comparison], noise_means: Noise) -> Cause:
    assert one.counted is not None
    for name, rule in (("rounds", _rounds), ("failed", _training_failure)):
        if (sentence := rule(one, one.counted)) is not None:
            return Cause(name, sentence)
    if (sentence := _repairs(one, comparisons)) is not None:
        return Cause("repairs", sentence)
    if (sentence := _noise(one, one.counted, noise_means)) is not None:
        return Cause("noise", sentence)
    if (sentence := _images(one, one.counted, comparisons)) is not None:
        return Cause("images", sentence)
    if (sentence := _weights(one, one.counted, comparisons)) is not None:
        return Cause("weights", sentence)
    text_only = one.counted.reading == "text"
    return Cause("unexplained", "unexplained" + ("; not run by the authors' code's reading" if text_only else ""))


def _training_failure(one: Comparison, counted: Measurement) -> str | None:
    """A published model of a robust rule that did not learn, where those of all other rules did."""
    if one.key.rule == "FedAvg":
        return None  # attacks ruin it, as they should
    accuracy = one.key._replace(column=one.key.column._replace(metric="ACC"))
    others = [published_numbers()[accuracy._replace(rule=rule)] for rule in RULES if rule != one.key.rule]
    value = published_numbers()[accuracy]
    if value >= 0.5 or min(others) < 0.9:
        return None
    return f"the published accuracy is {value:.2f}, that of the other rules {min(others):.2f} or more"


def _rounds(one: Comparison, counted: Measurement) -> str | None:
    if counted.span is None:
        return None
    low, high = counted.span
    if high - low <= TOLERANCE or not low - ROUNDING <= one.published <= high + ROUNDING:
        return None
    return f"between {low:.2f} and {high:.2f} in our last 20 rounds"


def _repairs(one: Comparison, comparisons: Mapping[Key, Comparison]) -> str | None:
    beside = comparisons.get(one.key._replace(rule="Ours (paper)")) if one.key.rule == "Ours" else None
    if beside is None or beside.verdict != "reproduced" or beside.seeds is None:
        return None
    return f"the published algorithm gives {beside.seeds.mean:.3f} here"


def _noise(one: Comparison, counted: Measurement, noise_means: Noise) -> str | None:
    """Ours is better, and where the attackers' noise was also made a common one, the accuracy fell by more."""
    key = one.key
    if key.column.attack != "random" or one.verdict != "better":
        return None
    same = Setting(key.dataset, key.rule, MALICIOUS.get(key.config, 0), key.column.alpha)
    if same in noise_means and noise_means[same][1] < noise_means[same][0] - TOLERANCE:
        return f"with the code's common noise {noise_means[same][1]:.2f} instead of {noise_means[same][0]:.2f}"
    like = [(s, pair) for s, pair in noise_means.items() if s.rule not in EXTRA and pair[1] < pair[0] - TOLERANCE]
    if not like:
        return None
    setting, (own, common) = max(like, key=lambda pair: pair[1][0] - pair[1][1])
    where = f"{setting.rule} on {setting.dataset} with {setting.malicious} attackers"
    return f"probably, as with {where}: {common:.2f} with the code's common noise instead of {own:.2f}"


def _images(one: Comparison, counted: Measurement, comparisons: Mapping[Key, Comparison]) -> str | None:
    """The text's reading was run, and where the code's was run as well, that is nearer to the published numbers."""
    if counted.reading != "text":
        return None
    alike = [other for key, other in comparisons.items() if key.dataset == one.key.dataset]
    nearest = _nearer(one, alike, ("code", "equal"), "text")
    if nearest is None:
        return None
    where, code, text, published = nearest
    return f"probably: {where} has {code:.2f} with resized images, {text:.2f} with padded ones ({published:.2f})"


def _weights(one: Comparison, counted: Measurement, comparisons: Mapping[Key, Comparison]) -> str | None:
    """All clients weighed the same, and where they weighed as in the code, that is nearer to the published numbers."""
    if counted.reading != "equal":
        return None
    alike = [other for key, other in comparisons.items() if key.rule == one.key.rule]
    here = _by_both(one, alike, lambda key: (key.dataset, key.config))
    alike = here or _by_both(one, alike, lambda key: key.dataset) or alike
    nearest = _nearer(one, alike, ("code",), "equal")
    if nearest is None:
        return None
    where, code, equal, published = nearest
    return f"probably: {where} has {code:.2f} with the code's weights, {equal:.2f} with equal ones ({published:.2f})"


def _by_both(one: Comparison, alike: Sequence[Comparison], place: Callable[[Key], object]) -> list[Comparison]:
    """The nearest evidence: numbers of the same place, attack and metric that were run with both kinds of weights."""
    return [
        other
        for other in alike
        if place(other.key) == place(one.key)
        and (other.key.column.attack, other.key.column.metric) == (one.key.column.attack, one.key.column.metric)
        and {"code", "equal"} <= {measurement.reading for measurement in other.measured}
    ]


def _nearer(
    one: Comparison, alike: Sequence[Comparison], better: Sequence[str], worse: str
) -> tuple[str, float, float, float] | None:
    """Of numbers of the same attack and metric that were run by both readings, the one that differs most between them:
    where, by the better reading, by the worse one, published. None unless the better is nearer to the paper in sum."""
    near: list[tuple[Comparison, float, float]] = []
    apart: list[float] = []
    for other in alike:
        key, by = other.key, {m.reading: m.seeds.mean for m in other.measured}
        same = (key.column.attack, key.column.metric) == (one.key.column.attack, one.key.column.metric)
        first = next((by[reading] for reading in better if reading in by), None)
        if not same or first is None or worse not in by or key not in published_numbers():
            continue
        gain = abs(first - other.published) - abs(by[worse] - other.published)
        apart.append(gain)
        if gain < 0 and abs(by[worse] - other.published) > TOLERANCE:
            near.append((other, first, by[worse]))
    if not near or sum(apart) >= 0:
        return None
    other, first, second = max(near, key=lambda pair: abs(pair[2] - pair[1]))
    dataset = "" if other.key.dataset == one.key.dataset else f"{DATASETS[other.key.dataset]}, "
    where = f"{dataset}{other.key.rule}, configuration {other.key.config}, α = {other.key.column.alpha:g}"
    return where, first, second, other.published


def summary(by_cell: Mapping[Key, Cause], statistic_words: str) -> Table:
    """How many differences have which cause."""
    rows = [[words, sum(one.kind == kind for one in by_cell.values())] for kind, words in KINDS.items()]
    note = f"Of the {len(by_cell)} numbers that differ by more than {TOLERANCE}; the list below has the cause of each."
    return Table("causes", f"Why numbers differ, {statistic_words}", note, ["cause", "numbers"], rows)
