"""Rules under judgement: a stranger's code, made safe to measure; and what its mistakes are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.studies.specs import Contestant


class RuleError(Exception):
    """A rule raised, or returned what no server can use; the message says which and what."""


def contestant(spec: str) -> Contestant:
    """The rule that a word stands for, or a class in a file: `rule.py:MyRule`, `rule.py:MyRule:f=2`.

    Naming a file runs it, on this machine, with all rights of whoever calls. Raises ValueError for what is no rule, or
    none that inner products alone can judge.
    """
    found = Contestant(spec)
    if not found.on_gram:
        raise ValueError(f"rule '{spec}': needs coordinates, signs or a root; a suite holds inner products alone")
    if "trusted client" in found.knows:
        raise ValueError(f"rule '{spec}': needs a trusted client; in a suite nobody knows who is who")
    return found


@dataclass(frozen=True, kw_only=True)
class GuardedRule(Rule):
    """A rule that sees the clients in another random order every time, and whose answer is checked.

    Attackers are the last clients of a recorded round: a rule that looks at the order learns nothing from it.
    """

    inner: Rule
    rng: np.random.Generator

    name: ClassVar[str] = "guarded"
    summary: ClassVar[str] = "a rule under judgement"

    def mix(self, geometry: Geometry) -> Mix:
        """What the rule answers to the clients in a random order, put back into theirs."""
        K, L = geometry.K, len(geometry.layers)
        order = self.rng.permutation(K)
        shuffled = geometry.subset(order.tolist())  # a copy: the rule cannot change what it is measured by
        try:
            mix = self.inner.mix(shuffled)
        except Exception as error:
            raise RuleError(f"raised {type(error).__name__}: {str(error)[:200]}") from error
        check_mix(mix, K, L)
        back = np.argsort(order)
        return Mix(
            matrix=np.asarray(mix.matrix, dtype=np.float64)[:, back],
            honesty=None if mix.honesty is None else np.asarray(mix.honesty, dtype=np.float64)[back],
            status=mix.status,
            steps=mix.steps,
            by_layer=None if mix.by_layer is None else np.asarray(mix.by_layer, dtype=np.float64)[:, back],
            verdicts=None if mix.verdicts is None else [mix.verdicts[i] for i in back],
        )


def check_mix(mix: Any, K: int, L: int) -> None:
    """Raise RuleError unless a server could use the answer."""
    if not isinstance(mix, Mix):
        raise RuleError(f"returned a {type(mix).__name__}: mix must return a honestly.rules.rule.Mix")
    _weights("matrix", mix.matrix, (1, K))
    if mix.by_layer is not None:
        _weights("by_layer", mix.by_layer, (L, K))
    if mix.honesty is not None:
        honesty = _numbers("honesty", mix.honesty, (K,))
        if (honesty < -1e-9).any() or (honesty > 1 + 1e-9).any():
            raise RuleError(f"returned a honesty of {honesty.min():.3g} to {honesty.max():.3g}: give probabilities")
    if mix.verdicts is not None and len(mix.verdicts) != K:
        raise RuleError(f"returned {len(mix.verdicts)} verdicts on {K} clients")


def _numbers(what: str, value: Any, shape: Sequence[int]) -> Float:
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise RuleError(f"returned {what} that are no numbers: {str(value)[:80]}") from None
    if found.shape != tuple(shape):
        raise RuleError(f"returned {what} of shape {found.shape}: must be {tuple(shape)}")
    if not np.isfinite(found).all():
        raise RuleError(f"returned {what} with NaN or infinity")
    return found


def _weights(what: str, value: Any, shape: Sequence[int]) -> None:
    sums = _numbers(what, value, shape).sum(axis=1)
    if (sums > 1 + 1e-6).any():
        raise RuleError(f"returned {what} that sum to {sums.max():.6g}: at most 1, the rest is the reference's")
