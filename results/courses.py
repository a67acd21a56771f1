"""Who was missed or accused in which rounds: tables of the default rule's runs, and of Krum's beside them, from the
stores in build/results.

    python results/courses.py      # print them

`results/make.py` puts them where preface.md has `<!-- courses -->`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from honestly.runs.store import Run, Store

BUILD = Path(__file__).parent.parent / "build" / "results"
RULE = "Ours"  # the default rule
BESIDE = "Krum"  # which is told how many lie
MARKS = (25, 60, 100)  # rounds whose accuracy is shown
Record = Mapping[str, Any]


def tables(build: Path = BUILD) -> str:
    """Both tables as Markdown; empty where the stores are not unpacked."""
    parts = []
    if (build / "cifar").is_dir():
        with Store.read(build / "cifar") as store:
            both = [run for run in store.runs() if _counts(run, RULE, BESIDE)]
            parts.append(courses([(run, store.rounds(run.id)) for run in both]))
    if (build / "quiet").is_dir():
        with Store.read(build / "quiet") as store:
            parts.append(quiet([(run, store.rounds(run.id)) for run in store.runs() if _counts(run, RULE)]))
    return "\n\n".join(parts)


def _counts(run: Run, *rules: str) -> bool:
    return run.cell.get("rule", RULE) in rules and run.cell.get("config", RULE) is not None and run.rounds > 0


def courses(runs: Iterable[tuple[Run, Sequence[Record]]]) -> str:
    """One row per run of CIFAR-10."""
    accuracies = " | ".join(f"accuracy at {mark}" for mark in MARKS)
    lines = [
        f"**CIFAR-10, round by round.** Missed: attackers that were not accused ({BESIDE}: that it kept); accused: "
        "honest clients that "
        "were. Both are counted over all rounds, and the rounds are named (how many in that round). The success rate "
        "is that of the last round.",
        "",
        f"| rule | configuration | α | attack | rounds | {accuracies} | the last 20 rounds | success rate | "
        "missed | accused | commit |",
        "| --- | --- | ---: | --- | ---: | " + "---: | " * len(MARKS) + "---: | ---: | --- | --- | --- |",
    ]
    for run, records in runs:
        if run.cell.get("attack") is None:
            continue  # the model without attack from which the backdoor starts
        by_round = {record["round"]: record for record in records}
        cells = [
            *(str(run.cell[axis]) for axis in ("rule", "config", "alpha", "attack")),
            f"{len(records)} of {run.of}",
            *(f"{by_round[mark]['accuracy']:.3f}" if mark in by_round else "" for mark in MARKS),
            _span([record["accuracy"] for record in records[-20:]]) if run.rounds == run.of else "",
            "" if records[-1]["asr"] is None else f"{records[-1]['asr']:.3f}",
            named_rounds(records, "misses", of=sum(len(record["attacked"]) for record in records)),
            named_rounds(records, "false_accusations"),
            str((run.provenance or {}).get("commit", ""))[:7],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def named_rounds(records: Sequence[Record], field: str, at_most: int = 6, of: int | None = None) -> str:
    """How many in all, of how many, and in which rounds: `10 of 800: 64 (2), 96 (8)`."""
    counts = {record["round"]: record[field] for record in records if record[field]}
    if not counts:
        return "0"
    first = [f"{number} ({count})" for number, count in counts.items()][:at_most]
    more = f" and {len(counts) - at_most} more rounds" if len(counts) > at_most else ""
    total = f" of {of}" if of is not None else ""
    return f"{sum(counts.values())}{total}: {', '.join(first)}{more}"


def quiet(runs: Iterable[tuple[Run, Sequence[Record]]]) -> str:
    """Accusations where nobody lies, by alpha: the mean over runs, and the worst run."""
    groups: dict[float, list[tuple[float, str]]] = {}
    for run, records in runs:
        rate = mean(record["false_accusations"] for record in records)
        name = f"{run.cell['dataset']}, seed {run.cell['seed']}: {named_rounds(records, 'false_accusations')}"
        groups.setdefault(run.cell["alpha"], []).append((rate, name))
    lines = [
        f"**Nobody lies: honest clients that {RULE} accuses per round** (MNIST and Fashion-MNIST, 100 rounds).",
        "",
        "| α | runs | mean | worst run | its rounds |",
        "| ---: | ---: | ---: | ---: | --- |",
    ]
    for alpha, rates in sorted(groups.items()):
        rate, name = max(rates)
        lines.append(f"| {alpha:g} | {len(rates)} | {mean(rate for rate, _ in rates):.3f} | {rate:.2f} | {name} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
