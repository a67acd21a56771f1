"""The old name of `honestly.rules.rule`, for rules written against version 0.1. Version 0.3 removes it."""

import warnings

# each by name: `honestly export scaleout` follows the definitions of a module, and a star hides them
from honestly.rules.rule import (
    AveragingRule,
    ColumnRule,
    Geometry,
    GramGeometry,
    Mix,
    Mixer,
    NearestRule,
    Rule,
    TooFewClientsError,
    require,
    squared_distances,
)

__all__ = ["AveragingRule", "ColumnRule", "Geometry", "GramGeometry", "Mix", "Mixer", "NearestRule", "Rule"]
__all__ += ["TooFewClientsError", "require", "squared_distances"]

warnings.warn("honestly.rules.base is honestly.rules.rule now: import from there", DeprecationWarning, stacklevel=2)
