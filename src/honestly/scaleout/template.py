"""The class that Scaleout runs on its server, without the estimator, which `export` puts in place of `_estimate`.

The platform takes only the source text of the class and executes it with its own imports. After the first exception it
never calls `aggregate` again and uses plain averaging, so no exception may escape. The names of functions matter, too:
one called `incremental_aggregate` would be used instead of `aggregate`.
"""

# pyright: basic
# types do not survive the export

from __future__ import annotations

from typing import Any

import numpy as np


class ServerFunctionsBase:
    """Stands in for the platform's own class of this name."""


class ServerFunctions(ServerFunctionsBase):
    """Robust average of the clients' models. A bad client is excluded; any failure keeps the previous model."""

    def aggregate(self, previous_global: Any, client_updates: Any) -> Any:
        """The new global model: a list of arrays like `previous_global`, which is returned if anything goes wrong."""
        try:
            return self._aggregate(previous_global, client_updates)
        except Exception as error:
            self._say(f"the previous model is kept: {type(error).__name__}: {error}")
            return previous_global

    def _aggregate(self, previous_global: Any, client_updates: Any) -> Any:
        reference = [np.asarray(x) for x in previous_global]
        usable, reasons = {}, {}
        for client, update in client_updates.items():
            arrays, reason = self._read(update, reference)
            if reason:
                reasons[client] = reason
            else:
                usable[client] = arrays
        for client, reason in reasons.items():
            self._say(f"client {client} excluded: {reason}")
        if 2 * len(usable) <= len(client_updates) or not usable:
            self._say(f"the previous model is kept: only {len(usable)} of {len(client_updates)} clients are usable")
            return previous_global
        clients = sorted(usable, key=str)
        grams, sizes = self._grams([usable[client] for client in clients], reference)
        weights, honesty = self._estimate(grams, sizes, clients)
        for k, client in enumerate(clients):
            if honesty is not None and honesty[k] < 0.5:
                self._say(f"client {client} is not believed: honesty {honesty[k]:.3f}")
        value = self._average(weights, [usable[client] for client in clients], reference)
        if not all(np.isfinite(x).all() for x in value):
            self._say("the previous model is kept: the average is not finite")
            return previous_global
        return value

    def _read(self, update: Any, reference: Any) -> Any:
        """The client's arrays and None, or None and the reason why they cannot be used."""
        try:
            if not isinstance(update, list | tuple) or len(update) != 2 or isinstance(update[0], dict):
                return None, "did not send one model and its metadata"
            arrays = [np.asarray(x) for x in update[0]]
            if len(arrays) != len(reference):
                return None, f"sent {len(arrays)} arrays, expected {len(reference)}"
            for i, (x, old) in enumerate(zip(arrays, reference, strict=True)):
                if x.shape != old.shape:
                    return None, f"array {i} has shape {x.shape}, expected {old.shape}"
                if (x.dtype.kind == "f") != (old.dtype.kind == "f") or x.dtype.kind not in "fiub":
                    return None, f"array {i} has dtype {x.dtype}, expected {old.dtype}"
                if x.dtype.kind == "f":
                    largest = 1e17 if old.dtype.itemsize < 8 else 1e100  # no model has more; the squares overflow
                    largest = min(largest, float(np.finfo(x.dtype).max), float(np.finfo(old.dtype).max))
                    if not bool((np.abs(x) <= largest).all()):
                        return None, f"array {i} holds NaN, infinity or a value beyond {largest:g}"
            return arrays, None
        except Exception as error:
            return None, f"cannot be read ({type(error).__name__})"

    def _grams(self, updates: Any, reference: Any) -> Any:
        """`G = C C^T` of the updates less the previous model for each array, in float64, in blocks that stay small."""
        grams, sizes = [], []
        for i, old in enumerate(reference):
            if old.dtype.kind != "f":
                continue
            flat, rows = old.reshape(-1), [arrays[i].reshape(-1) for arrays in updates]
            gram = np.zeros((len(updates), len(updates)))
            for start in range(0, flat.size, 65536):
                centre = flat[start : start + 65536].astype(np.float64)
                block = np.stack([row[start : start + 65536].astype(np.float64) - centre for row in rows])
                gram += block @ block.T
            grams.append(gram)
            sizes.append(float(flat.size))
        return np.stack(grams), np.array(sizes)

    def _average(self, weights: Any, updates: Any, reference: Any) -> Any:
        """`old + sum_k a_k (w_k - old)` for floats, with a row of weights each; for integers, the heaviest value."""
        sizes = [old.size for old in reference if old.dtype.kind == "f"]
        value, by_array, overall = [], iter(weights), np.average(weights, axis=0, weights=sizes)
        for i, old in enumerate(reference):
            rows = [arrays[i] for arrays in updates]
            if old.dtype.kind == "f":
                new = old.astype(np.float64)
                for a, row in zip(next(by_array), rows, strict=True):
                    if a != 0:
                        new = new + a * (row.astype(np.float64) - old)
            else:
                entries = np.stack([row.astype(old.dtype).reshape(-1) for row in rows])
                ranked = np.sort(entries, axis=0)
                count = np.stack([overall @ (entries == row) for row in ranked])
                tied = count >= count.max(axis=0) * (1 - 1e-12)  # of these the middle one: no client can choose it
                tied[1:] &= ranked[1:] != ranked[:-1]
                middle = np.cumsum(tied, axis=0) == (tied.sum(axis=0) + 1) // 2
                new = ranked[middle.argmax(axis=0), np.arange(old.size)]
            value.append(np.asarray(new).astype(old.dtype).reshape(old.shape))
        return value

    def _say(self, text: str) -> None:
        """Write a line to the log of FEDn or Scaleout; outside the platform, do nothing."""
        names = globals()
        try:
            log = names["logger"] if "logger" in names else names["ScaleoutLogger"]()
            log.info("honestly: " + text)
        except Exception:
            return

    def _estimate(self, grams: Any, sizes: Any, clients: Any) -> Any:
        """Weights, a row for each array, and honesty of the clients from their Gram matrices."""
        raise NotImplementedError("export puts the estimator here")
