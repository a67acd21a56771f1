"""LoRA adapters: the product B A is averaged, using only matrices of the size of the ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import honestly as hn
from honestly.engine.passes.products import balanced, best_factors, squared_norm, sum_blocks
from honestly.rules.rule import squared_distances
from honestly.sources.checkpoints import Checkpoints

from .lora_files import HEAD, MODULES, mean_of, norm, products, write


def test_exact_is_the_mean_of_the_products(adapters: list[Path], tmp_path: Path) -> None:
    found = hn.aggregate(adapters, "geometric_median", out=tmp_path / "out", explain=True)
    assert found.weights is not None
    assert not found.excluded
    assert found.weights[6] == found.weights.min()  # the liar
    expected, got = mean_of(adapters, found.weights), products(found.value)
    assert set(got) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-5)
    assert found.diagnostics["lora"]["relative_error"] == 0
    distances = [norm({n: products(p)[n] - expected[n] for n in expected}) for p in adapters]
    np.testing.assert_allclose(found.diagnostics["distance"], distances, rtol=1e-6)
    layers = found.diagnostics["layer_distances"]
    assert max(layers, key=lambda name: layers[name][6]) == "base_model.model.layers.0.q_proj"


def test_the_gram_matrix_is_that_of_the_products(adapters: list[Path]) -> None:
    from honestly.engine.passes.lora import LoraPasses
    from honestly.sources import open_source

    passes = LoraPasses(open_source(adapters))  # type: ignore[arg-type]
    X = np.stack([np.concatenate([x.ravel() for x in products(path).values()]) for path in adapters])
    centred = X - X[2]
    np.testing.assert_allclose(passes.gram(range(7), 2).sum(0), centred @ centred.T, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(passes.gram([4, 1], None).sum(0), X[[4, 1]] @ X[[4, 1]].T, rtol=1e-10)
    sample = passes.sample([3, 0, 5])
    np.testing.assert_allclose(
        squared_distances(sample @ sample.T), squared_distances(X[[3, 0, 5]] @ X[[3, 0, 5]].T), rtol=1e-6
    )
    a = np.array([[0.5, 0.25, 0.25]])
    expected = ((X[[3, 0, 5]] - a @ X[[3, 0, 5]]) ** 2).sum(axis=1)
    np.testing.assert_allclose(passes.residuals(a, [3, 0, 5], 2, None)[0][0].sum(0), expected, rtol=1e-6)


def test_small_chunks_change_nothing(adapters: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from honestly.engine.passes import lora_factors

    whole = hn.aggregate(adapters, "bayesian")
    monkeypatch.setattr(lora_factors, "CHUNK", 1)
    monkeypatch.setattr(lora_factors, "NARROWEST", 5)
    pieces = hn.aggregate(adapters, "bayesian")
    np.testing.assert_allclose(pieces.weights, whole.weights, rtol=1e-9)


def test_svd_is_the_best_of_its_rank_and_says_its_error(adapters: list[Path], tmp_path: Path) -> None:
    found = hn.aggregate(Checkpoints(adapters, lora="svd", rank=2), "mean", out=tmp_path / "out")
    expected, got = mean_of(adapters, np.full(7, 1 / 7)), products(found.value)
    error = total = 0.0
    for module in MODULES:
        U, s, V = np.linalg.svd(expected[module])
        best = (U[:, :2] * s[:2]) @ V[:2]
        np.testing.assert_allclose(got[module], best, rtol=1e-4, atol=1e-4 * s[0])
        error, total = error + (s[2:] ** 2).sum(), total + (s**2).sum()
    np.testing.assert_allclose(found.diagnostics["lora"]["relative_error"], np.sqrt(error / total), rtol=1e-3)
    np.testing.assert_allclose(got[HEAD], expected[HEAD], rtol=1e-5, atol=1e-7)
    config = json.loads((found.value / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"], config["bias"]) == (
        2,
        2,
        "base",
        "none",
    )


def test_svd_keeps_the_rank_of_most_clients(adapters: list[Path]) -> None:
    value = hn.aggregate(Checkpoints(adapters, lora="svd"), "mean").value
    assert value["base_model.model.layers.0.q_proj.lora_A.weight"].shape == (4, 33)


def test_factors_warn_and_say_their_error(adapters: list[Path], tmp_path: Path) -> None:
    paths = [path for k, path in enumerate(adapters) if k not in (1, 4)]  # of one rank
    with pytest.warns(UserWarning, match="not the mean of B A"):
        found = hn.aggregate(Checkpoints(paths, lora="factors"), "mean", out=tmp_path / "out")
    expected, got = mean_of(paths, np.full(5, 0.2)), products(found.value)
    error = norm({m: got[m] - expected[m] for m in MODULES}) / norm({m: expected[m] for m in MODULES})
    assert error > 1e-3
    np.testing.assert_allclose(found.diagnostics["lora"]["relative_error"], error, rtol=1e-4)
    # Alphas were aligned: with factors that agree, the factor-wise mean is the mean.
    same = [paths[0], paths[0], paths[0]]
    with pytest.warns(UserWarning, match="by 0 of its norm|e-0|e-1"):
        found = hn.aggregate(Checkpoints(same, lora="factors"), "mean", out=tmp_path / "same")
    np.testing.assert_allclose(
        products(found.value)[next(iter(MODULES))], products(paths[0])[next(iter(MODULES))], rtol=1e-5, atol=1e-6
    )


def test_factors_align_alphas(tmp_path: Path, truth: Any) -> None:
    paths = [
        write(tmp_path / f"{k}", np.random.default_rng(0), truth, alpha=alpha) for k, alpha in enumerate([16, 16, 4])
    ]
    with pytest.warns(UserWarning, match="not the mean"):
        found = hn.aggregate(Checkpoints(paths, lora="factors"), "mean", out=tmp_path / "out")
    for module in MODULES:  # the same products, written with another alpha
        np.testing.assert_allclose(products(found.value)[module], products(paths[2])[module], rtol=1e-4, atol=1e-4)


def test_coordinate_rules_need_factors(adapters: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="works on coordinates"):
        hn.aggregate(adapters, "median")
    paths = [path for k, path in enumerate(adapters) if k not in (1, 4)]
    with pytest.warns(UserWarning, match="is not that of B A"):
        found = hn.aggregate(Checkpoints(paths, lora="factors"), "median")
    name = "base_model.model.layers.0.q_proj.lora_A.weight"
    stacked = np.stack([load_file(path / "adapter_model.safetensors")[name] for path in paths])
    np.testing.assert_allclose(found.value[name], np.median(stacked, axis=0), rtol=1e-6)


def test_another_rank_costs_the_vote_where_factors_are_averaged(adapters: list[Path]) -> None:
    with pytest.warns(UserWarning, match="is not the mean of B A"):
        found = hn.aggregate(Checkpoints(adapters, lora="factors"), "mean")
    with pytest.warns(UserWarning, match="is not the mean of B A"):
        expected = hn.aggregate(Checkpoints([adapters[k] for k in (0, 2, 3, 5, 6)], lora="factors"), "mean")
    assert found.excluded == (1, 4)
    assert "has rank 8 and that of most clients 4: lora='factors' needs equal ranks" in found.reasons[1]
    for name, values in expected.value.items():
        np.testing.assert_array_equal(found.value[name], values)


def test_factors_that_are_still_zero(adapters: list[Path]) -> None:
    """Every B is zero before training begins."""
    for path in adapters:
        file = path / "adapter_model.safetensors"
        save_file({name: x * (0 if "lora_B" in name else 1) for name, x in load_file(file).items()}, file)
    for lora in ("exact", "svd"):
        for rule in ("mean", "bayesian"):
            found = hn.aggregate(Checkpoints(adapters, lora=lora), rule)
            assert found.excluded == ()
            assert all(np.isfinite(x).all() for x in found.value.values())
            assert not any(x.any() for name, x in found.value.items() if "lora_B" in name)


def test_a_reference_adapter(adapters: list[Path], tmp_path: Path) -> None:
    """Clipping gives weight to the reference, so its factors are part of the result."""
    found = hn.aggregate(adapters[1:], hn.CenteredClipping(tau=0.5), reference=adapters[0], out=tmp_path / "out")
    share = found.diagnostics["reference_weight"]
    assert share > 0.1
    assert found.weights is not None
    expected = mean_of(adapters, np.concatenate([[share], (1 - share) * found.weights]))
    for name, values in expected.items():
        np.testing.assert_allclose(products(found.value)[name], values, rtol=1e-4, atol=1e-4)


def test_pre_mixers_work_on_products(adapters: list[Path], tmp_path: Path) -> None:
    found = hn.aggregate(adapters, "mean", pre=hn.NNM(f=1), out=tmp_path / "out")
    assert found.weights is not None
    expected = mean_of(adapters, found.weights)
    for name, values in expected.items():
        np.testing.assert_allclose(products(found.value)[name], values, rtol=1e-4, atol=1e-5)


def test_alpha_by_module_is_respected(adapters: list[Path], tmp_path: Path) -> None:
    file = adapters[0] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"alpha_pattern": {"0.q_proj": 5}}))
    found = hn.aggregate(adapters[:3], "mean", out=tmp_path / "out")
    expected = mean_of(adapters[:3], np.full(3, 1 / 3))
    for name, values in expected.items():
        np.testing.assert_allclose(products(found.value)[name], values, rtol=1e-5, atol=1e-5)


def test_a_module_whose_name_ends_another(tmp_path: Path) -> None:
    """`^proj` is that module only, `proj` every module that ends in it, for PEFT."""
    rng = np.random.default_rng(3)
    paths = [tmp_path / f"site-{k}" for k in range(3)]
    for path in paths:
        path.mkdir()
        tensors = {}
        for module, rank in (("proj", 3), ("blocks.0.proj", 2), ("blocks.1.proj", 2)):
            tensors[f"base_model.model.{module}.lora_A.weight"] = rng.normal(size=(rank, 5)).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = rng.normal(size=(4, rank)).astype(np.float32)
        save_file(tensors, path / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 2, "lora_alpha": 2}
        patterns = {"rank_pattern": {"^proj": 3}, "alpha_pattern": {r"^proj$": 6, r"0\.proj": 8}}
        (path / "adapter_config.json").write_text(json.dumps(config | patterns))
    found = hn.aggregate(paths, "mean", out=tmp_path / "out")
    assert not found.excluded
    config = json.loads((found.value / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (6, {"^proj": 9}, {"^proj": 9})
    written, scales = load_file(found.value / "adapter_model.safetensors"), {"proj": 2, "blocks.0.proj": 4}
    for module in ("proj", "blocks.0.proj", "blocks.1.proj"):
        A, B = (f"base_model.model.{module}.lora_{side}.weight" for side in "AB")
        every = [load_file(path / "adapter_model.safetensors") for path in paths]
        expected = scales.get(module, 1) * sum(one[B] @ one[A] for one in every) / 3
        np.testing.assert_allclose(written[B] @ written[A], expected, rtol=1e-5, atol=1e-5)


def test_what_the_tensors_belong_to_is_kept(tmp_path: Path, truth: Any) -> None:
    """PEFT drops tensors of which the settings say nothing, without a word; rows of tokens are in the order given."""
    meaning = {"trainable_token_indices": {"embed": [7, 2]}, "target_parameters": ["b.w", "a.w"]}
    rng = np.random.default_rng(0)
    paths = [write(tmp_path / f"{k}", rng, truth, init_lora_weights="gaussian", **meaning) for k in range(3)]
    found = hn.aggregate(paths, "mean", reference=paths[0], out=tmp_path / "out")
    assert found.excluded == ()
    config = json.loads((found.value / "adapter_config.json").read_text())
    assert {name: config[name] for name in meaning} == meaning


def test_adapters_and_models_are_not_mixed(adapters: list[Path], tmp_path: Path) -> None:
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    found = hn.aggregate([*adapters, tmp_path / "model.safetensors"], "mean")
    assert found.reasons == {7: "is a checkpoint, while most clients sent LoRA adapters"}


def test_factors_without_their_config_are_not_averaged_by_accident(adapters: list[Path], tmp_path: Path) -> None:
    files = [path / "adapter_model.safetensors" for path in (adapters[0], adapters[2], adapters[3])]
    with pytest.raises(ValueError, match=r"without their adapter_config\.json"):
        hn.aggregate(files, "mean")
    with pytest.raises(ValueError, match="an adapter is written as a folder"):
        hn.aggregate(adapters, "mean", out=tmp_path / "x.safetensors")


def test_the_algebra_of_products() -> None:
    rng = np.random.default_rng(0)
    ranks, (A, B) = [2, 3, 1], (rng.normal(size=(6, 9)), rng.normal(size=(7, 6)))
    MA, MB = A @ A.T, B.T @ B
    parts = [B[:, a:b] @ A[a:b] for a, b in ((0, 2), (2, 5), (5, 6))]
    expected = [[(p * q).sum() for q in parts] for p in parts]
    np.testing.assert_allclose(sum_blocks(MA * MB, ranks), expected)
    E = rng.normal(size=(6, 6))
    np.testing.assert_allclose(squared_norm(E, MA, MB), ((B @ E @ A) ** 2).sum())
    D = rng.normal(size=6)
    TA, TB = best_factors(D, MA, MB, 6)
    np.testing.assert_allclose(B @ TB @ TA @ A, (B * D) @ A, atol=1e-9)
    A[3] = A[2]  # dependent rows: no division by zero
    TA, TB = best_factors(D, A @ A.T, MB, 6)
    np.testing.assert_allclose(B @ TB @ TA @ A, (B * D) @ A, atol=1e-6)


def test_balanced_factors() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(5, 9)), rng.normal(size=(7, 5))
    A[:2] *= 1e12
    B[:, :2] /= 1e12
    A[4], B[:, 4] = A[3], 1e-9 - B[:, 3]  # the last client's factors cancel each other
    weights, ranks = np.array([0.25, -0.5, 1.0]), [2, 1, 2]
    TA, TB = balanced(A @ A.T, B.T @ B, ranks, weights, [True, True, True])
    for rows, weight in ((slice(0, 2), 0.25), (slice(2, 3), -0.5), (slice(3, 5), 0)):
        a, b = TA[rows] @ A, B @ TB[:, rows]
        np.testing.assert_allclose(b @ a, weight * B[:, rows] @ A[rows], atol=1e-8)
        np.testing.assert_allclose(np.linalg.norm(a), np.linalg.norm(b))
