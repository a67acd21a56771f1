"""Which updates of a client a buffer counts: from a version that exists and is recent enough, each of them once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from honestly.arrays import Host
from honestly.federation.differences import digest
from honestly.federation.recovery import Counted
from honestly.federation.shelf import WaitingUpdate
from honestly.sources.tree import UnusableError


def check_version(version: Any, *, newest: int, max_staleness: int) -> None:
    """Raise `UnusableError` unless the version exists and is at most that many versions old."""
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise UnusableError(f"comes from version {version!r}, which is not a version")
    if version > newest:
        raise UnusableError(f"comes from version {version}, but the newest is {newest}")
    if newest - version > max_staleness:
        raise UnusableError(
            f"comes from version {version}, {newest - version} versions ago; "
            f"at most max_staleness={max_staleness} are allowed"
        )


def check_once(
    change: Mapping[str, Host], version: int, *, counted: Counted | None, waiting: WaitingUpdate | None
) -> None:
    """Raise `UnusableError` if this update, or a newer one of its client, was already counted or is waiting."""
    last, sent = counted or (-1, "")
    if version < last:
        raise UnusableError(f"its newer update from version {last} was already counted")
    if version == last and digest(change) == sent:
        raise UnusableError(f"this update from version {last} was already counted")
    if waiting is not None and version < waiting.version:
        raise UnusableError(f"its newer update from version {waiting.version} is already in the buffer")
