from __future__ import annotations

import pytest
from compiler import needs_compiler

from honestly.engine.passes import compiled, plain


@pytest.fixture(params=["plain", pytest.param("compiled", marks=needs_compiler)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of the passes on the CPU, whatever the size, on several threads."""
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0 if request.param == "compiled" else 1 << 60)
    monkeypatch.setattr(plain, "WORTH_THREADS", 0)
    monkeypatch.setattr(compiled, "WORTH_THREADS", 0)
    monkeypatch.setenv("HONESTLY_THREADS", "3")
    return request.param
