"""Private parts of PyTorch that we use: a failure shows what a new version changed and what depends on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import honestly
from honestly.kernels import torch_private as private

CUDA_ONLY = {"torch._C._cuda_getDevice", "torch._C._cuda_getCurrentRawStream"}  # a build for CPUs lacks them


def test_this_pytorch_still_has_what_the_cuda_kernels_need() -> None:
    expected = set() if torch.version.cuda is not None else CUDA_ONLY
    gone = set(private.missing()) - expected
    assert not gone, f"{gone} of PyTorch {torch.__version__} has gone: aggregation and training on a GPU are slower now"
    assert private.can_compile()


def test_this_pytorch_still_copies_many_tensors_at_once() -> None:
    assert hasattr(torch, "_foreach_copy_"), "torch._foreach_copy_ has gone: gradients are copied one by one now"


@pytest.mark.parametrize("name", ["there", "gone"])
def test_copies_with_and_without_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "gone":
        monkeypatch.delattr(torch, "_foreach_copy_")
    targets = [torch.zeros(2), torch.zeros(3, 1)]
    private.copy_each(targets, [torch.ones(2), torch.full((3, 1), 2.0)])
    assert [t.sum().item() for t in targets] == [2.0, 6.0]


@pytest.mark.parametrize("path", [private.COMPILER, *private.LAUNCHER])
def test_without_one_of_them_the_plain_path_is_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from honestly.engine.passes import fused
    from honestly.sim.train import cuda

    monkeypatch.setattr(private, "_find", lambda wanted: None if wanted == path else object())
    assert private.missing() == [path]
    fused._kernels.cache_clear()
    cuda.works_on.cache_clear()
    try:
        assert fused._kernels() is None
        if path == private.COMPILER:
            assert not cuda.works_on(torch.device("cuda"))
    finally:
        fused._kernels.cache_clear()
        cuda.works_on.cache_clear()


def test_only_one_module_uses_private_interfaces_of_pytorch() -> None:
    pattern = re.compile(r"\btorch\.(_C|_foreach|cuda\._|_dynamo|_inductor|distributed\._)|from torch\._")
    package = Path(honestly.__file__).parent
    users = {str(file.relative_to(package)) for file in package.rglob("*.py") if pattern.search(file.read_text())}
    assert users == {"kernels/torch_private.py"}
