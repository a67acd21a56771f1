"""Private parts of PyTorch that we use: a failure shows what a new version changed and what depends on it."""

from __future__ import annotations

import re
from datetime import timedelta
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


def test_this_pytorch_still_calls_functions_after_a_backward_pass() -> None:
    assert private._find(private.AFTER_BACKWARD) is not None, (
        f"{private.AFTER_BACKWARD} has gone: see call_after_backward"
    )
    order: list[str] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: private.call_after_backward(lambda: order.append("after")))
    x.register_post_accumulate_grad_hook(lambda tensor: order.append("gradient"))
    x.sum().backward()
    assert order == ["gradient", "after"]


def test_without_that_the_function_is_called_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_find", lambda wanted: None)
    order: list[str] = []
    private.call_after_backward(lambda: order.append("now"))
    assert order == ["now"]


def test_this_pytorch_still_tells_the_timeout_of_a_group(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=77))
    try:
        assert private.timeout_of(torch.distributed.group.WORLD) == timedelta(seconds=77)
    finally:
        torch.distributed.destroy_process_group()


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
    pattern = re.compile(
        r"\btorch\.(_C|_foreach|cuda\._|_dynamo|_inductor|distributed\._)|from torch\._"
        r"|_execution_engine|_get_backend\b"
    )
    package = Path(honestly.__file__).parent
    users = {str(file.relative_to(package)) for file in package.rglob("*.py") if pattern.search(file.read_text())}
    assert users == {"kernels/torch_private.py"}
