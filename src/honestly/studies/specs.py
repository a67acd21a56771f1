"""Rules in a study, as written on the command line: `nnm+median`, `bayesian:variant=paper`, `mine.py:Rule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from honestly.catalog import Catalog, Spec
from honestly.engine import Pipeline
from honestly.lazy import cached_property
from honestly.rules import MIXER_CATALOG, RULE_CATALOG
from honestly.rules.rule import ColumnRule, Mixer, Rule
from honestly.sim.attacks import ATTACKS, Attack


def words(spec: str) -> tuple[str, dict[str, Any]]:
    """A name and its settings.

    >>> words("alie:z=1.5")
    ('alie', {'z': 1.5})
    """
    parsed = Spec.parse(spec)
    return parsed.name, dict(parsed.settings)


def attack_of(spec: str) -> Attack:
    """Build an attack from text such as "alie:z=1.5"."""
    return ATTACKS.build(spec)


@dataclass(frozen=True)
class Contestant:
    """A rule, possibly behind mixers, with the number of attackers that it is told, right or wrong."""

    spec: str

    @cached_property
    def parts(self) -> tuple[tuple[type[Rule] | type[Mixer], dict[str, Any]], ...]:
        """The mixers in order and then the rule, with their settings."""
        *mixers, rule = Spec.parse_all(self.spec)
        return (*(_part(MIXER_CATALOG, mixer) for mixer in mixers), _part(RULE_CATALOG, rule))

    @property
    def needs_f(self) -> bool:
        """Whether a part needs f and has not been given a fixed one."""
        return any(_takes_f(part) and "f" not in settings for part, settings in self.parts)

    @property
    def knows(self) -> str:
        """What the rule is told that a server rarely knows: "f", "root", "trusted client", or "nothing"."""
        what = ["f"] if self.needs_f else []
        what += [need for need in ("root", "trusted client") if any(need in part.needs for part, _ in self.parts)]
        return ", ".join(what) or "nothing"

    @property
    def on_gram(self) -> bool:
        """Whether the rule uses Gram matrices only: neither coordinates nor an update of the server's own."""
        parts = [part for part, _ in self.parts]
        return not any(
            issubclass(part, ColumnRule) or {"root", "signs", "updates", "buffers"} & part.needs for part in parts
        )

    @property
    def infers_honesty(self) -> bool:
        """Whether the rule says how probable it is that a client is honest."""
        rule = self.parts[-1][0]
        return issubclass(rule, Rule) and rule.infers_honesty

    @property
    def is_own(self) -> bool:
        """Whether a part is code of the user's own."""
        return any(not part.__module__.startswith("honestly.") for part, _ in self.parts)

    def accepts(self, *, K: int, f: int, root: Any) -> bool:
        """Whether the parts accept K clients for some f up to this one."""
        try:
            self.build(K=K, f=f, root=root)
        except ValueError:
            return False
        return True

    def build(self, *, K: int, f: int, root: Any) -> tuple[Pipeline, int]:
        """Mixers and rule, and the f that they were told: the largest up to ``f`` that they accept with K clients."""
        for count in range(min(f, K), -1, -1):  # more than all clients is accepted by no rule
            try:
                *mixers, rule = (self._step(part, settings, count, root) for part, settings in self.parts)
                for step in (*mixers, rule):
                    step.check(K)
            except ValueError:
                if count == 0:
                    raise
                continue
            return Pipeline(tuple(mixers), rule), count
        raise ValueError(f"f = {f}: must be at least 0")

    def _step(self, part: type[Rule] | type[Mixer], settings: Mapping[str, Any], f: int, root: Any) -> Any:
        arguments = dict(settings)
        if _takes_f(part):
            arguments.setdefault("f", f)
        if "root" in part.needs:
            arguments.setdefault("root", root)
        return part(**arguments)


def _takes_f(part: type[Rule] | type[Mixer]) -> bool:
    return "f" in {field.name for field in fields(part)}


def _part(catalog: Catalog[Any], spec: Spec) -> tuple[type[Any], dict[str, Any]]:
    """The class and its settings; it is instantiated once the number of attackers is known."""
    entry = catalog.find(spec.name, own=True)
    catalog.check_settings(entry, spec.name, spec.settings)
    return entry, catalog.convert(entry, spec.settings, key=catalog.kind)
