"""Builds the documentation site, strictly and offline: a broken link, anchor or page ends it with status 1.

python docs/build.py [--out site]      # `make docs`
python docs/build.py --serve           # shows the pages in a browser
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# The theme's script could fetch extensions from elsewhere; the browser is told that it may not. `file:` is for pages
# that are opened from a disk.
POLICY = "default-src 'self' file: data: blob: 'unsafe-inline'"


def build(out: Path, *, serve: bool = False) -> int:
    """The exit status of Zensical, which reads mkdocs.yml; `out` appears, or is replaced, only on success."""
    with tempfile.TemporaryDirectory() as temporary:  # pages made from the code stand beside the others there only
        stage = Path(temporary)
        shutil.copy(ROOT / "mkdocs.yml", stage)
        shutil.copytree(HERE, stage / "docs", ignore=shutil.ignore_patterns("__pycache__", ".*"))
        reference.write(stage / "docs", results=ROOT / "results")
        for tool in (stage / "docs").rglob("*.py"):
            if tool.parent.name != "skeletons":  # pages link to these
                tool.unlink()
        for page in (stage / "docs").rglob("*.md"):
            page.write_text(spaced(page.read_text(encoding="utf-8")), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", *(["serve"] if serve else ["build", "--strict"])]
        paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))  # docs/mathml.py by its name
        run = subprocess.run(command, cwd=stage, env=os.environ | {"PYTHONPATH": paths}, check=False)
        if run.returncode == 0 and not serve:
            for page in (stage / "site").rglob("*.html"):
                closed = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
                page.write_text(
                    page.read_text(encoding="utf-8").replace("<head>", f"<head>{closed}", 1), encoding="utf-8"
                )
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(stage / "site", out)
            print(out / "index.html")
    return run.returncode


def spaced(text: str) -> str:
    """The page with an empty line before each list and table, which GitHub does not need and Python-Markdown does."""
    lines: list[str] = []
    fenced, before = False, ""
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        table, item = line.startswith("|"), re.match(r"([-*]|\d+\.) ", line)
        inside = before.startswith("|") if table else re.match(r"\s|([-*]|\d+\.) ", before)
        if not fenced and (table or item) and before and not inside:
            lines.append("")
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder (default: site)")
    parser.add_argument("--serve", action="store_true", help="serve the pages instead")
    args = parser.parse_args()
    return build(args.out, serve=args.serve)


if __name__ == "__main__":
    sys.exit(main())
