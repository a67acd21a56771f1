"""The public function: updates in, a robust average and whom it believed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from honestly.engine import Pipeline, run
from honestly.result import Aggregate, AggregationError, Float
from honestly.rules.base import Mixer, Rule
from honestly.sources import Source, open_source


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
        rule: a rule or its name, see `hn.list_rules()`.
        reference: the previous global model, in the same container as one client's update. Clients whose layout
            differs from it are refused.
        pre: mixers (or their names) applied in turn before the rule.
        sizes: what the clients say of their sizes: a sequence, or a mapping by id. Ignored unless the rule uses sizes.
        layers: for updates that are one flat array each, the sizes of the tensors in it, in order (or a mapping from
            name to size), so each is judged by itself. State dicts, lists of arrays and files know theirs.
        buffers: what becomes of tensors that are statistics and no parameters: BatchNorm's running means and
            variances, known by their names. "follow" does not judge by them and averages them with the weights found
            on the parameters; "judge" takes them for parameters; "ignore" does not average them: the result keeps
            those of the reference, or without one those of a central client that is believed. Where names do not tell,
            pass a torch module that has them, or their names: they follow then.
        out: for updates from files, where the result is written: a `.safetensors` or `.npz` file or a folder, which
            appears at once when it is complete. `value` is then its path.
        explain: measure, in one more pass, how far each client is from the result in each tensor: see
            `diagnostics["distance"]`, (K,), and `diagnostics["layer_distances"]`, (K,) squared distances by tensor.
            Rules that weigh clients by their distances give the first without that pass.

    Returns:
        An `Aggregate`; `value` has the container, dtype and device of one client's update. A client that cannot be used
        is in `excluded`, with the reason in `reasons`; `verdicts` says in a word what is thought of each.

    Raises:
        ValueError: an argument is wrong; the message names it, its value and the bound.
        AggregationError: no majority of the clients is usable, or fewer than the rule needs.

    Example:
        >>> import numpy as np, honestly as hn
        >>> updates = 1 + np.random.default_rng(0).normal(size=(10, 1000))
        >>> updates[7:] *= -4
        >>> out = hn.aggregate(updates)
        >>> out.accused
        (7, 8, 9)
    """
    pipeline = Pipeline.of(rule, pre)
    source = open_source(updates, reference=reference, root=pipeline.rule.root, out=out, layers=layers, buffers=buffers)
    try:
        if not source.ids:
            raise AggregationError("there are no clients to average")
        pipeline.check(len(source.ids))
        return run(source, pipeline, _sizes(sizes, source), explain=explain)
    finally:
        source.close()


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
