"""`honestly.torch` with tensors on a CUDA device: NCCL with one rank (a GPU each), gloo with three on one GPU."""

from __future__ import annotations

import numpy as np
import pytest
import rank_jobs as jobs
from ranks import run

import honestly as hn

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("K", "backend"), [(1, "nccl"), (3, "gloo")])
def test_tensors_on_a_gpu(K: int, backend: str) -> None:
    given = jobs.updates(K, ((300, 70), (11,), (8192,)), (2,) if K == 3 else ())
    found = run(jobs.on_gpu, K, given, backend)
    for i, rule in enumerate(("bayesian", "median")):
        whole = hn.aggregate([jobs.tensors(values) for values in given], rule)
        for out in found:
            assert out[i]["hash"] == found[0][i]["hash"]
            for mine, theirs in zip(out[i]["value"], whole.value, strict=True):
                np.testing.assert_allclose(mine, theirs.double().numpy(), atol=1e-4)
    assert all(out[2] for out in found)
