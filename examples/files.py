"""Average model files from untrusted clients robustly, loading only a part of one file at a time.

python examples/files.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import honestly as hn


def clients(folder: Path) -> list[Path]:
    """Write eight model files (five honest, two that lie, one that is truncated) and the model they started from."""
    rng = np.random.default_rng(0)
    model = {"encoder.weight": rng.normal(size=(256, 128)), "head.weight": rng.normal(size=(10, 256))}
    paths = []
    for k in range(8):
        step = {name: 0.01 + 0.02 * rng.normal(size=w.shape) for name, w in model.items()}
        sign = -5 if k in (5, 6) else 1
        paths.append(folder / f"client-{k}.npz")
        np.savez(paths[-1], **{name: (w + sign * step[name]).astype(np.float32) for name, w in model.items()})
    np.savez(folder / "previous.npz", **{name: w.astype(np.float32) for name, w in model.items()})
    data = paths[7].read_bytes()
    paths[7].write_bytes(data[: len(data) // 2])
    return paths


def main(folder: Path) -> None:
    sent = {path.name: path for path in clients(folder)}
    out = hn.aggregate(sent, reference=folder / "previous.npz", out=folder / "global.safetensors")
    for name, honesty in zip(out.clients, out.honesty, strict=True):
        print(f"{name:13} honest with probability {honesty:.2f}  {out.reasons.get(name, '')}")
    print(f"written: {Path(out.value).name}, {Path(out.value).stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
