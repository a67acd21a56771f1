"""Copy patterns: rounds in which clients, honest ones included, copy each other.

With n clients, f of them malicious, and at most `fh = ceil(n/2) - 1` tolerated, no rule that is told nothing can
guarantee a kappa below `fh / (n - f - fh)`. These patterns attain the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from honestly.result import Float

DIMENSION = 300
STEPS = (0.3, 1.0, 1.7, 3.0, 30.0, 1e4)


@dataclass(frozen=True)
class Pattern:
    """One round: updates about the honest mean, honest clients first, and the honest variance."""

    name: str
    updates: Float
    variance: float


def most_tolerated(n: int) -> int:
    """The most attackers that n clients can withstand: fewer than half."""
    return (n + 1) // 2 - 1


def bound(n: int, f: int) -> float:
    """The least kappa that a rule without further information can promise against f of n.

    >>> [round(bound(20, f), 2) for f in (0, 4, 8, 9)]
    [0.82, 1.29, 3.0, 4.5]
    """
    most = most_tolerated(n)
    return most / (n - f - most)


def patterns(n: int, f: int, rng: np.random.Generator) -> Iterator[Pattern]:
    """Every composition of honest clients under every lie."""
    for composition, honest in compositions(n - f, rng):
        centre = honest.mean(axis=0)
        variance = float(np.square(honest - centre).sum(axis=1).mean())
        if variance == 0.0:
            continue
        for lie, sent in lies(honest, f, rng):
            yield Pattern(f"{composition} | {lie}", np.concatenate([honest, sent]) - centre, variance)


def _noise(rng: np.random.Generator, n: int) -> Float:
    return rng.standard_normal((n, DIMENSION)) / np.sqrt(DIMENSION)


def compositions(n: int, rng: np.random.Generator) -> Iterator[tuple[str, Float]]:
    """Honest clients: all different, some idle, in camps of copies, in pairs, of unequal lengths."""
    drift = _noise(rng, 1)
    for b in (0.5, 3.0):
        yield f"distinct, drift {b}", b * drift + _noise(rng, n)
        for q in sorted({max(1, round(n * share)) for share in (0.3, 0.5, 0.65, 0.8)}):
            if 2 <= q < n:
                yield f"{q} idle, drift {b}", np.concatenate([np.zeros((q, DIMENSION)), b * drift + _noise(rng, n - q)])
    for c in (2, 3):
        if n >= 2 * c - 1:
            camps = _noise(rng, c)[np.arange(n) % c]
            yield f"{c} camps", camps
            yield f"{c} camps, nearly", camps + 1e-3 * _noise(rng, n)
    if n >= 6:
        q = n // 3
        yield "2 camps and others", np.concatenate([np.repeat(_noise(rng, 2), q, axis=0), _noise(rng, n - 2 * q)])
        yield "pairs", _noise(rng, (n + 1) // 2)[np.arange(n) // 2]
    yield "unequal", _noise(rng, n) * np.exp(rng.standard_normal((n, 1)))


def lies(honest: Float, f: int, rng: np.random.Generator) -> Iterator[tuple[str, Float]]:
    """What f attackers send: copies and jittered copies in four directions, noise, mimics, mimics beside others."""
    mean = honest.mean(axis=0)
    r2 = np.square(honest - mean).sum(axis=1)
    s = float(np.sqrt(r2.mean()))
    against = -mean / max(float(np.linalg.norm(mean)), 1e-9)
    first = (honest[0] - mean) / s
    directions = {"against": against, "random": _noise(rng, 1)[0], "farthest": (honest[r2.argmax()] - mean) / s}
    for name, u in {**directions, "a client's": first}.items():
        for t in STEPS:
            base = mean + t * s * u
            yield f"copies, {name} {t}", np.repeat(base[None], f, axis=0)
            for j in (1e-3, 0.15, 0.5):
                scale = j * s * max(1.0, t if j < 0.5 else 1.0)
                yield f"copies with noise {j}, {name} {t}", base + scale * _noise(rng, f)
    yield "noise 1", mean + s * _noise(rng, f)
    yield "noise 30", mean + 30 * s * _noise(rng, f)
    for k in sorted({0, len(honest) // 2, len(honest) - 1}):
        copies = np.repeat(honest[k : k + 1], f, axis=0)
        yield f"mimics of {k}", copies
        yield f"mimics of {k}, nearly", copies + 1e-3 * s * _noise(rng, f)
        if f >= 2:
            for name, other in (("against", mean + 3 * s * against), ("far", mean - 30 * s * first)):
                mixed = copies.copy()
                mixed[f // 2 :] = other
                yield f"mimics of {k} and others {name}", mixed
