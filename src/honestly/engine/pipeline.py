"""Mixers and the rule after them as one object: what they need, what they decide, and how they continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from honestly.catalog import Spec
from honestly.result import Float, Verdict
from honestly.rules import MIXER_CATALOG, make_steps
from honestly.rules.rule import ColumnRule, Geometry, GramGeometry, Mix, Mixer, Rule, require
from honestly.rules.sizes import by_size

#: The sum of the weights may differ from 1 by this much.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Decision:
    """What a pipeline decided on K clients: the mixers' matrix, (m, K) or None, and the rule's answer to m mixtures."""

    mixing: Float | None
    mix: Mix

    @property
    def matrix(self) -> Float:
        """The rule's matrix in terms of the clients."""
        return self.mix.matrix if self.mixing is None else self.mix.matrix @ self.mixing

    @property
    def by_layer(self) -> Float | None:
        """(L, K) weights of the clients in each layer, if the rule weighs each by itself."""
        rows = self.mix.by_layer
        return rows if rows is None or self.mixing is None else rows @ self.mixing

    @property
    def honesty(self) -> Float | None:
        """(K,) honesty of the clients: of the mixtures that a client is part of, each counted by its share in them."""
        honesty, mixing = self.mix.honesty, self.mixing
        if honesty is None or mixing is None:
            return honesty
        shares = mixing.sum(axis=0)
        mean = honesty @ mixing / np.where(shares > 0, shares, 1)
        return np.where(shares > 0, np.minimum(mean, 1.0), 0.0)  # rounding may exceed 1 by a bit


@dataclass(frozen=True)
class Pipeline:
    """Mixers, applied in turn, and the rule that sees the mixtures.

    Example:
        >>> str(Pipeline.of("bucketing:size=3+median"))
        'Median() after Bucketing(size=3, seed=0)'
    """

    mixers: tuple[Mixer, ...]
    rule: Rule

    @classmethod
    def of(cls, rule: Any, pre: Any = (), *, own: bool = False) -> Pipeline:
        """From objects or words such as "nnm:f=4+krum:f=2". Raises ValueError, naming what was passed instead.

        With `own`, a word of `rule` may also name a class of the user's, whose code is run.
        """
        behind, step = _steps(rule, own)
        if isinstance(step, type) and issubclass(step, Rule):
            raise ValueError(f"rule is the class {step.__name__}; pass a rule with its settings, {step.__name__}(...)")
        if not isinstance(step, Rule):
            raise ValueError(
                f"rule is {step!r}; expected a rule such as hn.Bayesian() or its name, see hn.list_rules()"
            )
        if not isinstance(pre, str | Mixer | Iterable):
            raise ValueError(f"pre is {pre!r}; expected a sequence of mixers such as [hn.NNM(f=4)], or of their names")
        steps: Iterable[Any] = (
            (pre,) if isinstance(pre, Mixer) else Spec.parse_all(pre) if isinstance(pre, str) else pre
        )
        mixers = tuple(MIXER_CATALOG.build(s, own=False) if isinstance(s, str | Spec) else s for s in steps)
        for mixer in mixers:
            if not isinstance(mixer, Mixer):
                raise ValueError(f"pre holds {mixer!r}; expected mixers such as hn.NNM(f=4) or their names")
        return cls((*mixers, *behind), step)

    @property
    def steps(self) -> tuple[Mixer | Rule, ...]:
        """Mixers and rule, in the order in which they are applied."""
        return (*self.mixers, self.rule)

    @property
    def needs(self) -> frozenset[str]:
        """What the steps need, see `Rule.needs`."""
        return frozenset().union(*(step.needs for step in self.steps))

    @property
    def gram_needed(self) -> bool:
        """Whether a step asks for more than K, ids and sizes."""
        return any(step.gram_needed for step in self.steps)

    @property
    def streams(self) -> bool:
        """Whether every step can decide without a K x K matrix."""
        return self.rule.streams and not self.mixers

    @property
    def uses_sizes(self) -> bool:
        """Whether the clients' sizes can change the result: not behind mixers, nor if the rule is to ignore them."""
        if self.mixers or getattr(self.rule, "sizes", None) == "ignore":
            return False
        return self.rule.uses_sizes or not isinstance(self.rule, ColumnRule)

    @property
    def reduces_clients(self) -> bool:
        """Whether the rule reduces the clients' own columns, not those of mixtures."""
        return isinstance(self.rule, ColumnRule) and not self.rule.gram_needed and not self.mixers

    def check(self, K: int) -> None:
        """Raise ValueError, naming the bound, if the settings do not fit K clients.

        The first step sees the clients; a later one sees mixtures, and checks their number itself.
        """
        self.steps[0].check(K)

    def minimum(self) -> int:
        """The fewest clients that the first step can work with."""
        return self.steps[0].minimum()

    def decide(self, geometry: Geometry) -> Decision:
        """Apply the mixers in turn, then the rule. Raises ValueError if one of them returns something unusable."""
        mixing: Float | None = None
        for mixer in self.mixers:
            require(mixer, geometry.K)
            A = np.asarray(mixer.mix(geometry), dtype=np.float64)
            _check_rows(mixer, A, geometry)
            mixing = A if mixing is None else A @ mixing
            assert isinstance(geometry, GramGeometry)
            geometry = geometry.mixtures(A)
        require(self.rule, geometry.K)
        mix = self.rule.mix(geometry)
        _check_mix(self.rule, mix, geometry)
        if geometry.sizes is not None and not self.rule.uses_sizes and not isinstance(self.rule, ColumnRule):
            mix = by_size(mix, geometry.sizes, getattr(self.rule, "f", None))
        return Decision(mixing, mix)

    def after(self, diagnostics: Mapping[str, Any]) -> Pipeline:
        """The same steps for the next round, given what this round found."""
        return Pipeline(tuple(mixer.after(diagnostics) for mixer in self.mixers), self.rule.after(diagnostics))

    def with_rule(self, **settings: Any) -> Pipeline:
        """The same with other settings of the rule."""
        return replace(self, rule=replace(self.rule, **settings))

    def __str__(self) -> str:
        return " after ".join(map(repr, reversed(self.steps)))


