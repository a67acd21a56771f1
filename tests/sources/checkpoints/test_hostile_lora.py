"""LoRA adapters of clients that lie, or are damaged: each costs its own vote, and chooses nothing for the others."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import honestly as hn
from honestly.sources.checkpoints import Checkpoints

from .lora_files import HEAD, MODULES, products, write


def _rename(path: Path, new: str, shape: tuple[int, ...] = ()) -> None:
    """Call A and B something else, as an adapter of another name is called, and give B more axes."""
    file = path / "adapter_model.safetensors"
    tensors = {name.replace(".weight", new): values for name, values in load_file(file).items()}
    b = {name: x.reshape(*x.shape, *shape).copy() for name, x in tensors.items() if "lora_B" in name}
    save_file(tensors | b, file)


@pytest.mark.parametrize("lora", ["exact", "svd", "factors"])
def test_one_client_does_not_name_the_factors_of_the_result(adapters: list[Path], lora: str) -> None:
    """PEFT would not find them, and leave the model as it was."""
    paths = [adapters[0], adapters[2], *adapters[5:]]  # of one rank
    names = set(load_file(paths[1] / "adapter_model.safetensors"))
    _rename(paths[0], ".mine.weight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hn.aggregate(Checkpoints(paths, lora=lora), "mean")
    assert found.excluded == ()
    assert set(found.value) == names


def test_axes_of_length_one_cost_the_vote(adapters: list[Path]) -> None:
    _rename(adapters[0], ".weight", (1, 1))
    found = hn.aggregate(adapters, "mean")
    assert found.excluded == (0,)
    assert "lora_B' has shape (19, 1, 1), expected (19,)" in found.reasons[0]
    assert all(values.ndim <= 2 for values in found.value.values())


def test_factors_are_written_at_the_scale_of_most_clients(tmp_path: Path, truth: Any) -> None:
    """A huge alpha of the first client would leave nothing of B in float16."""
    rng = np.random.default_rng(6)
    paths = [write(tmp_path / f"{k}", rng, truth, alpha=1e5 if k == 0 else 16) for k in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hn.aggregate(Checkpoints(paths, lora="factors"), "mean", out=tmp_path / "out")
    assert json.loads((found.value / "adapter_config.json").read_text())["lora_alpha"] == 16


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"base_model_name_or_path": "another"}, "is for the base model 'another@main', expected 'base@main'"),
        ({"revision": "v2"}, "is for the base model 'base@v2'"),
        ({"peft_type": "IA3"}, "expected 'LORA'"),
        ({"use_dora": True}, "sets use_dora"),
        ({"lora_bias": True}, "sets lora_bias"),
        ({"use_bdlora": {"nblocks": 2}}, "sets use_bdlora"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base model"),
        ({"init_lora_weights": "lora_ga"}, "'lora_ga', which changes the base model"),
        ({"trainable_token_indices": [1, 3]}, r"has trainable_token_indices \[1, 3\], expected null"),
        ({"layer_replication": [[0, 2]]}, r"has layer_replication \[\[0, 2\]\], expected null"),
        ({"r": 5}, "has rank 4, but its adapter_config.json says 5"),
        ({"r": "4"}, "says 4"),
        ({"lora_alpha": None}, "has lora_alpha None"),
        ({"lora_alpha": 1e300}, "has lora_alpha 1e\\+300"),
        ({"lora_alpha": 1e-300}, "has lora_alpha 1e-300"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "only module names"),
        ({"rank_pattern": [4]}, "not a mapping"),
    ],
)
def test_adapters_that_cannot_be_averaged(adapters: list[Path], config: dict[str, Any], reason: str) -> None:
    file = adapters[3] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_rslora": False} | config))
    found = hn.aggregate(adapters, "mean")
    assert list(found.reasons) == [3]
    import re

    assert re.search(reason, found.reasons[3])


def test_patterns_of_a_stranger_are_read_once(adapters: list[Path]) -> None:
    """Each was compared with each module: 60,000 with 40,000 take hours, and fit into the files."""
    file = adapters[3] / "adapter_config.json"
    patterns = {"rank_pattern": {f"x{i}": 4 for i in range(30_000)}, "r": 4}
    file.write_text(json.dumps(json.loads(file.read_text()) | patterns))
    tensors = load_file(adapters[3] / "adapter_model.safetensors")
    for i in range(5_000):
        tensors[f"m{i}.lora_A.weight"], tensors[f"m{i}.lora_B.weight"] = np.ones((4, 1)), np.ones((1, 4))
    save_file(tensors, adapters[3] / "adapter_model.safetensors")
    begun = time.process_time()
    assert list(hn.aggregate(adapters, "mean").reasons) == [3]
    assert time.process_time() - begun < 30  # it took minutes


def _without_b(tensors: dict[str, np.ndarray]) -> None:
    del tensors["base_model.model.layers.0.q_proj.lora_B.weight"]


def _nan(tensors: dict[str, np.ndarray]) -> None:
    tensors["base_model.model.layers.0.q_proj.lora_B.weight"][1, 2] = np.nan


def _shape(tensors: dict[str, np.ndarray]) -> None:
    tensors["base_model.model.layers.0.q_proj.lora_A.weight"] = np.zeros((4, 5), np.float32)


def _unknown(tensors: dict[str, np.ndarray]) -> None:
    tensors["base_model.model.layers.0.q_proj.lora_magnitude_vector"] = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_without_b, "lora_B.weight' is missing"),
        (_nan, "at flat index 6 is nan"),
        (_shape, "has shape"),
        (_unknown, "not a known kind of LoRA factor"),
    ],
)
def test_tensors_that_cannot_be_averaged(adapters: list[Path], edit: Any, reason: str) -> None:
    file = adapters[3] / "adapter_model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    for rule in ("bayesian", "mean"):
        found = hn.aggregate(adapters, rule)
        assert list(found.reasons) == [3]
        assert reason in found.reasons[3]


@pytest.mark.parametrize("lora", ["exact", "svd", "factors"])
@pytest.mark.parametrize("rule", ["mean", "bayesian"])
def test_a_value_that_is_no_number_costs_the_vote_in_every_form(adapters: list[Path], lora: str, rule: str) -> None:
    paths = [path for k, path in enumerate(adapters) if k not in (1, 4)]  # of one rank
    file = paths[2] / "adapter_model.safetensors"
    tensors = load_file(file)
    _nan(tensors)
    save_file(tensors, file)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = hn.aggregate(Checkpoints(paths, lora=lora), rule)
    assert found.excluded == (2,)
    assert all(np.isfinite(x).all() for x in found.value.values())
    assert len(warned) == (lora == "factors")


def _rewrite(path: Path, edit: Any) -> None:
    """Change the pairs of an adapter; those of `edit(A, B)` are written as float32."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    for module in MODULES:
        names = [f"{module}.lora_{side}.weight" for side in "AB"]
        pair = edit(*[tensors[name].astype(float) for name in names])
        tensors |= {name: np.ascontiguousarray(x, np.float32) for name, x in zip(names, pair, strict=True)}
    save_file(tensors, file)


