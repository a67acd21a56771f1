"""Every attack by name: `ATTACKS`, `make` and `attacks`. One attack is one file.

>>> make("sign_flip", gamma=2.0)
SignFlip(gamma=2.0)
"""

from __future__ import annotations

from typing import Any

from honestly.catalog import Catalog
from honestly.sim.attacks.a3fl import A3FL
from honestly.sim.attacks.adaptive import Adaptive
from honestly.sim.attacks.alie import ALIE
from honestly.sim.attacks.attack import KNOWS, Attack, Backdoor, DataAttack, Phase, UpdateAttack, View
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.chameleon import Chameleon
from honestly.sim.attacks.critical_layers import CriticalLayers
from honestly.sim.attacks.dark_fed import DarkFed
from honestly.sim.attacks.dba import DistributedBackdoor
from honestly.sim.attacks.edge_case import EdgeCase
from honestly.sim.attacks.fang import FangKrum, FangTrimmedMean
from honestly.sim.attacks.free_rider import FreeRider
from honestly.sim.attacks.gaussian import Gaussian
from honestly.sim.attacks.hybrid_sparse import HybridSparse
from honestly.sim.attacks.iba import IBA
from honestly.sim.attacks.ipm import IPM
from honestly.sim.attacks.label_flip import LabelFlip
from honestly.sim.attacks.mimic import Mimic
from honestly.sim.attacks.min_max import MinMax, MinSum
from honestly.sim.attacks.model_replacement import ModelReplacement
from honestly.sim.attacks.mpaf import MPAF
from honestly.sim.attacks.near_duplicates import NearDuplicates
from honestly.sim.attacks.neurotoxin import Neurotoxin
from honestly.sim.attacks.none import NoAttack
from honestly.sim.attacks.not_finite import Infinite, NotANumber
from honestly.sim.attacks.poisoned_fl import PoisonedFL
from honestly.sim.attacks.random import Random, RandomColluding
from honestly.sim.attacks.rop import ROP
from honestly.sim.attacks.scaling import Scaling
from honestly.sim.attacks.sensitivity_curve import SensitivityCurve
from honestly.sim.attacks.sign_flip import SignFlip
from honestly.sim.attacks.three_d_fed import ThreeDFed
from honestly.sim.attacks.xfed import XFED

__all__ = ["ATTACKS", "KNOWS", "Attack", "Backdoor", "DataAttack", "Phase", "UpdateAttack", "View", "attacks", "make"]

ATTACKS: Catalog[Attack] = Catalog(
    "attack",
    Attack,
    (
        NoAttack,
        SignFlip,
        Random,
        RandomColluding,
        LabelFlip,
        BadNets,
        ALIE,
        IPM,
        MinMax,
        MinSum,
        FangKrum,
        FangTrimmedMean,
        Mimic,
        MPAF,
        ROP,
        Gaussian,
        NotANumber,
        Infinite,
        Scaling,
        FreeRider,
        NearDuplicates,
        DistributedBackdoor,
        ModelReplacement,
        EdgeCase,
        PoisonedFL,
        XFED,
        Neurotoxin,
        CriticalLayers,
        A3FL,
        IBA,
        Chameleon,
        ThreeDFed,
        DarkFed,
        HybridSparse,
        SensitivityCurve,
        Adaptive,
    ),
    aliases={
        "noise": "random", "badnets": "backdoor", "little_is_enough": "alie", "inner_product": "ipm",
    },
)  # fmt: skip


def attacks() -> tuple[type[Attack], ...]:
    """Every attack's class, with its ``name``, ``summary``, ``reference`` and ``knows``."""
    return tuple(ATTACKS.values())


def settings_of(attack: type[Attack]) -> dict[str, Any]:
    """An attack's settings and their defaults.

    >>> settings_of(ATTACKS["sign_flip"])
    {'gamma': 4.0}
    """
    return ATTACKS.settings(attack)


def make(name: str, **settings: Any) -> Attack:
    """The attack with this name. A misspelt name or setting raises ValueError and lists close and allowed ones.

    >>> make("sign_flp")
    Traceback (most recent call last):
    ValueError: unknown attack 'sign_flp': did you mean sign_flip? Allowed: none, sign_flip, ...
    """
    return ATTACKS.make(name, **settings)
