"""Builds the documentation site into site/, strictly and offline: a broken link, anchor or page ends it with status 1.

python docs/build.py [--out DIR] [--serve]    # `make docs` is the first; --serve shows it and follows changes
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def build(out: Path | None = None, *, serve: bool = False) -> int:
    """The exit status of Zensical, which reads mkdocs.yml."""
    reference.write()
    config = ROOT / "mkdocs.yml"
    if out is not None:  # Zensical takes the folder from its file only
        config = ROOT / ".mkdocs-elsewhere.yml"
        config.write_text((ROOT / "mkdocs.yml").read_text().replace("site_dir: site", f"site_dir: {out.resolve()}"))
    command = [sys.executable, "-m", "zensical", *(["serve"] if serve else ["build", "--clean", "--strict"])]
    # docs/mathml.py is found by its name
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}
    try:
        run = subprocess.run([*command, "--config-file", str(config)], cwd=ROOT, env=environment, check=False)
    finally:
        if out is not None:
            config.unlink()
    for tool in (out or ROOT / "site").rglob("*.py"):
        tool.unlink()
    return run.returncode


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder (default: site)")
    parser.add_argument("--serve", action="store_true", help="serve the pages and follow changes")
    args = parser.parse_args()
    status = build(args.out, serve=args.serve)
    shutil.rmtree(ROOT / ".cache", ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
