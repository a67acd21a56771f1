"""The sources of a report: the store of a study, the folder of a run, folders of runs, or a federation's history."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from honestly.runs.clean import number, whole_number
from honestly.runs.contents import Kind, contents
from honestly.runs.database import FILE as STORE
from honestly.runs.folder import EXPERIMENT, ROUNDS, read_description
from honestly.runs.reader import Rounds, read, read_rounds
from honestly.show.labels import as_axes, attack_labels, choice_name, rule_labels

#: Settings of a run that have a label of their own, or say how far it goes.
NOT_AXES = ("rule", "pre", "attack", "rounds")


@dataclass(frozen=True)
class ReportedRun:
    """One run, finished or not; its rounds are read on demand.

    Attributes:
        id: the hash of its experiment; the folder's name for a history.
        cell: axis -> value, how a table names the run.
        status: "pending", "running", "done", "failed", or "stopped" for a folder that is not finished.
        rounds, of: how many are done, and of how many (0: not known).
        error: why it failed.
        details: settings and provenance, as text.
        read: the rounds.
        rule, attack: by name; "" if they are not known.
        summary: the final numbers that the store keeps; {} if it keeps none.
        finished: when it was done, in seconds since 1970; 0 if that is not known.
        history: the hash of a history's first line, which its copies share; "" for a run of an experiment.
    """

    id: str
    cell: Mapping[str, Any]
    status: str
    rounds: int
    of: int
    read: Callable[[], Rounds] = field(repr=False)
    error: str = ""
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    rule: str = ""
    attack: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finished: float = 0.0
    history: str = ""


@dataclass(frozen=True)
class ReportedStudy:
    """Runs that belong together; `about` describes the study, `notes` its problems."""

    name: str
    entries: Sequence[ReportedRun]
    about: str = ""
    notes: Sequence[str] = ()

    def count(self, status: str) -> int:
        """How many runs have this status."""
        return sum(entry.status == status for entry in self.entries)


def load(path: Path) -> ReportedStudy:
    """Load the study at a path; ValueError if there is none."""
    if path.is_file():
        if path.name == STORE:
            return _study(path.parent)
        if path.suffix == ".jsonl":
            return _runs(path.parent.name or "run", [path])
        raise ValueError(f"{path} cannot be reported on: give a folder, a {STORE} or a {ROUNDS}")
    if not path.is_dir():
        raise ValueError(f"{path} does not exist: give the folder of a study, of a run or of a federation's history")
    folder = contents(path)
    if folder.kind is Kind.STUDY:
        return _study(path)
    if runs := folder.runs_with_rounds():
        return _runs(path.resolve().name, runs)
    if folder.kind is Kind.RUN:
        return ReportedStudy(path.resolve().name, [], notes=["the run has not finished a round yet"])
    raise ValueError(
        f"{path} has neither {STORE} (a study), nor {ROUNDS} (a run or a federation's history), nor folders with one"
    )


def merge(studies: Sequence[ReportedStudy]) -> list[ReportedStudy]:
    """Studies of the same name become one; of two records of one run the one that went further counts, or the later."""
    merged: dict[str, ReportedStudy] = {}
    for study in studies:
        before = merged.get(study.name)
        if before is None:
            merged[study.name] = study
            continue
        best: dict[tuple[str, str], ReportedRun] = {}
        for entry in [*before.entries, *study.entries]:
            # many a folder is called `history`: that name alone does not make two federations one
            key = ("", entry.history) if entry.history else (entry.id, "")
            other = best.get(key)
            if other is None or _progress(entry) > _progress(other):
                best[key] = entry
        notes = [*before.notes, *(note for note in study.notes if note not in before.notes)]
        entries = _tell_apart(list(best.values()))
        merged[study.name] = ReportedStudy(study.name, entries, before.about or study.about, notes)
    return list(merged.values())


def _tell_apart(entries: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Histories of one name are different runs, not seeds of one: all but the first get a number behind the name."""
    ids: set[str] = set()
    names: set[str] = set()
    return [
        replace(entry, id=_unused(entry.id, ids), cell={"run": _unused(str(entry.cell["run"]), names)})
        if entry.history
        else entry
        for entry in entries
    ]


def _unused(name: str, used: set[str]) -> str:
    """The name, or the name with the first number that makes it a new one."""
    unused = next(one for n in itertools.count(1) if (one := name if n == 1 else f"{name} ({n})") not in used)
    used.add(unused)
    return unused


def _progress(entry: ReportedRun) -> tuple[bool, int, float]:
    return entry.status == "done", entry.rounds, entry.finished


