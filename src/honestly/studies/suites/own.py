"""Rules under judgement: who can be judged, in which order they see the clients, and what is checked in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from honestly.catalog import Spec
from honestly.engine import Pipeline
from honestly.own import is_own
from honestly.rules.rule import ColumnRule, Geometry, Mix, Rule
from honestly.studies.layers.stand_ins import needs_coordinates
from honestly.studies.specs import Contestant
from honestly.studies.suites.sandbox import LIMIT, RemoteContestant, RuleError, numbers

Judged: TypeAlias = Contestant | RemoteContestant


def contestant(spec: str, limit: float = LIMIT) -> Judged:
    """The rule that a word stands for, or a class in a file: `rule.py:MyRule`, `rule.py:MyRule:f=2`.

    Naming a file runs it, in its own process on this machine, with all rights of the caller; ``limit`` is its time for
    one answer, in seconds. Raises ValueError if this is not a rule, or not one that a suite can judge.
    """
    own = any(is_own(part.name) for part in Spec.parse_all(spec))
    rule = RemoteContestant(spec, limit) if own else Contestant(spec)
    knows = rule.knows
    if "root" in knows:
        raise ValueError(f"rule '{spec}': needs a trusted root update, and a suite has none")
    if "trusted client" in knows:
        raise ValueError(f"rule '{spec}': needs a trusted client; in a suite nobody knows who is who")
    if isinstance(rule, Contestant) and any("buffers" in part.needs for part, _ in rule.parts):
        raise ValueError(f"rule '{spec}': needs BatchNorm's statistics, and a suite has none")
    return rule


def looks_at_coordinates(judged: Judged) -> bool:
    """Whether the rule needs coordinates, which a suite replaces by stand-ins."""
    if isinstance(judged, RemoteContestant):
        return judged.coordinates
    return needs_coordinates([part for part, _ in judged.parts])


def guard(pipeline: Pipeline, rng: np.random.Generator) -> Pipeline:
    """The rule as it is judged: clients come in a random order, and every answer is checked."""
    rule = pipeline.rule
    guarded = GuardedColumns(inner=rule, rng=rng) if isinstance(rule, ColumnRule) else GuardedRule(inner=rule, rng=rng)
    return replace(pipeline, rule=guarded)


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
        """Ask the rule with the clients in random order, and put its answer back into the original order."""
        return _mix_shuffled(self.inner, self.rng, geometry, 1)


@dataclass(frozen=True, kw_only=True)
class GuardedColumns(ColumnRule):
    """The same for a rule that reduces coordinates: its matrix may have any number of rows."""

    inner: ColumnRule
    rng: np.random.Generator

    name: ClassVar[str] = "guarded_columns"
    summary: ClassVar[str] = "a coordinate-wise rule under judgement"
    gram_needed: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """The same as `GuardedRule.mix`."""
        return _mix_shuffled(self.inner, self.rng, geometry, None)

    def ranks(self, m: int) -> tuple[int, int]:
        """Those that the rule reads."""
        return self.inner.ranks(m)

    def reduce(self, ranked: Any, xp: Any) -> Any:
        """The rule's values, if they are numbers."""
        try:
            values = self.inner.reduce(ranked, xp)
        except RuleError:
            raise
        except Exception as error:
            raise _rule_error(error) from error
        return numbers("values", values, (ranked.shape[1],))


def _mix_shuffled(rule: Rule, rng: np.random.Generator, geometry: Geometry, rows: int | None) -> Mix:
    K, L = geometry.K, len(geometry.layers)
    order = rng.permutation(K)
    subset = geometry.subset(order.tolist())  # a copy: the rule cannot change what it is measured by
    try:
        mix = rule.mix(subset)
    except RuleError:
        raise
    except Exception as error:
        raise _rule_error(error) from error
    check_mix(mix, K, L, rows)
    back = np.argsort(order)
    return Mix(
        matrix=np.asarray(mix.matrix, dtype=np.float64)[:, back],
        honesty=None if mix.honesty is None else np.asarray(mix.honesty, dtype=np.float64)[back],
        status=mix.status,
        steps=mix.steps,
        by_layer=None if mix.by_layer is None else np.asarray(mix.by_layer, dtype=np.float64)[:, back],
        verdicts=None if mix.verdicts is None else [mix.verdicts[i] for i in back],
    )


def _rule_error(error: Exception) -> RuleError:
    return RuleError(f"raised {type(error).__name__}: {str(error)[:200]}")


def check_mix(mix: Any, K: int, L: int, rows: int | None = 1) -> None:
    """Raise RuleError unless a server could use the answer; ``rows`` of the matrix, None for any number."""
    if not isinstance(mix, Mix):
        raise RuleError(f"returned a {type(mix).__name__}: mix must return an honestly.rules.rule.Mix")
    _weights("matrix", mix.matrix, (rows, K))
    if mix.by_layer is not None:
        _weights("by_layer", mix.by_layer, (L, K))
    if mix.honesty is not None:
        honesty = numbers("honesty", mix.honesty, (K,))
        if (honesty < -1e-9).any() or (honesty > 1 + 1e-9).any():
            raise RuleError(f"returned an honesty of {honesty.min():.3g} to {honesty.max():.3g}: give probabilities")
    if mix.verdicts is not None and len(mix.verdicts) != K:
        raise RuleError(f"returned {len(mix.verdicts)} verdicts on {K} clients")


def _weights(what: str, value: Any, shape: Sequence[int | None]) -> None:
    sums = numbers(what, value, tuple(shape)).sum(axis=1)
    if (sums > 1 + 1e-6).any():
        raise RuleError(f"returned {what} that sum to {sums.max():.6g}: at most 1, the rest is the reference's")
