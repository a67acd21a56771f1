"""The estimator of bayesian.c gives what NumPy gives: the same verdicts, and weights and honesty to 1e-9."""

from __future__ import annotations

import dataclasses
import importlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiler import PROCESSORS, needs_compiler, use_as_compiled_for

from honestly.kernels import estimator as program
from honestly.kernels.estimator import MOST, PROGRAM
from honestly.rules.bayesian import Bayesian, compiled, guard, likeness
from honestly.rules.bayesian.compiled import compiled_estimate
from honestly.rules.bayesian.estimate import Estimate, estimate
from honestly.rules.bayesian.guard import first_clients, set_sizes
from honestly.rules.bayesian.sizes import ClientSizes
from honestly.rules.memory import Memory
from honestly.rules.rule import GramGeometry, Mix
from honestly.studies.layers.patterns import most_tolerated, patterns

pytestmark = needs_compiler
Rng = np.random.Generator
SOURCE = Path(program.__file__).parent / "bayesian"
MODULES = ("views", "centre", "average", "likeness", "sizes", "guard", "estimate")
NUMBERS = ("votes", "kept", "distance", "against", "evidence")
Updates = list[np.ndarray]  # of each layer, (n, size)


def shift(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    """All add the same vector."""
    x[liars] += 10 ** rng.uniform(-1, 2) * x.std() * rng.normal(size=x.shape[1])


def flip(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] *= -(10 ** rng.uniform(-1, 1))


def noise(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] += 10 ** rng.uniform(0, 4) * x.std() * rng.normal(size=(len(liars), x.shape[1]))


def little_is_enough(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] = x.mean(0) - rng.uniform(0.3, 2) * x.std(0)


def inner_product(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] = -rng.uniform(0.1, 10) * x.mean(0)


def mimic(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] = x[rng.integers(len(x))]


def clump(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    """Near-copies of a point of their own."""
    x[liars] = x[liars[0]] + 10 ** rng.uniform(-9, -1) * x.std() * rng.normal(size=(len(liars), x.shape[1]))


def far_away(x: np.ndarray, liars: np.ndarray, rng: Rng) -> None:
    x[liars] *= 10 ** rng.uniform(1, 6)


ATTACKS: tuple[Callable[[np.ndarray, np.ndarray, Rng], None], ...] = (
    shift, flip, noise, little_is_enough, inner_product, mimic, clump, far_away,
)  # fmt: skip


def population(rng: Rng, n: int, layers: int) -> Updates:
    """Clients with a common direction, some idle, some copies, some liars, in layers of any unit; some layers are 0."""
    made: Updates = []
    liars = rng.permutation(n)[: rng.integers(0, (n + 1) // 2)]
    idle = rng.permutation(n)[: rng.integers(0, 1 + n // 4)] if rng.random() < 0.3 else []
    copies = rng.permutation(n)[: rng.integers(2, n + 1)] if rng.random() < 0.3 else []
    attack, everywhere = ATTACKS[rng.integers(len(ATTACKS))], rng.random() < 0.5
    for _ in range(layers):
        size = int(2 ** rng.uniform(0, 9))
        x = rng.normal(size=(n, size)) * np.exp(0.3 * rng.normal(size=(n, 1))) + rng.normal(size=size)
        if len(liars) and (everywhere or rng.random() < 0.5):
            attack(x, liars, rng)
        x[idle] = 0.0
        if len(copies):
            x[copies] = x[copies[0]]
        made.append(x * (0.0 if rng.random() < 0.1 else 10 ** rng.uniform(-12, 12)))
    return made


def grams_of(updates: Updates) -> np.ndarray:
    return np.stack([x @ x.T for x in updates])


def settings(rng: Rng, n: int, layers: int) -> dict[str, Any]:
    """What else counts: the rarely used arguments are drawn, too."""
    most = (n - 1) // 2
    size = ClientSizes(rng.uniform(0, 1, n) ** 3, rng.uniform(0.01, 1, n)) if rng.random() < 0.3 else None
    return {
        "judged": rng.random(layers) < rng.choice([1.0, 0.7, 0.0], p=[0.6, 0.3, 0.1]),
        "tolerated": most if rng.random() < 0.7 else int(rng.integers(0, most + 1)),
        "prior": -rng.exponential(0.3, n) if rng.random() < 0.3 else None,
        "size": size,
    }


def apart(one: Estimate, other: Estimate, name: str) -> float:
    """The largest difference of these numbers, relative to those above 1."""
    a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
    known = np.isfinite(a)
    np.testing.assert_array_equal(known, np.isfinite(b), err_msg=name)
    return float((np.abs(a[known] - b[known]) / np.maximum(np.abs(b[known]), 1.0)).max(initial=0.0))


def reordered_estimate(grams: np.ndarray, rng: Rng, **given: Any) -> Estimate:
    """NumPy's, with the clients in another order and in another unit: only rounding differs."""
    order = rng.permutation(grams.shape[1])
    back, size, prior = np.argsort(order), given.get("size"), given.get("prior")
    given["size"] = None if size is None else ClientSizes(size.vote[order], size.noise[order])
    given["prior"] = None if prior is None else prior[order]
    unit = rng.uniform(1, 4)
    if given.get("reference") is not None:
        given["reference"] = unit * given["reference"][:, order][:, :, order]
    found = estimate(unit * grams[:, order][:, :, order], **given)
    by_client = {name: getattr(found, name)[back] for name in NUMBERS}
    return dataclasses.replace(found, weights=found.weights[:, back], **by_client)


def assert_equal_to_numpy(grams: np.ndarray, **given: Any) -> None:
    """The same verdicts and reasons, and numbers that differ by 1e-9 at most.

    Where a client stands at the centre, its distance is a difference of large numbers, and the median divides by it:
    rounding shows. There NumPy differs from itself if the clients come in another order, and the program may differ as
    much (a few orders have their luck, hence a factor of 100).
    """
    with np.errstate(all="ignore"):
        one, other = compiled_estimate(grams, **given), estimate(grams, **given)
        assert (one.status, one.groups, one.pulled) == (other.status, other.groups, other.pulled)
        np.testing.assert_array_equal(one.accused, other.accused)
        differing = [name for name in (*NUMBERS, "weights") if apart(one, other, name) > 1e-9]
        rng = np.random.default_rng(0)
        others = [reordered_estimate(grams, rng, **given) for _ in range(10 if differing else 0)]
    slack = {name: 1e-9 + 100 * max(apart(x, other, name) for x in others) for name in differing}
    # Where the guard has worked, rounding chooses among copies: the answers are equal, which of them counts is not.
    for gram, a, b in zip(grams, one.weights, other.weights, strict=True):
        if np.abs(a - b).max() > slack.get("weights", 1e-9):
            assert one.pulled
            assert abs((a - b) @ gram @ (a - b)) <= 1e-14 * len(gram) * gram.diagonal().max()
    for name in set(differing) - {"weights"}:
        assert apart(one, other, name) <= slack[name], name
    assert (one.reasons is None) == (other.reasons is None)
    if one.reasons is not None and other.reasons is not None:
        assert one.reasons.rounds == other.reasons.rounds
        for name in ("group", "opposed", "absurd"):
            mine, theirs = (getattr(reasons, name)[one.accused] for reasons in (one.reasons, other.reasons))
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


def draw(seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 13 if rng.random() < 0.4 else 61))
    layers = int(min(2 ** rng.uniform(0, 9), 1 + 40000 // n**2))
    grams = grams_of(population(rng, n, layers))
    given = settings(rng, n, layers)
    return grams, {**given, "reference": (None, grams, about_another_point(rng, grams))[int(rng.integers(3))]}


def about_another_point(rng: Rng, grams: np.ndarray) -> np.ndarray:
    """The Gram matrices about a point that lies between the clients or far from all."""
    a = rng.normal(size=grams.shape[1]) * 10 ** rng.uniform(-1, 4)
    g = grams @ a
    return grams - g[:, :, None] - g[:, None, :] + (g @ a)[:, None, None]


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program as compiled for this processor, and for ones without AVX2 or FMA."""
    use_as_compiled_for(request.param, PROGRAM, tmp_path, monkeypatch)
    return request.param


@pytest.mark.parametrize("chunk", range(4))
def test_it_is_the_same_estimate(processor: str, chunk: int) -> None:
    for seed in range(60 * chunk, 60 * (chunk + 1)):
        grams, given = draw(seed)
        assert_equal_to_numpy(grams, **given)


def test_many_clients_and_many_layers() -> None:
    rng = np.random.default_rng(0)
    for n, layers in ((32, 9), (33, 9), (96, 2), (97, 2), (MOST, 1), (8, 500), (60, 40)):
        grams = grams_of(population(rng, n, layers))
        assert_equal_to_numpy(grams, judged=np.ones(layers, bool), tolerated=(n - 1) // 2, reference=grams)


@pytest.mark.parametrize("how", [compiled_estimate, estimate])
def test_matrices_about_the_reference_are_the_same_bits_given_once_or_twice(how: Callable[..., Estimate]) -> None:
    for seed in range(20):
        grams, given = draw(seed)
        with np.errstate(all="ignore"):
            once, twice = (how(grams, **{**given, "reference": about}) for about in (grams, grams.copy()))
        np.testing.assert_array_equal(once.weights, twice.weights)
        np.testing.assert_array_equal(once.evidence, twice.evidence)


def test_patterns_of_copies() -> None:
    """Exact ties: idle clients, camps of copies, unequal lengths; liars that copy, jitter, mimic or stand far away."""
    rng = np.random.default_rng(1)
    for n in (3, 4, 5, 8, 13, 20, 30):
        for f in range(1, most_tolerated(n) + 1, max(1, n // 8)):
            for pattern in list(patterns(n, f, rng))[::25]:
                grams = (pattern.updates @ pattern.updates.T)[None]
                assert_equal_to_numpy(grams, judged=np.ones(1, bool), tolerated=(n - 1) // 2)


def test_layers_in_which_a_majority_sent_the_same() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        updates = [rng.normal(size=(11, 50)), np.ones((11, 20)), rng.normal(size=(11, 200)), np.zeros((11, 3))]
        updates[2][:3] += 3 * rng.normal(size=200)  # three err alike
        updates[1][rng.permutation(11)[:4]] += 1.0
        assert_equal_to_numpy(grams_of(updates), judged=np.array([True, True, seed % 2 == 0, True]), tolerated=5)


def test_clients_that_copy_several_others() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        updates = [rng.uniform(0.7, 1.5, size=(15, 1)) * rng.normal(size=(15, 300)) for _ in range(8)]
        for i, x in enumerate(updates):
            x[: 1 + seed % 3] = 1.2 * x[3 + (i + seed) % 7]
        grams = grams_of(updates)
        about = grams if seed % 2 == 0 else None
        assert_equal_to_numpy(grams, judged=np.ones(8, bool), tolerated=7, reference=about)


def searches(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the guard's search starts."""
    return first_clients(n), set_sizes(n, n - (n - 1) // 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 1e295, 1e160, 5e-324])
def test_numbers_that_no_geometry_has_are_left_to_numpy_or_harmless(value: float) -> None:
    rng = np.random.default_rng(2)
    for n, layers in ((3, 1), (7, 2), (20, 3)):
        for places in (1, n, layers * n * n):
            grams = grams_of([rng.normal(size=(n, 5)) for _ in range(layers)])
            grams.ravel()[rng.permutation(grams.size)[:places]] = value
            fine = grams_of([rng.normal(size=(n, 5)) for _ in range(layers)])
            for gram, reference in ((grams, grams), (fine, grams), (grams, fine)):
                found = program.estimate(
                    gram, np.ones(layers, bool), (n - 1) // 2, None, reference, None, None, *searches(n)
                )
                assert found is None or (abs(value) <= 1e290 and np.isfinite(found.weights).all())


def test_matrices_that_are_not_gram_matrices_terminate() -> None:
    """Neither symmetric nor positive: whatever comes out, the program ends and stays within its memory."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        n, layers = int(rng.integers(3, 40)), int(rng.integers(1, 9))
        grams = rng.normal(size=(layers, n, n)) * 10 ** rng.uniform(-150, 150, size=(layers, n, n))
        found = program.estimate(grams, np.ones(layers, bool), (n - 1) // 2, None, -grams, None, None, *searches(n))
        assert found is None or found.copies.max() < n


def both_ways(monkeypatch: pytest.MonkeyPatch, rule: Bayesian, geometry: GramGeometry) -> tuple[Mix, Mix]:
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
    one = rule.mix(geometry)
    monkeypatch.setattr(compiled, "WORTH_COMPILING", np.inf)
    return one, rule.mix(geometry)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("rule", [Bayesian(), Bayesian(at_most=0.2), Bayesian(at_most=0.0), Bayesian(memory=Memory())])
def test_the_rule_says_the_same(monkeypatch: pytest.MonkeyPatch, n: int, rule: Bayesian) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        grams = grams_of(population(rng, n, 4)) if n > 2 else grams_of([rng.normal(size=(n, 9))] * 4)
        claims = rng.integers(1, 1000, n).astype(float) if seed % 2 else None
        geometry = GramGeometry.of_layers(grams, sizes=claims, has_reference=True)
        with np.errstate(all="ignore"):
            one, other = both_ways(monkeypatch, rule, geometry)
        assert one.verdicts == other.verdicts
        assert list(one.explanations or ()) == list(other.explanations or ())
        assert (one.status, one.steps) == (other.status, other.steps)
        np.testing.assert_allclose(np.asarray(one.honesty), np.asarray(other.honesty), rtol=0, atol=1e-9)
        assert one.diagnostics.keys() == other.diagnostics.keys()
        rule = rule.after(one.diagnostics)


def test_both_have_the_same_constants() -> None:
    modules = [importlib.import_module(f"honestly.rules.bayesian.{name}") for name in MODULES]
    text = "".join((SOURCE / name).read_text(encoding="utf-8") for name in program.SOURCES)
    defined = dict(re.findall(r"^#define ([A-Z_0-9]+) \(?(-?[0-9.e+ -]+)\)?$", text, flags=re.MULTILINE))
    assert {"COMMON", "SEARCH", "TIE", "NO_UNIT", "WITHIN", "SUSPECTED"} < defined.keys()
    theirs = {"NEAR_BASE": likeness.NEAR[0], "NEAR_CHANCE": likeness.NEAR[1]}
    for name, value in defined.items():
        if name not in ("LARGEST", "PERRON_STEPS"):  # the program's own
            known = theirs.get(name, next((getattr(m, name) for m in modules if hasattr(m, name)), None))
            assert known == sum(float(part) for part in value.split(" + ")), name
    assert (guard.STARTS, guard.SIZES) == (program.FIRST, program.SIZES)


def test_threads_at_once_give_the_same_bits() -> None:
    grams, given = draw(5)
    first = compiled_estimate(grams, **given)
    found: list[Estimate] = []
    threads = [threading.Thread(target=lambda: found.append(compiled_estimate(grams, **given))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for estimate_ in found:
        np.testing.assert_array_equal(estimate_.weights, first.weights)
        np.testing.assert_array_equal(estimate_.evidence, first.evidence)


def test_numpy_decides_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROGRAM, "library", lambda: None)
    monkeypatch.setattr(program, "estimate", lambda *_: pytest.fail("called a program that is not there"))
    geometry = GramGeometry(np.eye(5), layer_sizes=np.array([1e9]))
    assert compiled.estimator_for(geometry) is estimate
    Bayesian().mix(geometry)


def test_small_updates_do_not_start_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "available", lambda: pytest.fail("asked for a compiler"))
    Bayesian().mix(GramGeometry(np.eye(5)))
    Bayesian().mix(GramGeometry(np.eye(MOST + 1), layer_sizes=np.array([1e9])))
