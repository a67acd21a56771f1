"""`pytest --without torch`: run the tests as if a module were not installed, and skip the tests that need it.

Without the option, a missing module fails the tests: nothing is skipped by accident.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MISSING = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without", metavar="MODULES", default="", help="modules, with commas, that are not installed")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MISSING] = frozenset(filter(None, config.getoption("--without").split(",")))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a file that cannot be imported without the module."""
    report = yield
    call = getattr(report, "call", None)
    missing = _needed(call.excinfo.value if call and call.excinfo else None, collector.config)
    if missing is None:
        return report
    for name, module in list(sys.modules.items()):  # partially imported: the next import must fail in the same way
        if getattr(module, "__file__", None) == str(collector.path):
            del sys.modules[name]
    return _left_out(report, missing, collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Skip a test that imports the module, or that runs a command that needs it."""
    report = yield
    missing = _needed(call.excinfo.value if call.excinfo else None, item.config)
    if missing is None and report.failed:
        told = f"{report.longreprtext}\n{report.capstderr}"
        missing = next((name for name in item.config.stash[MISSING] if _says(told, name)), None)
    return _left_out(report, missing, item.path) if missing else report


def _needed(error: BaseException | None, config: pytest.Config) -> str | None:
    """The missing module that an error, or what led to it, is about."""
    while error is not None:
        name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if name in config.stash[MISSING]:
            return name
        error = error.__cause__ or error.__context__
    return None


def _says(told: str, name: str) -> bool:
    """Whether a command or another process said that the module is missing."""
    return f"{name} is not installed: pip" in told or f"No module named '{name}'" in told


def _left_out(report: Any, module: str, path: Path) -> Any:
    report.outcome, report.longrepr = "skipped", (str(path), 0, f"Skipped: needs {module}")
    return report
