"""The old name of `honestly.sim.attacks.attack`, for attacks written against version 0.1. Version 0.3 removes it."""

import warnings

from honestly.sim.attacks.attack import *  # noqa: F403

warnings.warn(
    "honestly.sim.attacks.base is honestly.sim.attacks.attack now: import from there", DeprecationWarning, stacklevel=2
)
