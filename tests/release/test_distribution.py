"""The wheel and the sdist are built, installed in an empty environment, and used."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from honestly import __version__

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the source tree, so only installed packages can be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions, the wheel made from the sdist: what is missing there is missing here."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_and_sdist_build_and_are_complete(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    assert wheel.name == f"honestly-{__version__}-py3-none-any.whl"
    assert sdist.name == f"honestly-{__version__}.tar.gz"
    inside = set(zipfile.ZipFile(wheel).namelist())
    # every file of the package that is no source must be named by somebody: here it is compared with the tree
    tracked = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert tracked <= inside
    assert not [name for name in inside if name.startswith(("tests", "docs", "benchmarks"))]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "Makefile"} <= names
    assert "tests/release/smoke.py" in names


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_the_core_alone_works_where_nothing_else_is_installed(built: Path, kind: str, tmp_path: Path) -> None:
    (distribution,) = built.glob(kind)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
        ROOT / "constraints.txt", distribution, cwd=tmp_path,
    )  # fmt: skip
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check", cwd=tmp_path)
    names = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert names <= {"honestly", "numpy", "array-api-compat", "pip", "setuptools"}
    assert "all is well" in run(python, SMOKE, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