def _study(folder: Path) -> ReportedStudy:
    from honestly.runs.store import Store

    store = Store.read(folder)
    entries: list[ReportedRun] = []
    for run in store.runs():
        experiment = run.experiment
        cell = of_its_time(run.cell, experiment)
        if not run.rounds and of_version_0_1(experiment):
            continue  # the rule was replaced before the run began: nobody can run it any more
        details = {"experiment": json.dumps(experiment, sort_keys=True), "provenance": json.dumps(run.provenance or {})}
        entries.append(
            ReportedRun(
                run.id, as_axes(cell), run.status, whole_number(run.rounds) or 0, whole_number(run.of) or 0,
                read=lambda id=run.id: read(store.rounds(id)), error=run.error or "",
                details={"id": run.id, **details}, rule=choice_name(experiment.get("rule")),
                attack=choice_name(experiment.get("attack")), finished=number(run.finished) or 0.0,
                summary={name: number(value, None) for name, value in (run.summary or {}).items()},
            )
        )  # fmt: skip
    meta = store.meta()
    return ReportedStudy(meta.get("name") or folder.resolve().name, entries, about=meta.get("study", ""))


#: How the default rule of version 0.1 is called beside the one that took its place.
FIRST = "version 0.1"


def of_version_0_1(experiment: Mapping[str, Any]) -> bool:
    """Whether an experiment is of a Bayesian rule as version 0.1 wrote it: without a setting that came later."""
    rule: Any = experiment.get("rule")
    return isinstance(rule, Mapping) and rule.get("name") == "bayesian" and "at_most" not in rule  # pyright: ignore[reportUnknownMemberType]


def of_its_time(cell: Mapping[str, Any], experiment: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cell of a run; one of the default rule of version 0.1 says so.

    That rule was replaced by another of the same name, so a table must not mix their numbers. The published algorithm
    (variant "paper") is what it was.

    >>> old = {"name": "bayesian", "variant": "robust", "memory": None}
    >>> of_its_time({"rule": "Ours"}, {"rule": old}), of_its_time({"rule": "Ours"}, {"rule": {**old, "at_most": None}})
    ({'rule': 'Ours (version 0.1)'}, {'rule': 'Ours'})
    """
    if "rule" in cell and of_version_0_1(experiment) and experiment["rule"].get("variant") == "robust":
        return {**cell, "rule": f"{cell['rule']} ({FIRST})"}
    return cell


def _runs(name: str, files: Sequence[Path]) -> ReportedStudy:
    """Folders of `honestly simulate`, or of a federation."""
    entries: list[ReportedRun] = []
    notes: list[str] = []
    settings = [_experiment(file.parent) for file in files]
    experiments = [experiment for _, experiment in settings]
    rules, attacks = rule_labels(experiments), attack_labels(experiments)
    others = [as_axes({k: v for k, v in experiment.items() if k not in NOT_AXES}) for _, experiment in settings]
    varying = [k for k in dict.fromkeys(k for one in others for k in one) if len({str(o.get(k)) for o in others}) > 1]
    for file, (id, experiment), rule, attack, one in zip(files, settings, rules, attacks, others, strict=True):
        rounds = read_rounds(file)
        if rounds.damaged:
            notes.append(f"{file.parent.name}/{file.name}: {rounds.damaged} damaged lines are left out")
        done = len(rounds.records)
        of = whole_number(experiment.get("rounds")) or 0
        cell: dict[str, Any] = {"run": rounds.run or file.parent.resolve().name}
        if experiment:
            cell = {"rule": rule, "attack": attack, **{key: one.get(key) for key in varying}}
        details = {"experiment": json.dumps(experiment, sort_keys=True)} if experiment else {}
        entries.append(
            ReportedRun(
                id or file.parent.resolve().name, cell, "done" if done >= of else "stopped", done, of,
                read=lambda rounds=rounds: rounds, details=details, rule=choice_name(experiment.get("rule")),
                attack=choice_name(experiment.get("attack")), history="" if experiment else _first_line(file),
            )
        )  # fmt: skip
    return ReportedStudy(name, _tell_apart(entries), notes=notes)


def _first_line(file: Path) -> str:
    """The hash of the first line: no other federation has it, and it stays what it is when rounds are added."""
    with file.open("rb") as lines:
        return hashlib.sha256(lines.readline()).hexdigest()


def _experiment(folder: Path) -> tuple[str, dict[str, Any]]:
    """The id and the settings in a run's folder; nothing for a federation, which has none."""
    try:
        return read_description((folder / EXPERIMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "", {}
