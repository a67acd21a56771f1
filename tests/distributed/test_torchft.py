"""torchft's LocalSGD and DiLoCo with a manager that tells which replicas to believe, against the real package."""

from __future__ import annotations

import numpy as np
import pytest
import rank_training as jobs
from ranks import run
from torchft.coordination import LighthouseServer


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "diloco"])
def test_replicas_of_torchft(method: str) -> None:
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=4, join_timeout_ms=10_000)
    try:
        port = lighthouse.address().rpartition(":")[2]
        found = run(jobs.replicas, 4, f"http://127.0.0.1:{port}", method)
    finally:
        lighthouse.shutdown()
    for k, out in enumerate(found):
        assert out["step"] == 3
        assert out["clients"] == tuple(f"replica-{k}" for k in range(4))
        assert out["refused"][0] == []
        assert ["replica-3"] in out["refused"]
        assert out["refused"] == found[0]["refused"]
        assert min(out["weights"]) < 0.1
        if k == 3 and method == "diloco":
            continue  # torchft keeps a NaN of the replica's own: it mixes the two models, 0 * NaN included
        for mine, theirs in zip(out["model"], found[0]["model"], strict=True):
            assert np.isfinite(mine).all()
            assert mine.tobytes() == theirs.tobytes()
