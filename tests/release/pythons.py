"""Run the tests under every declared Python: `make test-pythons`, or `python tests/release/pythons.py 3.12`.

The suite of `make test` runs under the first of them, with PyTorch. Under the others everything runs that does not need
PyTorch, whose CPU build is not on the package index for Linux: the core, files, rules, commands, attacks and adapters.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")


def wanted() -> list[str]:
    """The extras that do not need PyTorch, and what the others bring beside it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    heavy = {extra for extra, lines in extras.items() if any(re.match(r"torch\b|honestly\[.*torch", x) for x in lines)}
    heavy |= {extra for extra, lines in extras.items() if any("honestly[sim]" in line for line in lines)}
    beside = [line for extra in heavy for line in extras[extra] if not re.match(r"torch\b|honestly\[|ray\b", line)]
    return ["--editable", f".[{','.join(extra for extra in extras if extra not in heavy)}]", *beside]


def prepare(version: str) -> Path:
    """The interpreter of a new environment with everything but PyTorch."""
    base = shutil.which(f"python{version}")
    if base is None or subprocess.run([base, "-c", ""], check=False, capture_output=True).returncode:  # an empty shim
        raise SystemExit(f"python{version} is not on the PATH: install it, or name the versions to test")
    folder = ROOT / ".venv-pythons" / version
    python = folder / "bin" / "python"
    subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--upgrade", "pip>=25.1"], check=True)
    subprocess.run(
        [*install, "--constraint", "constraints.txt", *wanted(), "--group", "test", "--group", "docs"],
        check=True, cwd=ROOT,
    )  # fmt: skip
    return python


def main(versions: list[str]) -> int:
    """Test each version; the exit status is 0 only if all pass."""
    failed: list[str] = []
    for version in versions or VERSIONS:
        python = prepare(version)
        words = ["-m", "pytest", "-m", "not slow and not gpu", "-n", "2", "-q", "--without", "torch"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([str(python), *words], cwd=ROOT, env=environment, check=False)
        print(f"Python {version}: {'passed' if done.returncode == 0 else 'FAILED'}", flush=True)
        failed += [version] if done.returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
