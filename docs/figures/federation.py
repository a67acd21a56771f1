"""Draws docs/figures/federation.png: a digits federation with changing attackers (a minute on two cores)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = (
    "dataset=digits clients=20 rounds=25 malicious=9 dynamic=true attack=sign_flip rule=bayesian alpha=1.0 seed=1"
)

with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-m", "honestly", "simulate", *SETTINGS.split(), "--out", folder, "--quiet"]
    subprocess.run(command, check=True)
    shutil.copy(next(Path(folder).rglob("*.png")), Path(__file__).with_name("federation.png"))
