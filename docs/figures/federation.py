"""Draws docs/figures/federation.png: the paper's Figure 1, Fashion-MNIST with changing attackers.

HONESTLY_DATA=... python docs/figures/federation.py [--device cuda]    # seconds on a GPU, minutes on two cores
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = (
    "dataset=fmnist clients=10 rounds=25 malicious=4 dynamic=true attack=sign_flip rule=bayesian alpha=0.5 seed=1"
)

with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-m", "honestly", "simulate", *SETTINGS.split(), "--out", folder, "--quiet"]
    subprocess.run([*command, *sys.argv[1:]], check=True)
    shutil.copy(next(Path(folder).rglob("*.png")), Path(__file__).with_name("federation.png"))
