"""The engine: source -> Gram matrix -> rule -> weights -> value, in two passes over the data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from honestly.passes import Passes, Verdict, passes_over, picked
from honestly.result import Aggregate, AggregationError, Float
from honestly.rules import make, make_mixer
from honestly.rules.base import ColumnRule, Geometry, GramGeometry, Mix, Mixer, Rule
from honestly.sources import Source, open_source
from honestly.survey import FaultFoundError, StreamGeometry, Survey

# From this many clients on, a rule that can iterates on residuals: the Gram matrix costs K^2 d, a step K d.
# Measured by benchmarks/crossover.py, which prints the time of both ways for rising K.
STREAM_FROM = 1500


def aggregate(
    updates: Any,
    rule: Rule | str = "bayesian",
    *,
    reference: Any = None,
    pre: Sequence[Mixer | str] | Mixer | str = (),
    sizes: Any = None,
    layers: Any = None,
    buffers: Any = "follow",
    out: Any = None,
    explain: bool = False,
) -> Aggregate:
    """The robust average of K clients' updates, and whom it believed.

    Args:
        updates: a `(K, d)` array (NumPy, torch, JAX, CuPy), a sequence of K state dicts, lists of arrays or arrays,
            a sequence of K paths of checkpoints (or `hn.Checkpoints`), or a mapping from client id to any of these.
            Never modified, never copied whole.
        rule: a rule or its name, see `hn.rules()`.
        reference: the previous global model, in the same container as one client's update. Clients whose layout
            differs from it are refused.
        pre: mixers (or their names) applied in turn before the rule.
        sizes: what the clients say of their sizes: a sequence, or a mapping by id. Ignored unless the rule uses sizes.
        layers: for updates that are one flat array each, the sizes of the tensors in it, in order (or a mapping from
            name to size), so that each is judged by itself. State dicts, lists of arrays and files know theirs.
        buffers: what becomes of tensors that are statistics and no parameters: BatchNorm's running means and
            variances, known by their names. "follow" does not judge by them and averages them with the weights found
            on the parameters; "judge" takes them for parameters; "ignore" does not average them: the result keeps
            those of the reference, or without one those of a central client that is believed. Where names do not tell,
            pass a torch module that has them, or their names: they follow then.
        out: for updates from files, where the result is written: a `.safetensors` or `.npz` file or a folder, which
            appears at once when it is complete. `value` is then its path.
        explain: measure, in one more pass, how far each client is from the result in each tensor: see
            `diagnostics["distance"]`, (K,), and `diagnostics["layers"]`, (K,) squared distances by tensor. Rules that
            weigh clients by their distances give the first without that pass.

    Returns:
        An `Aggregate`; `value` has the container, dtype and device of one client's update. A client that cannot be used
        is in `excluded`, with the reason in `reasons`.

    Raises:
        ValueError: an argument is wrong; the message names it, its value and the bound.
        AggregationError: no majority of the clients is usable, or fewer than the rule needs.

    Example:
        >>> import numpy as np, honestly as hn
        >>> updates = np.random.default_rng(0).normal(size=(10, 1000))
        >>> updates[7:] *= -4
        >>> out = hn.aggregate(updates)
        >>> [int(k) for k in np.flatnonzero(out.honesty < 0.5)]
        [7, 8, 9]
    """
    rule = make(rule) if isinstance(rule, str) else rule
    mixers = [make_mixer(step) if isinstance(step, str) else step for step in _as_steps(pre)]
    _check_steps(rule, mixers)
    source = open_source(updates, reference=reference, root=rule.root, out=out, layers=layers, buffers=buffers)
    try:
        if not source.ids:
            raise AggregationError("there are no clients to average")
        for step in (mixers[0] if mixers else rule,):  # a later step sees the mixer's output, and checks it itself
            step.check(len(source.ids))
        return _Run(source, rule, mixers, _sizes(sizes, source), explain).result()
    finally:
        source.close()


class _Run:
    """One aggregation under way."""

    def __init__(
        self, source: Source, rule: Rule, mixers: Sequence[Mixer], sizes: Float | None, explain: bool = False
    ) -> None:
        self.source, self.rule, self.mixers, self.sizes, self.explain = source, rule, mixers, sizes, explain
        if not any(leaf.size for leaf in source.leaves):
            raise AggregationError(*_nothing_to_average(source))
        self.passes: Passes = passes_over(source)
        self.survey = Survey(source, self.passes)
        self._require()

    def result(self) -> Aggregate:
        """Screen, decide, average; once more if the values themselves show a fault that the first look missed."""
        while True:
            try:
                mixing, mix = self._decide()
            except FaultFoundError:
                self._require()
                continue
            values, verdict = self._values(mixing, mix)
            found = self._found(mixing, mix)  # while a device may still be at work on the values
            fine = verdict()
            suspects = [k for k in self.source.faults() if k in self.survey.usable] if fine else self.survey.usable
            if not suspects or not self.survey.screen(suspects):
                if not fine:
                    self.survey.check_reference()
                return self._report(found, values)
            self._require()

    def _require(self) -> None:
        first = self.mixers[0] if self.mixers else self.rule
        self.survey.require(first.minimum(), first)

    def _decide(self) -> tuple[Float | None, Mix]:
        """The mixers' matrix (None if there is none) and the rule's decision on the mixtures."""
        geometry = self._geometry()
        self._require()
        measured = isinstance(geometry, GramGeometry) and any(step.gram_needed for step in [*self.mixers, self.rule])
        self._gram = geometry if measured else None
        mixing: Float | None = None
        for mixer in self.mixers:
            self._require_mixtures(mixer, geometry.K)
            A = mixer.mix(geometry)
            mixing = A if mixing is None else A @ mixing
            assert isinstance(geometry, GramGeometry)
            geometry = replace(geometry.mixed(A), signs=self._signs(mixing))
        self._require_mixtures(self.rule, geometry.K)
        mix = self.rule.mix(geometry)
        self._check_mix(mix, geometry.K)
        return mixing, mix

    def _require_mixtures(self, step: Rule | Mixer, K: int) -> None:
        """Too few mixtures are the caller's mistake (a ValueError of the step's own), unless clients were refused."""
        if self.survey.reasons and step.minimum() > K:
            why = f"{step} needs at least {step.minimum()} clients or mixtures of them, but {K} are left"
            raise AggregationError(self.survey.with_reasons(why), self.survey.named_reasons())

    def _check_mix(self, mix: Any, K: int) -> None:
        """A rule of the user's own may give anything; weights that are no numbers would give a model that is none."""
        if not isinstance(mix, Mix):
            raise ValueError(f"{self.rule}.mix returned a {type(mix).__name__}, expected a Mix")
        if isinstance(self.rule, ColumnRule) and not self.rule.gram_needed:
            return  # the identity, which is not multiplied
        A = np.asarray(mix.matrix)
        if A.ndim != 2 or A.shape[1] != K or not math.isfinite(float(A.sum())):
            raise ValueError(f"{self.rule}.mix gave a matrix of shape {A.shape}, expected (m, {K}) finite weights")

    def _geometry(self) -> Geometry:
        steps = [*self.mixers, self.rule]
        if not any(step.gram_needed for step in steps):
            return self._bare_geometry()
        if self.rule.streams and not self.mixers and len(self.survey.usable) >= STREAM_FROM:
            return StreamGeometry(self.survey, self.sizes)
        return self.survey.measured(self._described)[0]

    def _described(self, G: Float, centre: int) -> GramGeometry:
        """The geometry with this Gram matrix; what few rules ask for takes a pass of its own."""
        reference = self.survey.K if self.source.has_reference else None
        about = None if centre == reference else (lambda: self.survey.gram_about(reference))
        root = None if self.rule.root is None else self.survey.root_products(reference)
        return GramGeometry(
            G, self.survey.ids, self._usable_sizes(), self.source.has_reference, about, self._signs(None), root
        )

    def _bare_geometry(self) -> GramGeometry:
        """K, ids and sizes for steps that ask for no more."""
        k = len(self.survey.usable)
        nothing: Float = np.broadcast_to(np.float64(0), (k, k))
        return GramGeometry(nothing, self.survey.ids, self._usable_sizes(), self.source.has_reference)

    def _signs(self, mixing: Float | None) -> Any:
        reference = self.survey.K if self.source.has_reference else None
        return lambda: self.passes.sign_counts(self.survey.usable, reference, mixing)

    def _usable_sizes(self) -> Float | None:
        return None if self.sizes is None else self.sizes[self.survey.usable]

    def _values(self, mixing: Float | None, mix: Mix) -> tuple[Sequence[Any], Verdict]:
        """The second pass: `reduce(A @ X + (1 - A 1) reference)`."""
        rows = self.survey.usable
        if isinstance(self.rule, ColumnRule):
            A = mix.matrix if self.rule.gram_needed else None
            A = mixing if A is None else A if mixing is None else A @ mixing
            chosen = None if A is None else picked(A)
            if chosen is not None:  # rows are read, not multiplied
                A, rows = None, [rows[j] for j in chosen]
            if A is not None and self.source.has_reference:
                A, rows = _with_reference(A), [*rows, self.survey.K]
            return self.passes.reduce(self.rule, A, rows)
        A = mix.matrix if mixing is None else mix.matrix @ mixing
        if self.source.has_reference and abs(1 - A.sum()) > 1e-9:
            A, rows = _with_reference(A), [*rows, self.survey.K]
        return self.passes.mix(A[0], rows)

    def _found(self, mixing: Float | None, mix: Mix) -> dict[str, Any]:
        """What the rule's decision says of each client: the fields of `Aggregate` that no value is needed for."""
        diagnostics = {**mix.diagnostics, **self.source.notes}
        weights: Float | None = None
        if not isinstance(self.rule, ColumnRule):
            own = (mix.matrix if mixing is None else mix.matrix @ mixing)[0]
            total = float(own.sum())
            weights = self._spread(own / total if total > 0 else own)
            if abs(1 - total) > 1e-9:
                diagnostics["reference_weight"] = 1 - total
            elif self._gram is not None and not self.explain:
                distances = np.sqrt(self._gram.residuals(own))
                diagnostics.setdefault("distance", self._spread(distances, np.nan))
        honesty = None
        if mix.honesty is not None:
            honesty = self._spread(mix.honesty if mixing is None else _honesty_of_parts(mixing, mix.honesty))
        return {
            "weights": weights,
            "honesty": honesty,
            "status": mix.status,
            "steps": mix.steps,
            "diagnostics": diagnostics,
        }

    def _report(self, found: dict[str, Any], values: Sequence[Any]) -> Aggregate:
        clients, weights = self.survey.usable, found["weights"]
        if self.explain:
            found["diagnostics"] |= self._explained(values)
        votes = np.ones(len(clients)) if weights is None else weights[clients]
        integers = [
            weighted_mode(self.source.read_integers(i, clients), votes) for i in range(len(self.source.integers))
        ]
        reasons = self.survey.named_reasons()
        return Aggregate(
            value=self.source.assemble(values, integers),
            excluded=tuple(reasons),
            reasons=reasons,
            clients=self.source.ids,
            **found,
        )

    def _explained(self, values: Sequence[Any]) -> dict[str, Any]:
        """Squared distances to the result, by tensor; NaN for an excluded client, whom nothing measured."""
        whole = np.full((self.survey.K, len(self.source.leaves)), np.nan)
        whole[self.survey.usable] = self.passes.distances(self.survey.usable, values)
        layers = {leaf.name: whole[:, i] for i, leaf in enumerate(self.source.leaves)}
        return {"distance": np.sqrt(whole.sum(axis=1)), "layers": layers}

    def _spread(self, values: Float, excluded: float = 0.0) -> Float:
        """Values of the usable clients among all K: exactly 0 for an excluded one, unless told otherwise."""
        if len(values) == self.survey.K:
            return values.copy()
        whole = np.full(self.survey.K, excluded)
        whole[self.survey.usable] = values
        return whole