def _steps(rule: Any, own: bool) -> tuple[tuple[Mixer, ...], Any]:
    if isinstance(rule, Pipeline):
        return rule.mixers, rule.rule
    return make_steps(rule, own=own) if isinstance(rule, str) else ((), rule)


def _check_mix(rule: Rule, mix: Any, geometry: Geometry) -> None:
    """Check the result of a user's rule: values that are not weights would give a broken model."""
    if not isinstance(mix, Mix):
        raise ValueError(f"{rule}.mix returned a {type(mix).__name__}, expected a Mix")
    if isinstance(rule, ColumnRule):
        _check_reduce(rule, len(np.asarray(mix.matrix)))
        if not rule.gram_needed:
            return  # the identity, which is not multiplied
    elif len(np.atleast_2d(mix.matrix)) != 1:
        raise ValueError(
            f"{rule}.mix gave a matrix of shape {np.shape(mix.matrix)}, expected one row, (1, {geometry.K}): "
            "only a ColumnRule has several"
        )
    _check_rows(rule, np.asarray(mix.matrix), geometry)
    if mix.by_layer is not None and mix.by_layer is not mix.matrix:
        if np.shape(mix.by_layer) != (len(geometry.judged), geometry.K):
            raise ValueError(
                f"{rule}.mix gave by_layer of shape {np.shape(mix.by_layer)}, expected a row of weights for each "
                f"layer: ({len(geometry.judged)}, {geometry.K})"
            )
        _check_rows(rule, np.asarray(mix.by_layer), geometry)
    for name in ("honesty", "verdicts", "explanations"):
        values: Sequence[Any] | None = getattr(mix, name)
        if values is not None and len(values) != geometry.K:
            raise ValueError(f"{rule}.mix gave {name} of length {len(values)}, expected {geometry.K}, one per client")
    if not type(rule).__module__.startswith("honestly."):
        _check_judgement(rule, mix)


def _check_judgement(rule: Rule, mix: Mix) -> None:
    """Check what a user's rule says of the clients."""
    if mix.honesty is not None:
        honesty = np.asarray(mix.honesty)
        wrong = np.flatnonzero(~((honesty >= 0) & (honesty <= 1 + ROUNDING)))
        if len(wrong):
            k = int(wrong[0])
            raise ValueError(f"{rule}.mix gave client {k} the honesty {honesty[k]}, expected a probability, 0 to 1")
    for verdict in mix.verdicts or ():
        if verdict not in tuple(Verdict):
            raise ValueError(f"{rule}.mix gave the verdict {verdict!r}, expected one of {', '.join(Verdict)}")


def _check_reduce(rule: ColumnRule, m: int) -> None:
    """Try a user's coordinate-wise rule on two coordinates before it sees millions."""
    if type(rule).__module__.startswith("honestly."):
        return
    first, last = rule.ranks(m)
    if not 0 <= first < last <= m:
        raise ValueError(f"{rule}.ranks({m}) gave ({first}, {last}), expected 0 <= first < last <= {m}")
    value = rule.reduce(np.zeros((last - first, 2)), np)
    if np.shape(value) != (2,):
        raise ValueError(
            f"{rule}.reduce gave {np.shape(value)} for {last - first} ranks of 2 coordinates, expected one value for "
            "each coordinate: (2,)"
        )


def _check_rows(step: Rule | Mixer, A: Float, geometry: Geometry) -> None:
    """Weights of a mean sum to 1; to less only where the rest can be the reference's share.

    A step that needs the reference may scale updates freely; without a reference it counts as 0.
    """
    if A.ndim != 2 or A.shape[1] != geometry.K:
        raise ValueError(
            f"{step}.mix gave a matrix of shape {A.shape}, expected a weight for each of the {geometry.K} clients in "
            f"every row: (m, {geometry.K})"
        )
    if not np.isfinite(A).all():
        raise ValueError(f"{step}.mix gave weights that are NaN or infinite")
    if "reference" in step.needs:
        return
    sums = A.sum(axis=1)
    wrong = sums > 1 + ROUNDING if geometry.has_reference else np.abs(sums - 1) > ROUNDING
    if wrong.any():
        total = float(sums[np.argmax(wrong)])
        less = ", or to less where a reference takes the rest" if geometry.has_reference else ""
        remedy = "" if geometry.has_reference else "; divide them by their sum, or pass reference="
        raise ValueError(f"{step}.mix gave weights that sum to {total:.6g}, expected 1{less}{remedy}")
