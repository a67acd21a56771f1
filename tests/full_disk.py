"""A disk without space, for tests that patch the function that writes."""

from __future__ import annotations

import errno
from typing import Any, NoReturn


def full(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")