def _with_reference(A: Float) -> Float:
    return np.concatenate([A, 1.0 - A.sum(axis=1, keepdims=True)], axis=1)


def _honesty_of_parts(mixing: Float, honesty: Float) -> Float:
    """A client is as honest as the mixtures that it is part of, each counted by its share in them."""
    shares = mixing.sum(axis=0)
    return np.where(shares > 0, honesty @ mixing / np.where(shares > 0, shares, 1), 0.0)


def weighted_mode(values: np.ndarray, votes: Float) -> np.ndarray:
    """The value of each integer entry with most votes; the smaller one among equals. Counters stay integers."""
    if (values == values[0]).all():
        return values[0].copy()
    best, most = values[0].copy(), np.full(values.shape[1], -1.0)
    for row in values:
        count = votes @ (values == row)
        better = (count > most) | ((count == most) & (row < best))
        best, most = np.where(better, row, best), np.where(better, count, most)
    return best.astype(values.dtype)


def _as_steps(pre: Any) -> Sequence[Mixer | str]:
    if isinstance(pre, str | Mixer):
        return (pre,)
    if not isinstance(pre, Iterable):
        raise ValueError(f"pre is {pre!r}; expected a sequence of mixers such as [hn.NNM(f=4)], or of their names")
    return tuple(pre)


