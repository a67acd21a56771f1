"""A smoke test of an installed honestly without extras: `python smoke.py` in an environment that has nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import honestly as hn

COMMAND = Path(sys.executable).with_name("honestly")


def honestly(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    done = subprocess.run([str(COMMAND), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, (words, done.returncode, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def library() -> None:
    """Who lies is found, and the average is that of the others."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(10, 1000)) + 0.5
    updates[7:] *= -4
    out = hn.aggregate(updates)
    assert out.honesty is not None
    assert (out.honesty > 0.5).tolist() == [True] * 7 + [False] * 3
    assert np.abs(out.value - updates[:7].mean(0)).max() < 0.01
    for info in hn.list_rules():
        assert info.summary


def commands(folder: Path) -> None:
    """Every command either works or says which extra it needs."""
    assert honestly("--version").stdout == f"honestly {hn.__version__}\n"
    assert len(json.loads(honestly("rules", "--json").stdout)) == len(hn.list_rules())
    for word in ("rules", "attacks", "datasets"):
        assert honestly(word).stdout
    assert json.loads(honestly("doctor", "--json", "--data", str(folder)).stdout)["ok"]
    for shell in ("bash", "zsh", "fish"):
        assert "honestly" in honestly("completion", shell).stdout
    files = [str(folder / f"client-{k}.npz") for k in range(5)]
    for k, file in enumerate(files):
        np.savez(file, w=np.random.default_rng(k).normal(size=(20, 3)).astype(np.float32))
    out = str(folder / "global.safetensors")
    honestly("aggregate", *files, "-o", out, "--report", str(folder / "report.json"))
    assert Path(out).stat().st_size > 240
    assert len(json.loads((folder / "report.json").read_text(encoding="utf-8"))["clients"]) == 5
    page = honestly("aggregate", *files, "-o", str(folder / "other.npz"), "--report", str(folder / "a.html"), status=2)
    assert "pip install 'honestly[cli]'" in page.stderr
    honestly("export", "scaleout", "-o", str(folder / "server_functions.py"))
    compile((folder / "server_functions.py").read_text(encoding="utf-8"), "server_functions.py", "exec")
    for words, extra in (
        (["simulate"], "sim"),
        (["demo"], "sim"),
        (["bench", "quick"], "sim"),
        (["watch", "."], "watch"),
    ):
        assert f"pip install 'honestly[{extra}]'" in honestly(*words, status=1).stderr


if __name__ == "__main__":
    library()
    with tempfile.TemporaryDirectory() as folder:
        commands(Path(folder))
    heavy = {"torch", "pydantic", "rich", "matplotlib"} & set(sys.modules)
    assert not heavy, heavy
    print("all is well")
