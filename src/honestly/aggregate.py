"""The public function: it takes updates, and returns their robust average and a verdict about each client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from honestly.engine import EarlyStart, Pipeline, run
from honestly.result import Aggregate, AggregationError
from honestly.rules.rule import Mixer, Rule
from honestly.sources import open_source
from honestly.sources.claims import read_sizes
from honestly.sources.groups import Groups, identities


def aggregate(
    updates: Any, rule: Rule | Pipeline | str = "bayesian", *, reference: Any = None,
    pre: Sequence[Mixer | str] | Mixer | str = (), sizes: Any = None, groups: Any = None, layers: Any = None,
    buffers: Any = "follow", out: Any = None, explain: bool = False,
) -> Aggregate:  # fmt: skip
    """Return the robust average of K clients' updates, and say which clients it believed.

    Args:
        updates: a `(K, d)` array (NumPy, torch, JAX, CuPy), a sequence of K state dicts, lists of arrays or arrays,
            a sequence of K paths of checkpoints (or `hn.Checkpoints`), or a mapping from client id to any of these.
            They are not modified, and not copied as a whole.
        rule: a rule or its name, see `hn.list_rules()`; or a `Pipeline`, a rule behind mixers.
        reference: the previous global model, in the container of one client's update. Clients with another
            layout are excluded.
        pre: mixers (or their names), applied in turn before the rule.
        sizes: the clients' claimed sizes, in order or by id. Rules that weigh clients use them up to a cap
            (docs/explanation/sizes.md); coordinate-wise rules, rules behind mixers and `Mean` without `sizes=` ignore
            them.
        groups: how many clients each update represents, in order or by id, or `hn.Groups(counts, sums=True)` if the
            updates are sums (docs/how-to/groups.md). Groups are weighted by their counts unless `sizes` is given.
        layers: for flat arrays, the sizes of the tensors in one, in order or by name, so each is judged by itself.
        buffers: what to do with statistics such as BatchNorm's running means. "follow" averages them with the weights
            that follow from the parameters, "judge" treats them as parameters, "ignore" keeps those of the reference
            (without one, those of a central believed client). A torch module, or names, says which tensors these are.
        out: if the updates are files, where to write the result: a `.safetensors` or `.npz` file or a folder, which
            appears when it is complete. `value` is then its path.
        explain: measure, in one more pass, each client's distance from the result (`diagnostics["distance"]`), also
            squared by tensor (`diagnostics["layer_distances"]`).

    Returns:
        An `Aggregate`; `value` has the container, dtype and device of one client's update. A client that cannot be used
        is in `excluded`, with the reason in `reasons`; `verdicts` has one verdict per client.

    Raises:
        ValueError: an argument is wrong; the message names it, its value and the bound.
        AggregationError: no majority of the clients is usable, or fewer than the rule needs.

    Example:
        >>> import numpy as np, honestly as hn
        >>> updates = 1 + np.random.default_rng(0).normal(size=(10, 1000))
        >>> updates[7:] *= -4
        >>> hn.aggregate(updates).accused
        (7, 8, 9)
    """
    pipeline = Pipeline.of(rule, pre)
    grouping = None if groups is None else Groups.of(groups)
    if grouping is not None and (ids := identities(updates)) is not None:
        updates = grouping.means(updates, ids)
        sizes = grouping.ordered_counts(ids) if sizes is None else sizes
    plain = reference is None and sizes is None and layers is None
    with (
        EarlyStart(updates if plain else None, pipeline) as early,
        closing(
            open_source(updates, reference=reference, root=pipeline.rule.root, out=out, layers=layers, buffers=buffers)
        ) as source,
    ):
        if not source.ids:
            raise AggregationError("there are no clients to average")
        pipeline.check(len(source.ids))
        result = run(source, pipeline, read_sizes(sizes, source.ids), explain=explain, early=early)
        return result if grouping is None else grouping.describe(result)
