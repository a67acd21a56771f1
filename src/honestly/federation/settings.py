"""A referee from plain values, as they appear in the configuration files of frameworks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from honestly.catalog import Spec
from honestly.federation.referee import Doubt, Referee, Sizes
from honestly.printable import brief_repr
from honestly.rules import RULE_CATALOG, make_mixer
from honestly.rules.memory import Memory
from honestly.rules.rule import Mixer


def referee_of(
    *,
    rule: str = "bayesian",
    settings: Mapping[str, Any] | None = None,
    pre: Sequence[Any] | str | None = None,
    quorum: float = 0.5,
    doubt: Doubt = "accept",
    history: str = "",
    forgetting: float = 0.0,
    buffers: Any = "follow",
    server: str = "",
    sizes: Sizes = "use",
    names: Mapping[Any, str] | None = None,
    run: str = "",
    log: Callable[[int, str], None] | None = None,
) -> Referee:
    """A referee from names and numbers; ValueError names what is wrong.

    Args:
        rule: a rule, with its settings and mixers if need be: "krum:f=2", "nnm:f=2+multi_krum:f=2,keep=8".
        settings: more settings of the rule, such as `{"f": 2}`.
        pre: mixers applied before those of `rule`: text, or a list of texts and `[name, settings]` pairs.
        quorum: more than this share of the clients must be usable, or the old model is kept.
        doubt: "keep" also keeps the old model if the rule says that its result may be wrong; "accept" only marks the
            round.
        history: a folder for `rounds.jsonl` and `rounds.csv`; "" for none.
        forgetting: above 0, suspicion is carried from round to round (rule "bayesian"); the share that is kept per
            round.
        buffers: how to treat BatchNorm's running means and variances: "follow", "judge" or "ignore".
        server: the server's optimiser, such as "fedadam:lr=0.1"; "" for none.
        sizes: "use" weighs clients by the sizes that they report, up to a cap; "ignore" counts every client once.
        names: from client id to the name that logs and the history use.
        run: the name of the run, for the history and the title of its report.
        log: receives a level of `logging` and a sentence.

    Example:
        >>> referee_of(rule="multi_krum", settings={"f": 2}).rule.f
        2
    """
    for name, value, kind, expected in (
        ("rule", rule, str, "text, such as 'krum:f=2'"),
        ("settings", settings or {}, Mapping, "a mapping, such as {'f': 2}"),
    ):
        if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{name} is {brief_repr(value)}; expected {expected}")
    before = [_mixer(one) for one in (map(str, Spec.parse_all(pre)) if isinstance(pre, str) and pre else pre or ())]
    *behind, last = Spec.parse_all(rule)
    chosen = {**last.settings, **(settings or {})}
    if forgetting:
        if "memory" not in RULE_CATALOG.settings(RULE_CATALOG.find(last.name)):
            raise ValueError(f"forgetting={forgetting}: only the rule 'bayesian' has such a memory, not {last.name!r}")
        chosen["memory"] = Memory(forgetting=forgetting)
    more: dict[str, Any] = {} if log is None else {"log": log}
    return Referee(
        RULE_CATALOG.build(Spec(last.name, chosen), own=False), pre=[*before, *map(str, behind)], quorum=quorum,
        doubt=doubt, history=history or None, buffers=buffers, server=server, sizes=sizes, names=names, run=run, **more,
    )  # fmt: skip


def _mixer(one: Any) -> Mixer | str:
    """A mixer from one entry of `pre`."""
    if isinstance(one, str):
        return one
    name, settings = one if isinstance(one, list | tuple) and len(one) == 2 else (None, None)
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise ValueError(f"pre has {brief_repr(one)}; expected a mixer, such as 'nnm:f=2', or a [name, settings] pair")
    return make_mixer(name, **settings)


def common_names(updates: Iterable[Any]) -> set[Any]:
    """The tensors that most updates have: a single client can neither add nor remove one.

    Example:
        >>> sorted(common_names([{"w": 1, "b": 2}, {"w": 1, "b": 2}, {"w": 1, "x": 2}]))
        ['b', 'w']
    """
    mappings = [update for update in updates if isinstance(update, Mapping)]
    votes = Counter(name for update in mappings for name in update)
    return {name for name, count in votes.items() if 2 * count > len(mappings)}
