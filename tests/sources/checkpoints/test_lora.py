"""LoRA adapters: the product B A is averaged, using only matrices of the size of the ranks."""

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
from honestly.engine.passes.products import balanced, best_factors, squared_norm, sum_blocks
from honestly.rules.rule import squared_distances
from honestly.sources.checkpoints import Checkpoints

MODULES = {"base_model.model.layers.0.q_proj": (19, 33), "base_model.model.layers.1.v_proj": (27, 11)}
HEAD = "base_model.model.head.bias"


def write(path: Path, rng: np.random.Generator, truth: Any, *, rank: int = 4, alpha: float = 16, **config: Any) -> Path:
    """An adapter whose products are near `truth`, whatever its rank, alpha and scaling."""
    scale = alpha / np.sqrt(rank) if config.get("use_rslora") else alpha / rank
    tensors = {}
    for module, (A, B) in truth.items():
        r = len(A)
        big_a = 0.01 * rng.normal(size=(rank, A.shape[1]))
        big_b = 0.01 * rng.normal(size=(B.shape[0], rank))
        big_a[:r] += A
        big_b[:, :r] += B
        tensors[f"{module}.lora_A.weight"] = big_a.astype(np.float32)
        tensors[f"{module}.lora_B.weight"] = (big_b / scale).astype(np.float32)
    tensors[HEAD] = rng.normal(size=5).astype(np.float32)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["q_proj", "v_proj"]} | config))
    return path


def products(path: Path) -> dict[str, np.ndarray]:
    """What PEFT adds to each weight, in float64, and the other tensors."""
    config, tensors = (
        json.loads((path / "adapter_config.json").read_text()),
        load_file(path / "adapter_model.safetensors"),
    )
    found = {}
    for name, values in tensors.items():
        if "lora_A" in name:
            module, r = name.removesuffix(".lora_A.weight"), len(values)
            key = next((k for k in config.get("rank_pattern", {}) if module.endswith(k)), None)
            assert r == (config["rank_pattern"][key] if key else config["r"])
            key = next((k for k in config.get("alpha_pattern", {}) if module.endswith(k)), None)
            alpha = config["alpha_pattern"][key] if key else config["lora_alpha"]
            scale = alpha / (np.sqrt(r) if config.get("use_rslora") else r)
            found[module] = scale * tensors[f"{module}.lora_B.weight"].astype(float) @ values.astype(float)
        elif "lora_" not in name:
            found[name] = values.astype(float)
    return found


@pytest.fixture
def truth() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return {m: (rng.normal(size=(3, n)), rng.normal(size=(out, 3))) for m, (out, n) in MODULES.items()}


@pytest.fixture
def adapters(tmp_path: Path, truth: Any) -> list[Path]:
    """Seven adapters of mixed ranks, alphas and scalings; the last one flips the sign of one module."""
    rng = np.random.default_rng(6)
    settings: list[dict[str, Any]] = [
        {},
        {"rank": 8},
        {"alpha": 8},
        {"use_rslora": True},
        {"rank": 6, "alpha": 3.5},
        {},
        {},
    ]
    flipped = {m: (-A if "q_proj" in m else A, B) for m, (A, B) in truth.items()}
    return [write(tmp_path / f"site-{k}", rng, flipped if k == 6 else truth, **s) for k, s in enumerate(settings)]


def mean_of(paths: list[Path], weights: np.ndarray) -> dict[str, np.ndarray]:
    every = [products(path) for path in paths]
    return {name: sum(w * p[name] for w, p in zip(weights, every, strict=True)) for name in every[0]}


def norm(difference: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum((x**2).sum() for x in difference.values())))


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


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"base_model_name_or_path": "another"}, "is for the base model 'another@main', expected 'base@main'"),
        ({"revision": "v2"}, "is for the base model 'base@v2'"),
        ({"peft_type": "IA3"}, "expected 'LORA'"),
        ({"use_dora": True}, "sets use_dora"),
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