def _check_steps(rule: Any, mixers: Sequence[Any]) -> None:
    if not isinstance(rule, Rule):
        raise ValueError(f"rule is {rule!r}; expected a rule such as hn.Bayesian() or its name, see hn.rules()")
    for mixer in mixers:
        if not isinstance(mixer, Mixer):
            raise ValueError(f"pre holds {mixer!r}; expected mixers such as hn.NNM(f=4) or their names")


def _sizes(sizes: Any, source: Source) -> Float | None:
    """(K,) sizes by position. What a client says of itself may be nonsense: rules that use sizes expect that."""
    if sizes is None:
        return None
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise ValueError(f"sizes is {sizes!r}; expected a number for each client, in order or by id")
    listed = [sizes.get(name, np.nan) for name in source.ids] if isinstance(sizes, Mapping) else list(sizes)
    if len(listed) != len(source.ids):
        raise ValueError(f"sizes has {len(listed)} entries for {len(source.ids)} clients")
    return np.array([_number(size) for size in listed])


def _number(size: Any) -> float:
    try:
        return float(size)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _nothing_to_average(source: Source) -> tuple[str, dict[Any, str]]:
    reasons = {source.ids[k]: reason for k, reason in source.refused.items()}
    if not reasons:
        return "the updates hold no float values to average", {}
    listed = "; ".join(f"client {name!r}: {reason}" for name, reason in list(reasons.items())[:10])
    return f"none of the {len(source.ids)} clients can be used; {listed}", reasons
