"""The robust mean over a mesh axis, on eight devices emulated on one CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "jax_devices.py"


def test_eight_devices_agree_with_one_process() -> None:
    found = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout == "all devices agree\n"
