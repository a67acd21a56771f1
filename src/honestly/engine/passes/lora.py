"""The passes over LoRA adapters: distances and means of the products `scale * B A`, exactly, without forming them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from honestly.arrays import LARGEST, ArraySpec
from honestly.engine.passes.host import HostPasses
from honestly.engine.passes.lora_factors import CHUNK, LoraFactors
from honestly.engine.passes.products import balanced, best_factors, squared_norm
from honestly.engine.passes.protocol import Verdict, symmetrize
from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule
from honestly.sources import Layer, Leaf
from honestly.sources.checkpoints.adapter import Pair
from honestly.sources.checkpoints.lora import LoraSource
from honestly.sources.tree import tensor_label


class LoraPasses:
    """Gram matrices in float64 from r x r blocks; a mean is written as `source.lora` says."""

    def __init__(self, source: LoraSource) -> None:
        self.source = source
        self.factors = LoraFactors(source)
        self._weights = np.zeros((0, 0))
        self._used: list[int] = []

    def sample(self, clients: Sequence[int]) -> Float:
        """Points with exactly the clients' mutual distances: `X = U L^(1/2)` of the Gram matrix `U L U^T`."""
        G = self._by_layer(self.factors.grams(clients)).sum(axis=0)
        fine = np.isfinite(np.diagonal(G))
        points = np.full((len(clients), max(1, int(fine.sum()))), np.nan)
        if fine.any():
            values, vectors = np.linalg.eigh(G[np.ix_(fine, fine)])
            points[fine] = vectors * np.sqrt(np.maximum(values, 0))[None, :]
        return points

    def free_centre(self, clients: Sequence[int]) -> int | None:
        """The Gram matrix comes from products of factors: there is nothing to centre."""
        return None

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """G of the products, about the centre's, by layer: always of all layers."""
        rows = [*clients] if centre is None else [*clients, centre]
        grams = self._by_layer(self.factors.grams(rows))
        return symmetrize(grams if centre is None else _about_last(grams))

    def _by_layer(self, grams: Float) -> Float:
        """(L, k, k) from those of the leaves, each of which is in one layer."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = [sum(grams[leaf] for leaf, _, _ in layer.spans) for layer in self.source.layers]
        return np.stack(sums) if sums else np.zeros((0, *grams.shape[1:]))

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """`G_kk - 2 (G a)_k + a^T G a`."""
        G = self.gram(clients, centre)
        mixed = np.swapaxes(a @ G, 0, 1)  # (m, L, k)
        norms = np.diagonal(G, axis1=1, axis2=2).copy()
        return np.maximum(norms - 2 * mixed + (mixed * a[:, None, :]).sum(axis=-1, keepdims=True), 0), norms

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """Signs of coordinates of B A would need the product itself."""
        raise ValueError(
            "this rule counts the signs of coordinates, which LoRA products do not have until they are formed"
        )

    def coordinates(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
        """Coordinates of B A would need the product itself."""
        raise ValueError("this rule looks at coordinates, which LoRA products do not have until they are formed")

    def statistics(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Sequence[Statistics]:
        """Adapters have no BatchNorm."""
        return ()

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances to the weighted mean of the products, before it is re-factored."""
        rows = [*clients, *(k for k in self._used if k not in clients)]
        squared: list[Float] = []
        for leaf, G in enumerate(self.factors.grams(rows)):
            a = np.zeros(len(rows))
            for k, weight in zip(self._used, self._weights[leaf], strict=True):
                a[rows.index(k)] = weight
            squared.append(np.diagonal(G) - 2 * G @ a + a @ G @ a)
        return np.maximum(np.stack(squared, axis=1), 0)[: len(clients)]

    def fault(self, client: int) -> str | None:
        """Read all factors until a value is NaN, infinite or too large."""
        for name, tensor in self._tensors(client):
            for start in range(0, tensor.spec.size, CHUNK):
                values = np.empty(min(CHUNK, tensor.spec.size - start))
                self.source.read_tensor(client, tensor, start, start + len(values), values)
                wrong = ~(np.abs(values) <= LARGEST["float32"])
                if wrong.any():
                    at = int(np.argmax(wrong))
                    return f"{tensor_label(name)} at flat index {start + at} is {values[at]:.6g}"
        return None

    def _tensors(self, client: int) -> Iterator[tuple[str, Any]]:
        adapter = self.source.adapter(client)
        for pair in adapter.pairs.values():
            yield pair.a_name, pair.a
            yield pair.b_name, pair.b
        yield from adapter.plain.items()

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`sum_k w_k scale_k B_k A_k`, written exactly, re-factored, or factor by factor."""
        some = weights.any(axis=0) if weights.ndim == 2 else weights != 0
        at = np.flatnonzero(some).tolist() or [0]
        used = [clients[j] for j in at]
        shares = self._of_leaves(weights)[:, at]
        self._weights, self._used = shares, used
        if self.source.lora == "factors":
            return self._mix_factors(shares, used)
        ranks = {m: [p.rank for p in self.factors.pairs(m, used)] for m in self.source.modules}
        if self.source.lora == "svd":
            new = {m: self.source.rank or max(set(r), key=lambda n, r=r: (r.count(n), n)) for m, r in ranks.items()}
            new = {m: min(new[m], sum(ranks[m])) for m in ranks}
        else:
            new = {m: sum(r) for m, r in ranks.items()}
        sink = self.source.begin(self._leaves(new, used), used, new)
        error = total = 0.0
        fine = True
        for i, module in enumerate(self.source.modules):
            pairs = self.factors.pairs(module, used)
            D = np.repeat(shares[i], ranks[module])
            small = None
            unwieldy = self.factors.unwieldy(i, used, shares[i])
            if self.source.lora == "svd" or unwieldy.any():
                MA, MB = self.factors.small(used, pairs)
                if not (np.isfinite(MA).all() and np.isfinite(MB).all()):  # a fault that the engine now looks for
                    return list(sink.finish()), lambda: False
                svd = self.source.lora == "svd"  # else only where it must be: A is exact as it is
                small = TA, TB = balanced(MA, MB, ranks[module], shares[i], svd | unwieldy)
                if svd:
                    eye, MA, MB = np.eye(len(D)), TA @ MA @ TA.T, TB.T @ MB @ TB
                    a, b = best_factors(np.ones(len(D)), MA, MB, new[module])
                    error += squared_norm(b @ a - eye, MA, MB)
                    total += squared_norm(eye, MA, MB)
                    small = a @ TA, TB @ b
            fine &= self._write(sink, 2 * i, used, pairs, D, small)
        modules = len(self.source.modules)
        for j, name in enumerate(self.source.plain):
            fine &= self._write_plain(sink, 2 * modules + j, name, used, shares[modules + j])
        self._report(new, float(np.sqrt(error / total)) if total > 0 else 0.0)
        return list(sink.finish()), lambda: fine

    def _of_leaves(self, weights: Float) -> Float:
        """(leaves, k) a row of weights for each product and each other tensor."""
        if weights.ndim == 1:
            return np.repeat(weights[None, :], len(self.source.leaves), axis=0)
        rows = np.zeros((len(self.source.leaves), weights.shape[1]))
        for row, layer in zip(weights, self.source.layers, strict=True):
            rows[[leaf for leaf, _, _ in layer.spans]] = row
        return rows

    def _mix_factors(self, weights: Float, used: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Both factors of a module are averaged with the weights of their product."""
        inner = self.source.factors(used)
        shares = self.factors.comparable(weights, used)
        rows = {name: shares[i] for i, name in enumerate((*self.source.modules, *self.source.plain))}
        modules = self.source.factor_modules(self.source.typical(used))
        inner.layers = tuple(Layer(leaf.name, ((i, 0, leaf.size),)) for i, leaf in enumerate(inner.leaves) if leaf.size)
        by_layer = np.stack([rows[modules.get(layer.name, layer.name)] for layer in inner.layers])
        values, fine = HostPasses(inner).mix(by_layer, used)
        self.source.keep(inner.last_sink())
        if not fine():  # the engine finds whose fault it is, and comes again
            return values, fine
        error = total = 0.0
        for i, module in enumerate(self.source.modules):
            pairs = self.factors.pairs(module, used)
            MA, MB = self.factors.small(used, pairs)
            eye = np.tile(np.eye(pairs[0].rank), (1, len(used)))
            D, S = np.repeat(weights[i], pairs[0].rank), np.repeat(shares[i], pairs[0].rank)
            error += squared_norm((S[:, None] * eye.T) @ (eye * S[None, :]) - np.diag(D), MA, MB)
            total += squared_norm(np.diag(D), MA, MB)
        relative = float(np.sqrt(error / total)) if total > 0 else 0.0
        self._report({module: self.factors.pairs(module, used)[0].rank for module in self.source.modules}, relative)
        warnings.warn(
            f"lora='factors': the mean of A and of B is not the mean of B A; the result differs from it by "
            f"{relative:.3g} of its norm",
            stacklevel=2,
        )
        return values, fine

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """Coordinate-wise rules see the factors' coordinates, and only if the caller asked for factors."""
        if self.source.lora != "factors":
            raise ValueError(
                f"{rule.name} works on coordinates, which LoRA products do not have until they are formed: use a rule "
                "that weighs clients, such as bayesian or geometric_median, or lora='factors'"
            )
        inner = self.source.factors(clients)
        values, fine = HostPasses(inner).reduce(rule, mixing, clients)
        self.source.keep(inner.last_sink())
        self._weights = np.full((len(self.source.leaves), len(clients)), 1 / len(clients))
        self._used = list(clients)
        warnings.warn(f"lora='factors': {rule.name} of A and of B by themselves is not that of B A", stacklevel=2)
        return values, fine

    def _report(self, ranks: dict[str, int], error: float) -> None:
        low, high = min(ranks.values()), max(ranks.values())
        self.source.notes["lora"] = {
            "result": self.source.lora, "relative_error": error,
            "rank": str(low) if low == high else f"{low} to {high}",
        }  # fmt: skip

    def _leaves(self, ranks: dict[str, int], used: Sequence[int]) -> list[Leaf]:
        usual, leaves = self.source.adapter(self.source.typical(used)), list[Leaf]()
        for module, rank in ranks.items():
            pair, pairs = usual.pairs[module], self.factors.pairs(module, used)
            dtypes = self.source.majority_dtype([p.a for p in pairs]), self.source.majority_dtype([p.b for p in pairs])
            leaves.append(Leaf(pair.a_name, ArraySpec((rank, *pair.a.spec.shape[1:]), dtypes[0], "float")))
            leaves.append(Leaf(pair.b_name, ArraySpec((pair.rows, rank, *pair.b.spec.shape[2:]), dtypes[1], "float")))
        for name in self.source.plain:
            dtype = self.source.majority_dtype([self.source.adapter(k).plain[name] for k in used])
            leaves.append(Leaf(name, ArraySpec(usual.plain[name].spec.shape, dtype, "float")))
        return leaves

    def _write(
        self,
        sink: Any,
        leaf: int,
        used: Sequence[int],
        pairs: Sequence[Pair],
        D: Float,
        small: tuple[Float, Float] | None,
    ) -> bool:
        """`T_A A` and `B T_B`; without them A as it is and `B diag(D)`, whose product is the exact mean."""
        fine, columns = True, pairs[0].columns
        for start, A in self.factors.a_chunks(used, pairs):
            new = A if small is None else small[0] @ A
            fine &= bool(np.isfinite(new).all())
            for row, values in enumerate(new):
                sink.put(leaf, row * columns + start, row * columns + start + len(values), values)
        for start, B in self.factors.b_chunks(used, pairs):
            new = B * D[None, :] if small is None else B @ small[1]
            fine &= bool(np.isfinite(new).all())
            flat = np.ascontiguousarray(new).reshape(-1)
            sink.put(leaf + 1, start * new.shape[1], start * new.shape[1] + len(flat), flat)
        return fine

    def _write_plain(self, sink: Any, leaf: int, name: str, used: Sequence[int], weights: Float) -> bool:
        fine = True
        for start, X in self.factors.plain_chunks(name, used):
            mean = weights @ X
            fine &= bool(np.isfinite(mean).all())
            sink.put(leaf, start, start + len(mean), mean)
        return fine


def _about_last(G: Float) -> Float:
    """The Gram matrices of all rows but the last, about the last: `G_ij - G_ic - G_jc + G_cc`."""
    with np.errstate(invalid="ignore", over="ignore"):
        return G[:, :-1, :-1] - G[:, :-1, -1:] - G[:, -1:, :-1] + G[:, -1:, -1:]
