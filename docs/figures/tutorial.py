"""Draws docs/figures/tutorial.png: the picture of the run that the tutorial saves in runs/saved.

python docs/figures/tutorial.py    # seconds
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from markdown_blocks import ROOT, blocks


def draw(path: Path) -> None:
    """Run the tutorial's command, and keep its picture."""
    (code,) = [b.code for b in blocks(ROOT / "docs" / "tutorial.md") if b.language == "sh" and "runs/saved" in b.code]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", *shlex.split(code.replace("\\\n", "")), "--quiet"]
        subprocess.run(command, cwd=folder, check=True)
        path.write_bytes((Path(folder) / "runs" / "saved" / "figure.png").read_bytes())


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