@pytest.mark.parametrize("lora", ["exact", "svd"])
@pytest.mark.parametrize("size", [1e15, 1e-15])
def test_one_client_chooses_the_size_of_its_own_factors_only(
    tmp_path: Path, truth: Any, lora: str, size: float
) -> None:
    """B/c and A c are the same product: they must not drown the others, nor overflow the dtype of the result."""
    rng = np.random.default_rng(6)
    paths = [write(tmp_path / f"site-{k}", rng, truth) for k in range(5)]
    usual = hn.aggregate(Checkpoints(paths, lora=lora), "mean", out=tmp_path / "usual").value
    for path in paths[:4]:
        tensors = load_file(path / "adapter_model.safetensors")
        save_file({n: x.astype(np.float16) for n, x in tensors.items()}, path / "adapter_model.safetensors")
    _rewrite(paths[4], lambda A, B: (A * size, B / size))
    found = hn.aggregate(Checkpoints(paths, lora=lora), "mean", out=tmp_path / "out").value
    assert load_file(found / "adapter_model.safetensors")[HEAD].dtype == np.float16
    for name, values in products(usual).items():
        np.testing.assert_allclose(products(found)[name], values, atol=0.02)


@pytest.mark.parametrize("size", [1e3, 1e15, 1e-15])
def test_the_mean_of_factors_is_not_that_of_one_client(tmp_path: Path, truth: Any, size: float) -> None:
    rng = np.random.default_rng(6)
    paths = [write(tmp_path / f"site-{k}", rng, truth) for k in range(6)]
    _rewrite(paths[5], lambda A, B: (A * size, B / size))
    with pytest.warns(UserWarning, match="is not the mean of B A"):
        found = hn.aggregate(Checkpoints(paths, lora="factors"), out=tmp_path / "out")
    assert found.honesty is not None
    assert found.honesty[5] > 0.9  # its products are ordinary
    assert found.diagnostics["lora"]["relative_error"] < 0.1
    for name, values in products(found.value).items():
        if name != HEAD:
            A, B = truth[name]
            assert np.linalg.norm(values - B @ A) < 0.1 * np.linalg.norm(B @ A)


