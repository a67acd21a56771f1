"""The core alone: quick to import, without torch or any extra."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
for name in ("torch", "jax", "rich", "matplotlib", "pydantic", "flwr", "safetensors"):
    sys.modules[name] = None  # importing it fails, as where it is not installed
import numpy as np
import honestly as hn
out = hn.aggregate(np.random.default_rng(0).normal(size=(5, 100)))
assert out.value.shape == (100,)
from honestly.cli import main
try:
    main(["--version"])
except SystemExit as ended:
    assert ended.code == 0
sys.exit(main(["rules"]))
"""


def test_library_works_and_commands_name_the_missing_extra() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, 255), done.stderr
    assert "pip install 'honestly[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
