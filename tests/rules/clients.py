"""A reference engine for tests: geometry from explicit vectors, and the value of a rule's mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule, GramGeometry, Mix, Mixer, Rule


def geometry(
    X: Any, *, reference: Any = None, sizes: Any = None, root: Any = None, ids: Sequence[Any] = (), centre: Any = None,
    layers: Sequence[int] = (),
) -> GramGeometry:  # fmt: skip
    """The geometry of the rows of X, centred on the median (never on the reference: that would hide mistakes).

    Whole updates come in layers of these sizes; the first two layers are also the statistics of a BatchNorm layer.
    """
    X = np.asarray(X, dtype=np.float64)
    origin = np.zeros(X.shape[1]) if reference is None else np.asarray(reference, dtype=np.float64)
    centre = np.median(X, axis=0) if centre is None else centre
    C = X - centre
    cuts = np.cumsum(layers)[:-1]

    def whole(A: Any) -> Coordinates:
        U = X - origin
        return Coordinates(tuple(np.split(U if A is None else A @ U, cuts, axis=1)), tuple(np.split(origin, cuts)))

    def running(A: Any) -> Sequence[Statistics]:
        parts = np.split(X if A is None else A @ X, cuts, axis=1)
        return [Statistics("bn", parts[0], parts[1])] if len(parts) > 1 else []

    products = None
    if root is not None:
        step = np.asarray(root, dtype=np.float64) - origin
        products = np.append((X - origin) @ step, step @ step)
    return GramGeometry(
        C @ C.T,
        tuple(ids),
        sizes=sizes,
        about_reference=lambda: (X - origin) @ (X - origin).T,
        has_reference=reference is not None,
        root_products=products,
        mixed_coordinates=whole,
        mixed_statistics=running,
        signs=lambda: np.stack([(origin < X).sum(1), (origin == X).sum(1), (origin > X).sum(1)], axis=1).astype(float),
    )


def apply(rule: Rule, X: Any, mix: Mix, reference: Any = None) -> np.ndarray:
    """The value of a mix."""
    X = np.asarray(X, dtype=np.float64)
    origin = np.zeros(X.shape[1]) if reference is None else np.asarray(reference, dtype=np.float64)
    share = 1.0 - mix.matrix.sum(axis=1)
    used = mix.matrix.any(axis=0)  # 0 * huge must not matter
    rows = mix.matrix[:, used] @ X[used] + np.outer(share, origin)
    if isinstance(rule, ColumnRule):
        first, last = rule.ranks(len(rows))
        return rule.reduce(np.sort(rows, axis=0)[first:last], np)
    assert mix.matrix.shape[0] == 1
    return rows[0]


def value(rule: Rule, X: Any, *, reference: Any = None, **known: Any) -> np.ndarray:
    """The value of the rule on the rows of X."""
    return apply(rule, X, rule.mix(geometry(X, reference=reference, **known)), reference)


def mixtures(mixer: Mixer, X: Any, *, reference: Any = None) -> np.ndarray:
    """The mixtures of the rows of X."""
    X = np.asarray(X, dtype=np.float64)
    A = mixer.mix(geometry(X, reference=reference))
    origin = np.zeros(X.shape[1]) if reference is None else np.asarray(reference, dtype=np.float64)
    return A @ X + np.outer(1.0 - A.sum(axis=1), origin)


def scatter(X: np.ndarray) -> float:
    """The sum of the squared distances to the mean."""
    return float(((X - X.mean(axis=0)) ** 2).sum())


def honest(K: int = 12, d: int = 7, seed: int = 0, centre: float = 3.0) -> np.ndarray:
    """K independent clients around a common centre."""
    rng = np.random.default_rng(seed)
    return centre * rng.normal(size=d) + rng.normal(size=(K, d))


def populations(K: int, d: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    """Clients of several shapes, for searches whose cost depends on it."""
    rng = np.random.default_rng(seed)
    isotropic = rng.normal(size=(K, d))
    copies = isotropic.copy()
    copies[K - 2 * K // 5 :] = 0.3 * rng.normal(size=d)
    return {
        "isotropic": isotropic,
        "low rank": rng.normal(size=(K, 3)) @ rng.normal(size=(3, d)) + 0.1 * isotropic,
        "heavy tails": rng.standard_t(2, size=(K, 1)) * isotropic,
        "two clusters": isotropic + np.where(np.arange(K)[:, None] % 2, 1.0, -1.0) * rng.normal(size=d),
        "all as far": np.eye(K),
        "copies": copies,
    }
