"""What a user can turn off by an environment variable."""

from __future__ import annotations

import os


def is_off(name: str) -> bool:
    """Whether the variable says no."""
    return os.environ.get(name, "1").lower() in ("0", "no", "off", "false")