@pytest.mark.parametrize("lora", ["exact", "svd"])
@pytest.mark.parametrize("rule", ["mean", "bayesian"])
@pytest.mark.parametrize("size", [1e4, 1e12])
def test_factors_that_cancel_each_other_do_no_harm(
    tmp_path: Path, truth: Any, lora: str, rule: str, size: float
) -> None:
    """Columns of B that add up to nearly nothing, over equal rows of A: rounding hid what product was written."""
    rng = np.random.default_rng(7)
    paths = [write(tmp_path / f"site-{k}", rng, truth) for k in range(6)]

    def cancel(A: Any, B: Any) -> Any:
        x, y = (size * rng.normal(size=len(B)).astype(np.float32) for _ in range(2))
        columns = [x, y, -(x + y), B[:, 0]]
        return np.stack([A[0]] * 4), np.stack(columns, axis=1)

    _rewrite(paths[5], cancel)
    out = hn.aggregate(Checkpoints(paths, lora=lora), rule, out=tmp_path / "out").value
    written = load_file(out / "adapter_model.safetensors")
    assert max(abs(x).max() for x in written.values()) < 100
    for name, values in products(out).items():
        if name != HEAD:
            A, B = truth[name]
            assert np.linalg.norm(values - B @ A) < 0.6 * np.linalg.norm(B @ A)


def test_names_in_another_order_are_the_same_setting(tmp_path: Path, truth: Any) -> None:
    """PEFT writes sets in any order; each of them was a setting of its own, and one client's could win."""
    rng = np.random.default_rng(6)
    orders = [["q_proj", "v_proj"], ["v_proj", "q_proj"], ["q_proj", "v_proj"], ["v_proj", "q_proj"]]
    orders += [["zzz"], ["zzz"]]
    paths = [write(tmp_path / f"site-{k}", rng, truth, target_modules=order) for k, order in enumerate(orders)]
    out = hn.aggregate(paths, "mean", out=tmp_path / "out").value
    assert json.loads((out / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "v_proj"]


def test_a_rank_far_above_the_others_costs_the_vote(tmp_path: Path, truth: Any) -> None:
    """Memory grows with the square of the sum of the ranks, and the result would have that rank."""
    rng = np.random.default_rng(3)
    paths = [write(tmp_path / f"{k}", rng, truth, rank=4 if k < 5 else 16) for k in range(6)]
    paths += [write(tmp_path / f"{k}", rng, truth, rank=200) for k in range(6, 9)]
    found = hn.aggregate(paths, "mean", out=tmp_path / "out")
    assert found.excluded == (6, 7, 8)
    assert "has rank 200, more than 16 times that of the median client (4)" in found.reasons[6]
    assert json.loads((found.value / "adapter_config.json").read_text())["r"] == 5 * 4 + 16
