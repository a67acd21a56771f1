"""The public function: updates in, a robust average and whom it believed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from honestly.engine import Pipeline, run
from honestly.result import Aggregate, AggregationError, Float, Verdict
from honestly.rules.rule import Mixer, Rule
from honestly.sources import Source, open_source
from honestly.sources.groups import Groups, identities


def aggregate(
    updates: Any,
    rule: Rule | str = "bayesian",
    *,
    reference: Any = None,
    pre: Sequence[Mixer | str] | Mixer | str = (),
    sizes: Any = None,
    groups: Any = None,
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
        sizes: what the clients say of their sizes: a sequence, or a mapping by id. Rules that weigh clients use them up
            to a cap that leaves no minority a majority of the weight, see docs/explanation/sizes.md; `Mean` has a
            setting of its own; medians and their kin, and rules behind mixers, count heads. "ignore" or None: all
            clients are the same. What was claimed and used is in `diagnostics["claimed_shares"]`, `["used_shares"]`.
        groups: for updates that stand for several clients each (edge servers, cohorts of secure aggregation): how many,
            in order or by id, or `hn.Groups(counts, sums=True)` where they are sums. The groups are judged, and weighed
            by their counts unless `sizes` says otherwise: see docs/how-to/groups.md.
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
    grouped = None if groups is None else Groups.of(groups)
    ids = identities(updates)
    if grouped is not None and ids is not None:
        updates = grouped.means(updates, ids)
        sizes = grouped.ordered_counts(ids) if sizes is None else sizes
    source = open_source(updates, reference=reference, root=pipeline.rule.root, out=out, layers=layers, buffers=buffers)
    try:
        if not source.ids:
            raise AggregationError("there are no clients to average")
        pipeline.check(len(source.ids))
        found = run(source, pipeline, _sizes(sizes, source), explain=explain)
        return found if grouped is None else _of_groups(found, grouped.ordered_counts(source.ids))
    finally:
        source.close()


def _of_groups(found: Aggregate, counts: Float) -> Aggregate:
    """The same, saying how many clients are behind each group and behind those that are believed."""
    lost = [verdict in (Verdict.ACCUSED, Verdict.EXCLUDED) for verdict in found.verdicts]
    believed = float(np.nansum(np.where(lost, 0.0, counts)))
    reasons = {
        name: f"its number of clients is none; {reason}" if np.isnan(counts[found.clients.index(name)]) else reason
        for name, reason in found.reasons.items()
    }
    more = {"group_counts": counts, "clients_believed": believed}
    return replace(found, reasons=reasons, diagnostics={**found.diagnostics, **more})


def _sizes(sizes: Any, source: Source) -> Float | None:
    """(K,) sizes by position. What a client says of itself may be nonsense: rules that use sizes expect that."""
    if sizes is None or (isinstance(sizes, str) and sizes == "ignore"):
        return None
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise ValueError(f"sizes is {sizes!r}; expected a number for each client, in order or by id, or 'ignore'")
    listed = [sizes.get(name, np.nan) for name in source.ids] if isinstance(sizes, Mapping) else list(sizes)
    if len(listed) != len(source.ids):
        raise ValueError(f"sizes has {len(listed)} entries for {len(source.ids)} clients")
    return np.array([_number(size) for size in listed])


def _number(size: Any) -> float:
    try:
        return float(size)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
