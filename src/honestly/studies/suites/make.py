"""Make a suite: train the federations of its specification and keep their Gram matrices."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from honestly.files import write_atomically
from honestly.hints import unknown
from honestly.result import Float
from honestly.sim.data.files import home
from honestly.sim.language import LanguageFederation, Settings
from honestly.studies.layers.patterns import most_tolerated
from honestly.studies.record import plans, record
from honestly.studies.recordings import HONEST, Course, read, write
from honestly.studies.suites.spec import Recipe, Suite

#: Significant bits of every number: an error of 3e-5, and files of two thirds of the size.
BITS = 14


def make(
    suite: Suite,
    *,
    out: Path | None = None,
    folder: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Path, tuple[Course, ...]]:
    """Record every course and write the file; returns where it is and what it holds.

    Finished courses are kept beside the file until all are done, so an interrupted command can continue.

    Args:
        suite: the specification.
        out: the file; by default in the folder of the data sets.
        folder: where the data sets are.
        progress: called with the number of finished courses, of all courses, and the name of the next.
    """
    path = home(folder) / "suites" / f"{suite.name}.npz" if out is None else out
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{suite.name}-{suite.hash[:8]}-unfinished.npz")
    courses = _finished_courses(suite, draft)
    for number, recipe in enumerate(suite.courses[len(courses) :], start=len(courses)):
        if progress is not None:
            progress(number, len(suite.courses), recipe.name)
        courses.append(round_course(record_course(recipe, folder)))
        buffer = io.BytesIO()
        write(buffer, courses)
        write_atomically(draft, buffer.getvalue())
    if progress is not None:
        progress(len(suite.courses), len(suite.courses), "")
    draft.replace(path)
    return path, tuple(courses)


def _finished_courses(suite: Suite, draft: Path) -> list[Course]:
    """The first courses, if an earlier command was stopped after them."""
    if not draft.is_file():
        return []
    names = [recipe.name for recipe in suite.courses]
    try:
        courses = read(draft)
    except ValueError:
        return []
    return list(courses) if [course.name for course in courses] == names[: len(courses)] else []


def record_course(recipe: Recipe, folder: Path | None = None) -> Course:
    """One course, under the name that the suite gives it."""
    words = recipe.words.split()
    if any(word.startswith("language=") for word in words):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # otherwise the numbers depend on the number of cores
        try:
            return replace(record_language(words), name=recipe.name)
        finally:
            torch.set_num_threads(threads)
    courses = plans(words)
    if len(courses) != 1:
        raise ValueError(f"course {recipe.name}: '{recipe.words}' stands for {len(courses)} courses, give one")
    return replace(record(courses[0], folder=folder), name=recipe.name)


def record_language(words: list[str]) -> Course:
    """A course of the language model: `language=lora` records products B A, `language=all` all parameters.

    ``rounds`` are those that are kept, ``poisoned`` how many of the last clients also train on poisoned text.
    """
    options = dict(word.split("=", 1) for word in words)
    numbers = tuple(int(number) for number in options.pop("rounds", "1").split(","))
    poisoned, tune, pretraining = options.pop("poisoned", ""), options.pop("language"), options.pop("pretraining", "")
    kinds = {field.name: field.type for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in kinds:
            raise ValueError(unknown("setting of a language course", key, [*kinds, "rounds", "poisoned", "language"]))
        values[key] = float(value) if kinds[key] == "float" else int(value)
    settings = Settings(**values, tune=tune, rounds=max(numbers))  # type: ignore[arg-type]
    more = {"pretraining": int(pretraining)} if pretraining else {}
    federation = LanguageFederation(settings, **more)
    K = settings.clients
    count = int(poisoned) if poisoned else most_tolerated(K)
    twins = range(K - count, K)
    rounds: dict[int, Float] = {}
    weights = dict(federation.base)
    names: tuple[str, ...] = ()
    sizes: list[int] = []
    for number in range(1, max(numbers) + 1):
        honest = federation.judged_values(federation.train_clients(weights, number, ()))
        names, sizes = tuple(honest), [rows[0].numel() for rows in honest.values()]
        if number in numbers:
            rows = [{name: value.double().flatten(1).numpy() for name, value in honest.items()}]
            for attack in ("label_flip", "backdoor"):
                lies = federation.judged_values(federation.train_clients(weights, number, twins, attack))
                rows.append({name: value[K - count :].double().flatten(1).numpy() for name, value in lies.items()})
            every = {name: np.concatenate([part[name] for part in rows]) for name in names}
            rounds[number] = np.stack([every[name] @ every[name].T for name in names])
        weights |= {name: weights[name] + value.mean(dim=0) for name, value in honest.items()}
    labels = (*(HONEST,) * K, *("label_flip",) * count, *("backdoor",) * count)
    return Course("language", names, np.array(sizes), labels, rounds, 0, settings.idle)


def round_course(course: Course) -> Course:
    """The course with `BITS` significant bits in every number, as they are stored."""
    return replace(course, rounds={number: significant(gram) for number, gram in course.rounds.items()})


def significant(values: Float) -> Float:
    """Values rounded to `BITS` significant bits.

    >>> significant(np.array([1.0, 1.00001, -3.1415926]))
    array([ 1.        ,  1.        , -3.14160156])
    """
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0**BITS), exponent - BITS)
