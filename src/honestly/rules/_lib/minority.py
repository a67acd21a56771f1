"""What rules and mixers share that withstand f attackers as long as these are a minority."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Minority:
    """``f`` attackers among K >= 2f + 1 clients. List it before `Rule` or `Mixer` among the bases.

    >>> Minority(f=2).minimum()
    5
    """

    f: int = field(metadata={"whole": True, "least": 0})

    bound: ClassVar[str] = "2f+1"

    def minimum(self) -> int:
        """2f + 1."""
        return 2 * self.f + 1
