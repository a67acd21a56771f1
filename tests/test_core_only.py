"""The core alone: quick to import, without torch or any extra."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from honestly.runs.store import PlannedRun, Store

EXTRAS = ("torch", "jax", "rich", "matplotlib", "pydantic", "flwr", "nvflare", "safetensors", "starlette", "uvicorn")
EXTRAS += ("pooch", "requests", "packaging", "jinja2", "markupsafe", "tensorboard")


def without(names: Iterable[str]) -> str:
    """The beginning of a script that does not find these packages, as if they were not installed."""
    return f"""
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    def find_spec(name, path=None, target=None):
        return None if name in {set(names)} else PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


WITHOUT_EXTRAS = without(EXTRAS)
LIBRARY = """
import numpy as np
import honestly as hn
out = hn.aggregate(np.random.default_rng(0).normal(size=(5, 100)))
assert out.value.shape == (100,)
"""
COMMAND = """
from honestly.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_library_works_without_any_extra() -> None:
    done = run(WITHOUT_EXTRAS + LIBRARY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["--version", "rules", "attacks", "datasets", "doctor", "aggregate", "export"])
def test_commands_that_need_no_extra(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [command]
    monkeypatch.setenv("HONESTLY_DATA", str(tmp_path))  # the home folder may not be writable
    if command == "aggregate":
        for k in range(5):
            np.savez(tmp_path / f"{k}.npz", w=np.random.default_rng(k).normal(size=9))
        words += [*(str(tmp_path / f"{k}.npz") for k in range(5)), "-o", str(tmp_path / "out.npz")]
    if command == "export":
        words += ["scaleout", "-o", str(tmp_path / "server_functions.py")]
    done = run(WITHOUT_EXTRAS + COMMAND, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("demo",), "sim"),
        (("simulate",), "sim"),
        (("simulate", "--presets"), "sim"),
        (("stress",), "cli"),
        (("stress", "--record", "a.npz"), "sim"),
        (("stress", "--make-suite", "small-1"), "sim"),
        (("bench", "quick"), "sim"),
        (("watch", "."), "watch"),
    ],
)
def test_commands_that_need_an_extra_name_it(words: tuple[str, ...], extra: str) -> None:
    done = run(WITHOUT_EXTRAS + COMMAND, *words)
    assert done.returncode == 1
    assert f"pip install 'honestly[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_pages_and_event_files_name_their_extra(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round": 1, "accuracy": 0.5}\n')
    for words, extra in (("report",), "cli"), (("export", "tensorboard", "-o", str(tmp_path / "logs")), "tensorboard"):
        done = run(WITHOUT_EXTRAS + COMMAND, *words, str(tmp_path))
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert f"pip install 'honestly[{extra}]'" in done.stderr


def test_a_studys_numbers_are_exported_without_pytorch(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add([PlannedRun("a", {"rule": "mean"}, '{"rounds":1}', 1)])
        store.write_round("a", {"round": 1, "accuracy": 0.5})
    done = run(WITHOUT_EXTRAS + COMMAND, "export", "rounds", str(tmp_path), "-o", str(tmp_path / "rounds.csv"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "a,mean,1,0.5," in (tmp_path / "rounds.csv").read_text()


@pytest.mark.parametrize("adapter", ["flower", "nvflare", "torch", "jax"])
def test_an_adapter_without_its_framework_says_what_to_install(adapter: str) -> None:
    done = run(f"{WITHOUT_EXTRAS}import honestly.{adapter}")
    assert done.stderr.splitlines()[-1].endswith(f"pip install 'honestly[{adapter}]'")


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        ("cli", "honestly.show.report.write"),
        ("metrics", "honestly.federation.prometheus"),
        ("watch", "honestly.show.live.server"),
    ],
)
def test_an_extra_brings_what_its_modules_import(extra: str, module: str) -> None:
    project = PROJECT["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"][extra]]
    brought = with_dependencies(map(distribution, needed)) | {"honestly"}
    others = {
        name for name, of in metadata.packages_distributions().items() if not brought & set(map(distribution, of))
    }
    done = run(f"{without(others)}import {module}")
    assert done.returncode == 0, done.stderr


def distribution(requirement: str) -> str:
    """The name in a line such as `Jinja2>=3.1`, as all spell it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


def with_dependencies(names: Iterable[str]) -> set[str]:
    """These distributions and what they bring, without their extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # for other systems and versions of Python
                waiting += [distribution(line) for line in metadata.requires(name) or () if "extra ==" not in line]
    return found


def test_the_import_loads_no_heavy_module() -> None:
    """Modules that are slow to import are imported only where they are used."""
    heavy = (*EXTRAS, "argparse", "asyncio", "sqlite3", "multiprocessing", "http", "scipy")
    done = run(f"import sys, honestly; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
(CONTRACT,) = (c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["name"].startswith("the core needs"))
ALLOWED = {"numpy", "array_api_compat", "honestly"}
# torch and JAX are imported only for the caller's own arrays or files, and only in these files.
MET = {(name.partition(" -> ")[0], name.partition(" -> ")[2]) for name in CONTRACT["ignore_imports"]}


def core_files() -> Iterator[tuple[str, Path]]:
    for module in CONTRACT["source_modules"]:
        place = ROOT / "src" / Path(*module.split("."))
        for file in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
            yield ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"), file


def imports(file: Path) -> set[str]:
    """Every top-level package that a file imports, in functions and type annotations too."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")]
    dynamic = {node.args[0].value for node in calls if node.args and isinstance(node.args[0], ast.Constant)}
    return {str(name).partition(".")[0] for name in plain | named | dynamic}


def test_the_core_imports_only_numpy() -> None:
    """Finds every import that is neither NumPy nor the standard library, instead of checking a list."""
    others = {
        (module, name) for module, file in core_files() for name in imports(file) - ALLOWED - sys.stdlib_module_names
    }
    assert others == MET


def test_the_contract_names_every_part_of_the_core() -> None:
    """What lies below `aggregate` in the layers is the core."""
    (layers,) = (c["layers"] for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    core = layers[layers.index("honestly.aggregate") :]
    assert {name for layer in core for name in layer.split(" | ")} == set(CONTRACT["source_modules"])


def test_the_contract_forbids_the_dependencies_of_extras() -> None:
    lines = [line for extra in PROJECT["project"]["optional-dependencies"].values() for line in extra]
    brought = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in lines} - {"honestly"}  # type: ignore[index]
    assert brought <= set(CONTRACT["forbidden_modules"])
