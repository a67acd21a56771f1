"""Every attack by name: `ATTACKS`, `make` and `attacks`. One attack is one file.

>>> make("sign_flip", gamma=2.0)
SignFlip(gamma=2.0)
"""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.base import Attack, Backdoor, DataAttack, Phase, UpdateAttack, View
from honestly.sim.attacks.label_flip import LabelFlip
from honestly.sim.attacks.none import NoAttack
from honestly.sim.attacks.random import Random, RandomColluding
from honestly.sim.attacks.sign_flip import SignFlip

__all__ = ["ATTACKS", "Attack", "Backdoor", "DataAttack", "Phase", "UpdateAttack", "View", "attacks", "make"]

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        NoAttack,
        SignFlip,
        Random,
        RandomColluding,
        LabelFlip,
        BadNets,
    )
}


def attacks() -> tuple[type[Attack], ...]:
    """Every attack's class, with its ``name``, ``summary``, ``reference`` and ``knows``."""
    return tuple(ATTACKS.values())


def settings_of(attack: type[Attack]) -> dict[str, Any]:
    """An attack's settings and their defaults.

    >>> settings_of(ATTACKS["sign_flip"])
    {'gamma': 4.0}
    """
    return {field.name: field.default for field in fields(attack)}


def make(name: str, **settings: Any) -> Attack:
    """The attack of that name; a misspelt name or setting is a ValueError that lists the close and allowed ones.

    >>> make("sign_flp")
    Traceback (most recent call last):
    ValueError: unknown attack 'sign_flp': did you mean sign_flip? Allowed: none, sign_flip, ...
    """
    if name not in ATTACKS:
        raise ValueError(_unknown("attack", name, list(ATTACKS)))
    allowed = list(settings_of(ATTACKS[name]))
    for setting in settings:
        if setting not in allowed:
            raise ValueError(_unknown(f"setting of attack {name}", setting, allowed))
    return ATTACKS[name](**settings)


def _unknown(what: str, given: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(given, allowed, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"unknown {what} '{given}': {hint}Allowed: {', '.join(allowed) or 'none'}"
