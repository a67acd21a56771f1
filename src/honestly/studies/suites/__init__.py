"""Named, versioned suites of recorded populations, so everybody judges rules by the same data.

A suite is a specification (a TOML file here), which never changes once it is published, and a recording that one
command makes of it (`honestly.studies.suites.make`, which needs PyTorch). Two of them come with the package.
"""

from __future__ import annotations

from honestly.studies.suites.judge import judge
from honestly.studies.suites.sandbox import RuleError
from honestly.studies.suites.spec import SUITES, Suite, load
from honestly.studies.suites.standings import Standing

__all__ = ["SUITES", "RuleError", "Standing", "Suite", "judge", "load"]
