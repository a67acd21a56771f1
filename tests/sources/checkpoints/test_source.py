"""Files give the same result as the same tensors in memory, for any format, shards, dtype and order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tolerance
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

import honestly as hn
from honestly.sources.checkpoints import Checkpoints

from .conftest import model, near, shard

Clients = Callable[..., list[Path]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rule", ["mean", "bayesian", "median", hn.Krum(f=1), hn.TrimmedMean(trim=0.2)])
def test_files_give_what_memory_gives(clients: Clients, tmp_path: Path, dtype: str, rule: str) -> None:
    paths = clients(dtype=dtype)
    inside = hn.aggregate([load_file(path) for path in paths], rule)
    written = hn.aggregate(paths, rule, out=tmp_path / "out.safetensors")
    assert written.value == tmp_path / "out.safetensors"
    found = load_file(written.value)
    assert set(found) == set(inside.value)
    for name, values in inside.value.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=tolerance(dtype), atol=tolerance(dtype))
    in_memory = hn.aggregate(paths, rule).value
    for name, values in found.items():
        np.testing.assert_array_equal(in_memory[name], values)
        assert in_memory[name].dtype == values.dtype


def test_bfloat16_is_rounded_to_the_nearest_even(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [torch.from_numpy(rng.normal(size=(50, 40))).bfloat16() for _ in range(5)]
    paths = [tmp_path / f"{k}.safetensors" for k in range(5)]
    for path, tensor in zip(paths, tensors, strict=True):
        save_torch({"w": tensor}, path)
    found = load_torch(hn.aggregate(paths, "mean", out=tmp_path / "out.safetensors").value)["w"]
    exact = torch.stack(tensors).double().mean(0)
    assert found.dtype == torch.bfloat16
    half_unit = 2.0 ** (torch.floor(torch.log2(exact.abs())) - 8)
    assert ((found.double() - exact).abs() <= half_unit * 1.0001).all()  # a sum in float32 may tip a tie, no more
    # NumPy has no bfloat16: in memory the same values are float32.
    inside = hn.aggregate(paths, "mean").value["w"]
    assert inside.dtype == np.float32
    np.testing.assert_array_equal(inside, found.float().numpy())


def test_the_same_bytes_every_time(clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = clients(K=9)
    first = hn.aggregate(paths, out=tmp_path / "a.safetensors").value.read_bytes()
    monkeypatch.setenv("HONESTLY_THREADS", "1")
    assert hn.aggregate(paths, out=tmp_path / "b.safetensors").value.read_bytes() == first


def test_clients_may_shard_differently(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    base = model(rng)
    tensors = [near(base, rng) for _ in range(5)]
    paths: list[Path] = [shard(tmp_path / f"client-{k}", tensors[k], 2) for k in range(3)]
    paths.append(shard(tmp_path / "client-3", tensors[3], 4))
    paths.append(tmp_path / "client-4.safetensors")
    save_file(tensors[4], paths[4])
    paths[0] = paths[0] / "model.safetensors.index.json"  # the index itself names its folder too
    found = hn.aggregate(paths, "mean", out=tmp_path / "global")
    assert not found.excluded
    # The output is cut like most inputs, and loads by its own index.
    assert sorted(path.name for path in found.value.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    again = hn.aggregate([found.value] * 3, "mean").value
    for name, values in hn.aggregate(tensors, "mean").value.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-6, atol=1e-6)


def test_one_file_from_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = model(rng)
    paths = [shard(tmp_path / f"client-{k}", tensors, 3) for k in range(3)]
    found = load_file(hn.aggregate(paths, "mean", out=tmp_path / "one.safetensors").value)
    for name, values in tensors.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz(tmp_path: Path, compressed: bool) -> None:
    rng = np.random.default_rng(2)
    base = model(rng) | {"flags": np.array([True, False]), "big endian": rng.normal(size=9).astype(">f4")}
    tensors = [near(base, rng) for _ in range(4)]
    paths = [tmp_path / f"{k}.npz" for k in range(4)]
    for path, arrays in zip(paths, tensors, strict=True):
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
    found = np.load(hn.aggregate(paths, "mean", out=tmp_path / "out.npz").value)
    native = [{name: x.astype(x.dtype.newbyteorder("=")) for name, x in arrays.items()} for arrays in tensors]
    for name, values in hn.aggregate(native, "mean").value.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-7)
        assert found[name].shape == values.shape
    assert found["flags"].dtype == bool


def test_integers_of_the_other_byte_order_are_the_same_numbers(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.npz" for k in range(4)]
    for k, path in enumerate(paths):
        table = np.arange(300).astype("<i4" if k else ">i4")
        np.savez(path, w=np.full(3, 1.0 + k, ">f4"), table=table)
    out = hn.aggregate(paths, "mean", out=tmp_path / "out.npz")
    assert out.excluded == ()
    with np.load(out.value) as found:
        np.testing.assert_array_equal(found["table"], np.arange(300))
        np.testing.assert_array_equal(found["w"], np.full(3, 2.5))


def test_a_name_that_npz_would_cut_is_refused(tmp_path: Path) -> None:
    for k in range(3):
        save_file({"a\0b": np.ones(2), "a": np.zeros(2)}, tmp_path / f"{k}.safetensors")
    with pytest.raises(ValueError, match=r"has a NUL in its name, which .npz cannot hold"):
        hn.aggregate(sorted(tmp_path.glob("*.safetensors")), "mean", out=tmp_path / "out.npz")


def test_npz_with_objects_or_columns_costs_the_vote(tmp_path: Path) -> None:
    for k in (0, 1, 2, 3, 8):
        np.savez(tmp_path / f"{k}.npz", w=np.ones((2, 3)))
    np.savez(tmp_path / "4.npz", w=np.array([[None] * 3] * 2, dtype=object))
    np.savez(tmp_path / "5.npz", w=np.asfortranarray(np.ones((2, 3))))
    (tmp_path / "6.npz").write_bytes((tmp_path / "0.npz").read_bytes()[:100])
    (tmp_path / "7.npz").touch()
    found = hn.aggregate(sorted(tmp_path.glob("*.npz")), "mean")
    assert found.excluded == (4, 5, 6, 7)
    assert "Python objects" in found.reasons[4]
    assert "by columns" in found.reasons[5]
    assert "not a valid .npz" in found.reasons[6]
    assert found.reasons[7] == "'7.npz' has 0 bytes, too few for an .npz file"


def test_torch_files_only_if_asked_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [{"w": torch.from_numpy(rng.normal(size=(7, 5))).float(), "n": torch.tensor(3)} for _ in range(5)]
    paths = [tmp_path / f"{k}.pt" for k in range(5)]
    for path, state in zip(paths, tensors, strict=True):
        torch.save(state, path)
    with pytest.raises(hn.AggregationError, match="allow_torch=True"):
        hn.aggregate(paths, "mean")
    torch.save({"w": Path}, paths[4])  # a pickle that names something else than tensors
    found = hn.aggregate(Checkpoints(paths, allow_torch=True), "mean", out=tmp_path / "out.safetensors")
    assert found.excluded == (4,)
    expected = torch.stack([state["w"] for state in tensors[:4]]).mean(0)
    torch.testing.assert_close(load_torch(found.value)["w"], expected)


def test_dtype_of_most_clients(clients: Clients, tmp_path: Path) -> None:
    def widen(k: int, tensors: dict[str, np.ndarray]) -> None:
        if k == 0:
            tensors |= {n: x.astype(np.float64) for n, x in tensors.items() if x.dtype.kind == "f"}

    found = hn.aggregate(clients(edit=widen), "mean", out=tmp_path / "out.safetensors")
    assert not found.excluded
    assert load_file(found.value)["scale"].dtype == np.float32


def test_counters_vote_and_other_integers_must_be_equal(clients: Clients, tmp_path: Path) -> None:
    def edit(k: int, tensors: dict[str, np.ndarray]) -> None:
        tensors["norm.num_batches_tracked"] = np.array(10 + (k == 1), dtype=np.int64)
        tensors["position_ids"] = np.arange(5) + (k == 2)
        tensors["mask"] = np.array([k != 3, True])

    found = hn.aggregate(clients(edit=edit), "mean", out=tmp_path / "out.safetensors")
    assert found.excluded == (2, 3)
    assert "'position_ids' (int64) differs from that of most" in found.reasons[2]
    assert "'mask' (bool) differs" in found.reasons[3]
    written = load_file(found.value)
    assert written["norm.num_batches_tracked"] == 10
    assert written["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert written["mask"].tolist() == [True, True]
    assert hn.aggregate(clients(edit=edit), "mean").value["mask"].dtype == bool


def test_the_reference_says_what_the_model_is(clients: Clients, tmp_path: Path) -> None:
    paths = clients()
    shutil.copy(paths[0], tmp_path / "previous.safetensors")
    odd = load_file(paths[3])
    odd["layer.0.bias"] = odd["layer.0.bias"][:5]
    save_file(odd, paths[3])
    found = hn.aggregate(paths, "mean", reference=str(tmp_path / "previous.safetensors"))
    assert found.reasons == {3: "tensor 'layer.0.bias' has shape (5,), expected (23,)"}
    with pytest.raises(ValueError, match=r"reference: 'none' cannot be opened"):
        hn.aggregate(paths, "mean", reference="none")
    with pytest.raises(ValueError, match="it must be a path, too"):
        hn.aggregate(paths, "mean", reference=odd)


def test_names_and_shapes_of_most_clients_count(clients: Clients) -> None:
    def edit(k: int, tensors: dict[str, np.ndarray]) -> None:
        if k == 0:
            tensors["more"] = np.zeros(3)
        if k == 1:
            del tensors["scale"]

    found = hn.aggregate(clients(edit=edit), "mean")
    assert found.reasons == {0: "tensor 'more' is not part of the model", 1: "tensor 'scale' is missing"}


def test_a_mapping_names_the_clients(clients: Clients) -> None:
    paths = clients()
    paths[2].write_bytes(b"")
    found = hn.aggregate({f"site {k}": str(path) for k, path in enumerate(paths)}, "mean")
    assert found.excluded == ("site 2",)
    assert found.clients[0] == "site 0"


def test_explain_measures_each_tensor(clients: Clients, tmp_path: Path) -> None:
    def lie(k: int, tensors: dict[str, np.ndarray]) -> None:
        if k == 5:
            tensors["layer.0.bias"] = -3 * tensors["layer.0.bias"]

    paths = clients(edit=lie)
    for out in (None, tmp_path / "out.safetensors"):
        found = hn.aggregate(paths, "bayesian", out=out, explain=True)
        value = found.value if out is None else load_file(out)
        layers = found.diagnostics["layer_distances"]
        assert set(layers) == {"embed.weight", "layer.0.weight", "layer.0.bias", "scale"}
        for k, path in enumerate(paths):
            mine = load_file(path)
            for name, squared in layers.items():
                expected = ((mine[name].astype(float) - value[name].astype(float)) ** 2).sum()
                np.testing.assert_allclose(squared[k], expected, rtol=1e-4, atol=1e-12)
        assert max(layers, key=lambda name: layers[name][5]) == "layer.0.bias"


def test_distances_come_without_another_pass(clients: Clients) -> None:
    """Rules that weigh by distances know them from the Gram matrix."""
    paths = clients()
    paths[3].write_bytes(b"")
    known = hn.aggregate(paths, "bayesian").diagnostics["distance"]
    measured = hn.aggregate(paths, "bayesian", explain=True).diagnostics["distance"]
    np.testing.assert_allclose(known, measured, rtol=1e-3)
    assert np.isnan(known[3])
    assert "distance" not in hn.aggregate(paths, "median").diagnostics


def test_wrong_arguments(clients: Clients, tmp_path: Path) -> None:
    paths = clients()
    with pytest.raises(ValueError, match="updates are not files"):
        hn.aggregate(np.ones((5, 3)), "mean", out=tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="lora is 'sum'"):
        Checkpoints(paths, lora="sum")
    with pytest.raises(ValueError, match="rank is 0"):
        Checkpoints(paths, lora="svd", rank=0)
    with pytest.raises(ValueError, match="only lora='svd'"):
        Checkpoints(paths, rank=4)
    with pytest.raises(ValueError, match="expected a sequence of paths"):
        Checkpoints("one.safetensors")
    with pytest.raises(ValueError, match="device 'nonsense' cannot be used"):
        hn.aggregate(Checkpoints(paths, device="nonsense"), "mean")
    with pytest.raises(ValueError, match="device None cannot be used"):
        hn.aggregate(Checkpoints(paths, device=None), "mean")  # type: ignore[arg-type]
    for out in (5, ""):
        with pytest.raises(ValueError, match=f"out is {out!r}, expected the path"):
            hn.aggregate(paths, "mean", out=out)
    with pytest.raises(ValueError, match="single path"):
        hn.aggregate("one.safetensors")
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ValueError, match="reference: holds no tensors"):
        hn.aggregate(paths, "mean", reference=tmp_path / "empty.safetensors")


def test_progress_reaches_both_passes(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    from honestly.sources.checkpoints import source

    monkeypatch.setattr(source, "REPORT_EVERY", 1)
    seen: list[tuple[int, int]] = []
    hn.aggregate(Checkpoints(clients(), progress=lambda done, one: seen.append((done, one))), "bayesian")
    assert seen == sorted(seen)
    assert 2 <= seen[-1][0] / seen[-1][1] < 4  # and a sample, in small files no small part
