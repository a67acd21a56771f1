"""Modules with the signatures that APPFL 1.12, Fed-BioMed 6.4 and OpenFL 1.9 have where our adapters touch them."""

from __future__ import annotations

import importlib
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LocalTensor = namedtuple("LocalTensor", ["col_name", "tensor", "weight"])


class BaseAggregator:
    """appfl.algorithm.aggregator"""

    def set_client_sample_size(self, client_id: Any, sample_size: int) -> None:
        if not hasattr(self, "client_sample_size"):
            self.client_sample_size = {}
        self.client_sample_size[client_id] = sample_size


class Aggregator:
    """fedbiomed.researcher.aggregators"""

    def __init__(self) -> None:
        self._aggregator_args: Any = None

    def create_aggregator_args(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._aggregator_args or {}


class AggregationFunction:
    """openfl.interface.aggregation_functions.core"""

    def __init__(self) -> None:
        self._privileged = False

    def __call__(self, local_tensors: Any, db_iterator: Any, tensor_name: Any, fl_round: Any, tags: Any) -> Any:
        return self.call(local_tensors, db_iterator, tensor_name, fl_round, tags)  # type: ignore[attr-defined]


HOMES = {
    "appfl": ("appfl.algorithm.aggregator", BaseAggregator),
    "fedbiomed": ("fedbiomed.researcher.aggregators", Aggregator),
    "openfl": ("openfl.interface.aggregation_functions.core", AggregationFunction),
}


@contextmanager
def adapter(name: str) -> Iterator[ModuleType]:
    """`honestly.<name>` over the stand-in, and nothing left of it afterwards."""
    home, base = HOMES[name]
    before = dict(sys.modules)
    path = home.split(".")
    for i in range(1, len(path) + 1):
        module = ModuleType(".".join(path[:i]))
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
        sys.modules[module.__name__] = module
    setattr(sys.modules[home], base.__name__, base)
    sys.modules.pop(f"honestly.{name}", None)
    try:
        yield importlib.import_module(f"honestly.{name}")
    finally:
        for key in [key for key in sys.modules if key not in before and key.split(".")[0] == name]:
            del sys.modules[key]
        sys.modules.pop(f"honestly.{name}", None)
