"""Files through a device give what they give on the host; the CPU as torch sees it stands in for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import honestly as hn
from honestly.engine import Pipeline, run
from honestly.engine.passes import streamed
from honestly.sources import open_source
from honestly.sources.checkpoints.device import OnDevice


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = []
    for k in range(7):
        torch.manual_seed(k)
        tensors = {
            "half": torch.randn(100, 33).bfloat16(),
            "single": torch.randn(5000) * (-3 if k == 6 else 1) + 5,
            "empty": torch.zeros(0, 3),
            "double": torch.randn(3).double(),
            "n.num_batches_tracked": torch.tensor(k // 4),
        }
        if k == 1:
            tensors["single"] = tensors["single"].double()  # one client of another dtype
        found.append(tmp_path / f"{k}.safetensors")
        save_file(tensors, found[-1])
    return found


def on_device(paths: list[Path], rule: str, out: Path, device: str = "cpu", **extra: Any) -> Any:
    source = OnDevice(open_source(paths, out=out, **extra), device)  # type: ignore[arg-type]
    try:
        return run(source, Pipeline.of(rule), explain=True)
    finally:
        source.close()


def check(paths: list[Path], tmp_path: Path, rule: str, device: str, **extra: Any) -> None:
    host = hn.aggregate(paths, rule, out=tmp_path / "host.safetensors", explain=True, **extra)
    found = on_device(paths, rule, tmp_path / "device.safetensors", device, **extra)
    expected, got = load_file(host.value), load_file(found.value)
    assert set(expected) == set(got)
    for name, values in expected.items():
        assert got[name].dtype == values.dtype
        torch.testing.assert_close(got[name], values, rtol=1e-2 if name == "half" else 1e-5, atol=1e-5)
    np.testing.assert_allclose(found.diagnostics["distance"], host.diagnostics["distance"], rtol=1e-3)


@pytest.mark.parametrize("rule", ["bayesian", "median", "mean"])
@pytest.mark.parametrize("block", [1 << 23, 7 * 4 * 1024])
def test_the_device_gives_what_the_host_gives(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, block: int
) -> None:
    monkeypatch.setattr(streamed, "BLOCK", block)
    check(paths, tmp_path, rule, "cpu")


def test_with_a_reference(paths: list[Path], tmp_path: Path) -> None:
    check(paths[1:], tmp_path, "bayesian", "cpu", reference=paths[0])


def test_blocks_are_read_ahead(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "BLOCK", 7 * 1024)
    loads, pops = 0, 0
    load: Callable[..., Any] = OnDevice._load
    block: Callable[..., Any] = OnDevice.block

    def counted(self: OnDevice, *args: Any) -> Any:
        nonlocal loads
        loads += 1
        return load(self, *args)

    def read_block(self: OnDevice, leaf: int, start: int, stop: int, clients: Any) -> Any:
        nonlocal pops
        pops += (leaf, start, stop, tuple(clients)) in self._waiting
        return block(self, leaf, start, stop, clients)

    monkeypatch.setattr(OnDevice, "_load", counted)
    monkeypatch.setattr(OnDevice, "block", read_block)
    on_device(paths, "mean", tmp_path / "out.safetensors")
    assert pops > 5  # all pieces of the pass but the first
    assert loads <= pops + 3


def test_a_file_that_cannot_be_read_costs_the_vote(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    source = OnDevice(open_source(paths, out=tmp_path / "out.safetensors"), "cpu")  # type: ignore[arg-type]
    os.truncate(paths[2], paths[2].stat().st_size - 1000)
    found = run(source, Pipeline.of("bayesian"))
    source.close()
    assert list(found.reasons) == [2]
    assert all(torch.isfinite(values).all() for values in load_file(found.value).values())


@pytest.mark.gpu
@pytest.mark.parametrize("rule", ["bayesian", "median", "mean"])
def test_on_a_gpu(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(streamed, "BLOCK", 7 * 4 * 1024)
    check(paths, tmp_path, rule, "cuda")
