"""Which client is odd in which layer, from the report of an average: layers by clients, in colours and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from honestly.show.chart import DOT, Grid, Heatmap

#: The most layers and clients on the map; of more, those that differ most are shown.
MOST_LAYERS, MOST_CLIENTS = 40, 60
#: A client at this many times the median squared distance is fully orange.
FARTHEST = 100.0
#: What orange, blue and a dot mean.
KEY = (f"{FARTHEST:g} times as far as the median client", "like the others")
DOT_MEANS = "counted against the client by the rule"


def layer_map(report: Mapping[str, Any]) -> Heatmap | None:
    """Layers by clients; None if no layers were measured."""
    layers: Mapping[str, Sequence[float | None]] = report.get("layers") or {}
    table = np.array([[np.nan if v is None else v for v in values] for values in layers.values()], dtype=np.float64)
    usable = [k for k in range(table.shape[1]) if np.isfinite(table[:, k]).all()] if layers else []
    if not usable:
        return None
    ratios = _ratios(table[:, usable])
    evidence = _evidence(report, list(layers), usable)
    rows = _largest(ratios.max(axis=1), MOST_LAYERS)
    columns = _largest(ratios.max(axis=0), MOST_CLIENTS)
    names = bare_names([report["clients"][usable[j]]["id"] for j in columns])
    ratios, evidence = ratios[np.ix_(rows, columns)], evidence[np.ix_(rows, columns)]

    def word(i: int, j: int) -> str:
        suffix = f", evidence against it {evidence[i, j]:.1f}" if evidence[i, j] > 0 else ""
        return f"{ratios[i, j]:.3g} times as far as the median client{suffix}"

    tensors = list(layers)
    values = 1 - np.clip(np.log10(np.maximum(ratios, 1.0)) / math.log10(FARTHEST), 0, 1)
    return Heatmap(
        "Who is odd in which layer", "client", "layer", [tensors[i] for i in rows], names, values, word,
        np.where(evidence > 0, DOT, 0).astype(np.int8),
    )  # fmt: skip


def _ratios(table: Grid) -> Grid:
    """Squared distances as multiples of the median client's; 1 where nobody differs."""
    middle = np.median(table, axis=1, keepdims=True)
    far = np.where(table > 0, 1e6, 1.0)
    return np.where(middle > 0, table / np.where(middle > 0, middle, 1.0), far)


def _evidence(report: Mapping[str, Any], tensors: Sequence[str], usable: Sequence[int]) -> Grid:
    """The evidence against each client in the layer that a tensor belongs to; 0 if there is none."""
    evidence = np.zeros((len(tensors), len(usable)))
    by_client: Mapping[str, Sequence[float | None]] = report.get("evidence") or {}
    for name, values in by_client.items():
        for i, tensor in enumerate(tensors):
            if tensor == name or tensor.startswith(f"{name}."):
                evidence[i] = [values[k] or 0.0 for k in usable]
    return evidence


def _largest(odd: Grid, most: int) -> list[int]:
    """The indices of the largest values, in their order."""
    return sorted(np.argsort(-odd, kind="stable")[:most].tolist())


def bare_names(names: Sequence[str]) -> list[str]:
    """Names without the ending that all of them share.

    >>> bare_names(["a.safetensors", "b.safetensors"]), bare_names(["a.x", "b.y"])
    (['a', 'b'], ['a.x', 'b.y'])
    """
    endings = {name[name.rfind(".") :] if "." in name else "" for name in names}
    ending = endings.pop() if len(endings) == 1 else ""
    return [name.removesuffix(ending) or name for name in names]
