"""Layers in which clients differ by far less than all of them moved: rounding must not hide liars there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiler import needs_compiler
from conftest import Library
from safetensors.numpy import save_file

import honestly as hn
from honestly import arrays
from honestly.engine.passes import compiled, plain
from honestly.result import Verdict
from honestly.rules.bayesian import compiled as decision

K, LIARS = 11, 5
SIZES = {"large": 4000, "small": 600}
ATTACKS = ("one direction", "copies", "along the movement", "against", "one far away")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiler), "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled programs or NumPy, whatever the size."""
    if request.param == "compiled":
        assert compiled.program.available()
        assert decision.program.available()
    for module in (compiled, decision):
        monkeypatch.setattr(module, "WORTH_COMPILING", 0 if request.param == "compiled" else 1 << 60)


def clients(ratio: float, attack: str, seed: int = 0) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Liars first, and the reference. In the small layer clients differ by `ratio` of what all moved."""
    rng = np.random.default_rng(seed)
    reference = {name: rng.normal(size=d) for name, d in SIZES.items()}
    moves = {"large": rng.normal(size=(K, SIZES["large"])), "small": ratio * rng.normal(size=(K, SIZES["small"]))}
    common, direction = rng.normal(size=(2, SIZES["small"]))
    small, lies = moves["small"], slice(0, LIARS)
    if attack == "one direction":
        small[lies] += 20 * ratio * direction
    elif attack == "copies":
        small[lies] = small[LIARS:].mean(axis=0) + 20 * ratio * direction
    elif attack == "along the movement":
        small[lies] += 20 * ratio * common
    elif attack == "against":
        small[lies] -= 2 * common
    else:
        small[lies] += 20 * ratio * direction
        small[0] = 1e3 * ratio * direction
    small += common
    return [{name: reference[name] + move[k] for name, move in moves.items()} for k in range(K)], reference


def assert_kept(sent: np.ndarray, value: np.ndarray, dtype: str) -> None:
    """The answer is within the bound, but for the rounding of the answer itself to its dtype, in the small layer."""
    honest = sent[LIARS:]
    mean = honest.mean(axis=0)
    variance = np.square(honest - mean).sum(axis=1).mean()
    rounding = EPS[dtype] * np.linalg.norm(mean)
    most = (K - 1) // 2
    bound = most / (K - LIARS - most)
    assert np.linalg.norm(value - mean) <= np.sqrt(1.01 * bound * variance) + rounding


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("ratio", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_the_promise_is_kept_where_clients_hardly_differ(ratio: float, attack: str) -> None:
    updates, reference = clients(ratio, attack)
    rows = [{name: x.astype(np.float32) for name, x in row.items()} for row in updates]
    out = hn.aggregate(rows, reference={name: x.astype(np.float32) for name, x in reference.items()})
    assert_kept(np.stack([row["small"] for row in rows]).astype(float), out.value["small"].astype(float), "float32")
    assert set(out.accused) <= set(range(LIARS))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("ratio", [1e-2, 1e-4])
def test_every_library_and_dtype(xp: Library, ratio: float, attack: str) -> None:
    """In 16 bits, clients differ by a few units in the last place, or not at all: that is then the variance."""
    updates, reference = clients(ratio, attack)
    for dtype in xp.dtypes():
        rows = [{name: xp.array(x, dtype) for name, x in row.items()} for row in updates]
        out = hn.aggregate(rows, reference={name: xp.array(x, dtype) for name, x in reference.items()})
        assert_kept(np.stack([xp.numpy(row["small"]) for row in rows]), xp.numpy(out.value["small"]), dtype)


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("kind", ["matrix", "state dicts"])
def test_on_an_accelerator(library: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "on_host", lambda x: isinstance(x, np.ndarray | np.generic))
    updates, reference = clients(1e-4, "copies")
    found = Library(library)
    if kind == "matrix":
        rows, base = (found.array([[*row["large"], *row["small"]] for row in some]) for some in (updates, [reference]))
        value = found.numpy(hn.aggregate(rows, reference=base[0, ...], layers=SIZES).value)[SIZES["large"] :]
        sent = found.numpy(rows)[:, SIZES["large"] :]
    else:
        every = [{name: found.array(x) for name, x in row.items()} for row in [*updates, reference]]
        value = found.numpy(hn.aggregate(every[:K], reference=every[K]).value["small"])
        sent = np.stack([found.numpy(row["small"]) for row in every[:K]])
    assert_kept(sent, value, "float32")


def test_files_are_read_again_in_such_layers_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, reference = clients(1e-4, "copies")
    rows = [{name: x.astype(np.float32) for name, x in row.items()} for row in [*updates, reference]]
    paths = [tmp_path / f"{k}.safetensors" for k in range(K + 1)]
    for path, row in zip(paths, rows, strict=True):
        save_file(row, path)
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 1 << 60)
    passes: list[int] = []
    read: list[int] = []
    gram, fill = plain.PlainPasses.gram, plain.PlainPasses.fill

    def counted(self: plain.PlainPasses, *args: Any) -> np.ndarray:
        read.clear()
        G = gram(self, *args)
        passes.append(sum(read))
        return G

    monkeypatch.setattr(plain.PlainPasses, "gram", counted)
    monkeypatch.setattr(
        plain.PlainPasses, "fill", lambda self, block, *args: read.append(block.width) or fill(self, block, *args)
    )
    out = hn.aggregate(paths[:K], reference=paths[K])
    whole, *again = passes
    assert whole == sum(SIZES.values())
    assert set(again) == {SIZES["small"]}
    assert set(out.accused) == set(range(LIARS))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("where", [["large"], ["large", "small"]], ids=" and ".join)
def test_who_opposes_is_still_found(where: list[str]) -> None:
    """Likeness takes two: that a single client goes back where all others go shows only from the reference."""
    updates, reference = clients(1e-4, "copies")
    honest = [{name: x - reference[name] for name, x in row.items()} for row in updates[LIARS:]]
    common = np.random.default_rng(1).normal(size=SIZES["large"])
    for row in honest:
        row["large"] += common
    for name in where:
        honest[0][name] *= -1
    out = hn.aggregate(honest, reference={name: np.zeros(d) for name, d in SIZES.items()})
    assert out.accused == (0,)
    assert "opposes" in out.explanations[0]


@pytest.mark.usefixtures("way")
def test_who_sent_the_reference_unchanged_abstains() -> None:
    updates, reference = clients(1e-4, "copies")
    updates[-1] = reference
    rows = [{name: x.astype(np.float32) for name, x in row.items()} for row in updates]
    out = hn.aggregate(rows, reference={name: x.astype(np.float32) for name, x in reference.items()})
    assert out.verdicts[-1] is Verdict.ABSTAINED
