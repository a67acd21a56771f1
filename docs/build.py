"""Builds the documentation site, strictly and offline: a broken link, anchor or page ends it with status 1.

python docs/build.py [--out site]      # `make docs`
python docs/build.py --serve           # shows the pages in a browser
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def build(out: Path, *, serve: bool = False) -> int:
    """The exit status of Zensical, which reads mkdocs.yml; `out` appears, or is replaced, only on success."""
    with tempfile.TemporaryDirectory() as temporary:  # pages made from the code stand beside the others there only
        stage = Path(temporary)
        shutil.copy(ROOT / "mkdocs.yml", stage)
        for folder in ("docs", "examples"):
            shutil.copytree(ROOT / folder, stage / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        reference.write(stage / "docs", results=ROOT / "results")
        for tool in (stage / "docs").rglob("*.py"):
            tool.unlink()
        command = [sys.executable, "-m", "zensical", *(["serve"] if serve else ["build", "--strict"])]
        paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))  # docs/mathml.py by its name
        run = subprocess.run(command, cwd=stage, env=os.environ | {"PYTHONPATH": paths}, check=False)
        if run.returncode == 0 and not serve:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(stage / "site", out)
            print(out / "index.html")
    return run.returncode


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder (default: site)")
    parser.add_argument("--serve", action="store_true", help="serve the pages instead")
    args = parser.parse_args()
    return build(args.out, serve=args.serve)


if __name__ == "__main__":
    sys.exit(main())
