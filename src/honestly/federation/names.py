"""Readable names of clients: node ids are 64-bit numbers, but logs and reports should name the hospital."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from honestly.printable import printable
from honestly.result import ClientId

#: A mapping from id to name, or a function of the id.
Naming: TypeAlias = Mapping[Any, Any] | Callable[[Any], Any]

LONGEST = 60
logger = logging.getLogger("honestly.federation")


class Names:
    """One label per client id: its name if it has one, else the id. Labels are printable, at most 60 characters long,
    and unique.

    Names may be untrusted (a node's own configuration), and two clients may claim the same name. Then their ids are
    appended: to all of them if names come from a mapping, else to those that come later.

    Example:
        >>> names = Names({1: "Uppsala", 2: "Lund", "3": "Lund"})
        >>> [names(k) for k in (1, 2, 3, 4)]
        ['Uppsala', 'Lund (2)', 'Lund (3)', '4']
    """

    def __init__(self, naming: Naming | None = None) -> None:
        if naming is not None and not isinstance(naming, Mapping) and not callable(naming):
            raise ValueError(
                f"names is {str(naming)[:100]!r}, expected a mapping from client id to name or a function of the id"
            )
        self._naming = naming
        self._labels: dict[ClientId, str] = {}
        self._used: set[str] = set()
        listed = list(naming.values()) if isinstance(naming, Mapping) else []
        self._shared = {name for name, times in Counter(map(clean_name, listed)).items() if times > 1}

    def __bool__(self) -> bool:
        return self._naming is not None

    def __call__(self, client: ClientId) -> str:
        """The client's label; the same in every round."""
        if not self:
            return str(client)
        known = self._labels.get(client)
        if known is None:
            known = self._labels[client] = self._unique_label(client)
            self._used.add(known)
        return known

    def with_id(self, client: ClientId) -> str:
        """Label and id, for the log: people know the name, the framework knows the id."""
        if not self:
            return str(client)
        label, own = self(client), clean_name(client)
        return label if own in label else f"{label} [{own}]"

    def _unique_label(self, client: ClientId) -> str:
        own, name = clean_name(client) or "?", self._name(client)
        label = own if not name else f"{name} ({own})" if name in self._shared else name
        if label not in self._used:
            return label
        label, number = f"{name or own} ({own})", 2
        while label in self._used:
            label, number = f"{name or own} ({own}, {number})", number + 1
        return label

    def _name(self, client: ClientId) -> str:
        naming = self._naming
        try:
            if isinstance(naming, Mapping):
                name = naming.get(client, naming.get(str(client)))
            else:
                assert naming is not None
                name = naming(client)
        except Exception:
            logger.exception("names failed for client %s; its id is used", printable(client)[:LONGEST])
            return ""
        return "" if name is None else clean_name(name)


def clean_name(name: Any) -> str:
    """A name on one line, printable and at most 60 characters long."""
    text = " ".join(printable(name).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def read_names(file: str) -> dict[str, str]:
    """The mapping in a JSON file. Raises ValueError, naming the file, if it holds something else."""
    try:
        names = json.loads(
            Path(file).read_text(encoding="utf-8-sig")
        )  # some editors put a mark before the first letter
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"names {file}: it is not JSON ({error})") from error
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f'names {file}: expected one JSON object from client id to name, as in {{"17": "Uppsala"}}')
    return names
