"""Every rule of the package that a suite can judge, as the word `all` and the leaderboard name them."""

from __future__ import annotations

from honestly.rules import RULE_CATALOG
from honestly.studies.suites.own import contestant

#: Rules that search, exactly unless their work is limited: for many clients that would take too long.
FORMS = {name: f"{name}:work=20000" for name in ("mda", "smea", "minimum_variance")}


def all_rules() -> list[str]:
    """The words of these rules.

    >>> "monna" in all_rules(), "mda:work=20000" in all_rules()
    (False, True)
    """
    return [FORMS.get(name, name) for name in RULE_CATALOG if _judgeable(name)]


def _judgeable(name: str) -> bool:
    try:
        contestant(name)
    except ValueError:  # it needs what a suite does not have
        return False
    return True
