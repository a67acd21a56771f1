"""Rules to measure: a word of `honestly stress`, or a function of (L, K, K) Gram matrices in a file of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from bayesian_variants import Variant
from whole_update_rule import WholeUpdates

from honestly.engine import Pipeline
from honestly.rules import RULE_CATALOG
from honestly.rules.rule import Mix, Rule
from honestly.studies.specs import Contestant

for one in (WholeUpdates, Variant):
    RULE_CATALOG.register(one)


@dataclass(frozen=True, kw_only=True)
class Function(Rule):
    """`function(grams (L, K, K)) -> weights (K,) or (L, K)`, or a tuple that starts with weights and honesty."""

    function: Callable[[Any], Any]

    name: ClassVar[str] = "function"
    summary: ClassVar[str] = "a function of Gram matrices"
    infers_honesty: ClassVar[bool] = True

    def mix(self, geometry):
        layers = geometry.layers
        answer = self.function(layers)
        weights, honesty = answer[:2] if isinstance(answer, tuple) else (answer, None)
        weights = np.asarray(weights, dtype=np.float64)
        honesty = None if honesty is None else np.asarray(honesty, dtype=np.float64)
        if weights.ndim == 1:
            return Mix.of_weights(weights, honesty=honesty)
        return Mix.of_layers(weights, geometry.layer_sizes, honesty=honesty)


@dataclass(frozen=True)
class Entry:
    """A rule in a table: its name, and how it is made for K clients, f of which may lie."""

    name: str
    build: Callable[[int, int], Pipeline]


def entry(word: str) -> Entry:
    """`bayesian`, `multi_krum`, `nnm+geometric_median`, `whole_updates`, or `file.py:function`."""
    path, colon, function = word.rpartition(":")
    if colon and path.endswith(".py"):
        rule = Function(function=_imported(Path(path), function))
        return Entry(f"{Path(path).stem}:{function}", lambda K, f: Pipeline((), rule))
    contestant = Contestant(word)
    _ = contestant.parts
    return Entry(word, lambda K, f: contestant.build(K=K, f=f, root=None)[0])


def _imported(path: Path, name: str) -> Callable[[Any], Any]:
    sys.path.insert(0, str(path.parent))  # a prototype may import its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
