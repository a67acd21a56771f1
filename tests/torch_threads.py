"""A fixture for folders whose tests train: their `conftest.py` imports it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run in parallel, so more threads per test would only slow them down."""
    if find_spec("torch") is None:  # attacks need NumPy alone
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
