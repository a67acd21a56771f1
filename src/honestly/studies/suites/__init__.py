"""Named, versioned suites of recorded populations: what a rule is judged by, the same for everybody.

A suite is a specification (a TOML file here), which never changes once it is published, and a recording that one
command makes of it. The small one comes with the package.
"""

from __future__ import annotations

from honestly.studies.suites.judge import Standing, judge
from honestly.studies.suites.make import make
from honestly.studies.suites.own import RuleError
from honestly.studies.suites.spec import SUITES, Suite, load

__all__ = ["SUITES", "RuleError", "Standing", "Suite", "judge", "load", "make"]
