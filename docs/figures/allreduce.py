"""Draws docs/figures/allreduce.png from runs of examples/torch_ddp.py and examples/diloco.py, a minute on a CPU.

python docs/figures/allreduce.py
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {"no faults": "nobody bad", "plain": "plain all-reduce", "clipping": "clipping", "robust": "honestly.torch"}
NAMES |= {"mean": "mean", "bayesian": "honestly.torch"}
COLOURS = {"no faults": "0.6", "plain": "tab:red", "mean": "tab:red", "clipping": "tab:orange"}


def curves(example: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curves.json"
        subprocess.run([sys.executable, str(EXAMPLES / example), "--json", str(path)], check=True)
        return json.loads(path.read_text())


def draw(axes: plt.Axes, results: dict[str, list[float]], title: str, steps: str) -> None:
    for name, losses in results.items():
        seen = [loss for loss in losses if math.isfinite(loss)]
        axes.plot(range(1, len(seen) + 1), seen, label=NAMES[name], color=COLOURS.get(name, "tab:blue"))
        if len(seen) < len(losses):
            axes.plot(len(seen), seen[-1], "x", color=COLOURS[name])
    axes.set(title=title, xlabel=steps, ylabel="test loss", yscale="log")
    axes.legend(frameon=False)


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
draw(left, curves("torch_ddp.py"), "DDP, three of eight ranks bad", "step")
draw(right, curves("diloco.py"), "DiLoCo, one of eight replicas bad", "meeting")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
