"""Tests of the compiled programs are skipped only without a C compiler, or if they are turned off (`--plain`): a
program that cannot be built fails them."""

import ctypes
import platform
from pathlib import Path

import pytest

from honestly.kernels import build, find_compiler, is_off

needs_compiler = pytest.mark.skipif(
    find_compiler() is None or is_off("HONESTLY_COMPILE"), reason="no C compiler, or compiled programs turned off"
)

#: This processor, and ones without AVX2 or FMA.
PROCESSORS = ("native", "x86-64-v3", "x86-64")
_libraries: dict[tuple[str, str], ctypes.CDLL] = {}


def use_as_compiled_for(processor: str, program: build.Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program be the one compiled for this kind of processor; there are such kinds of x86-64 only."""
    if processor == "native":
        return
    if platform.machine() != "x86_64":
        pytest.skip("these are processors of one family")
    key = program.name, processor
    if key not in _libraries:
        monkeypatch.setattr(build, "TUNING", ((f"-march={processor}",),))
        _libraries[key] = ctypes.CDLL(str(program.compile_to(folder / program.name, str(find_compiler()))))
    monkeypatch.setattr(program, "library", lambda: _libraries[key])
