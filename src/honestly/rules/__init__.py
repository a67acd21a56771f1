"""Every rule and mixer of the package: one line each in the tables RULES and MIXERS."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from honestly.catalog import Catalog, Spec
from honestly.rules.align_ins import AlignIns
from honestly.rules.arc import ARC
from honestly.rules.batch_norm_guard import BatchNormGuard
from honestly.rules.bayesian import Bayesian
from honestly.rules.bucketing import Bucketing
from honestly.rules.bulyan import Bulyan
from honestly.rules.caf import CAF
from honestly.rules.centered_clipping import CenteredClipping
from honestly.rules.cge import CGE
from honestly.rules.clipped_clustering import ClippedClustering
from honestly.rules.deep_sight import DeepSight
from honestly.rules.dnc import DnC
from honestly.rules.fl_detector import FLDetector, FLDetectorMemory
from honestly.rules.flame import FLAME
from honestly.rules.fltrust import FLTrust
from honestly.rules.foolsgold import FoolsGold, FoolsGoldMemory
from honestly.rules.freq_fed import FreqFed
from honestly.rules.geometric_median import GeometricMedian
from honestly.rules.krum import Krum
from honestly.rules.lasa import LASA
from honestly.rules.mda import MDA
from honestly.rules.meamed import Meamed
from honestly.rules.mean import Mean
from honestly.rules.median import Median
from honestly.rules.memory import Memory
from honestly.rules.minimum_variance import MinimumVariance
from honestly.rules.monna import MoNNA
from honestly.rules.multi_krum import MultiKrum
from honestly.rules.nnm import NNM
from honestly.rules.norm_clipping import NormClipping
from honestly.rules.que import QUE
from honestly.rules.rflbat import RFLBAT
from honestly.rules.rlr import RLR
from honestly.rules.rodiloco import RoDiLoCo
from honestly.rules.rule import Mixer, Rule
from honestly.rules.sign_guard import SignGuard
from honestly.rules.smea import SMEA
from honestly.rules.smoothed_geometric_median import SmoothedGeometricMedian
from honestly.rules.static_clipping import StaticClipping
from honestly.rules.trimmed_mean import TrimmedMean

RULES: tuple[type[Rule], ...] = (
    Bayesian,
    Mean,
    Median,
    TrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    Bulyan,
    MinimumVariance,
    CenteredClipping,
    SmoothedGeometricMedian,
    MDA,
    SMEA,
    MoNNA,
    CAF,
    Meamed,
    CGE,
    NormClipping,
    DnC,
    SignGuard,
    ClippedClustering,
    FLTrust,
    FoolsGold,
    FLAME,
    RLR,
    QUE,
    RFLBAT,
    FLDetector,
    AlignIns,
    LASA,
    FreqFed,
    DeepSight,
    BatchNormGuard,
    RoDiLoCo,
)
MIXERS: tuple[type[Mixer], ...] = (
    NNM,
    Bucketing,
    ARC,
    StaticClipping,
)

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "FLAME",
    "LASA",
    "MDA",
    "MIXERS",
    "MIXER_CATALOG",
    "NNM",
    "QUE",
    "RFLBAT",
    "RLR",
    "RULES",
    "RULE_CATALOG",
    "SMEA",
    "AlignIns",
    "BatchNormGuard",
    "Bayesian",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
    "DeepSight",
    "DnC",
    "FLDetector",
    "FLDetectorMemory",
    "FLTrust",
    "FoolsGold",
    "FoolsGoldMemory",
    "FreqFed",
    "GeometricMedian",
    "Krum",
    "Meamed",
    "Mean",
    "Median",
    "MinimumVariance",
    "MoNNA",
    "MultiKrum",
    "NormClipping",
    "RoDiLoCo",
    "RuleInfo",
    "SignGuard",
    "SmoothedGeometricMedian",
    "StaticClipping",
    "TrimmedMean",
    "list_rules",
    "make",
    "make_mixer",
    "make_steps",
]


@dataclass(frozen=True, kw_only=True)
class RuleInfo:
    """What a rule or mixer is called, what it does and what it needs."""

    name: str
    kind: str
    summary: str
    reference: str
    needs: tuple[str, ...]
    settings: tuple[str, ...]
    streams: bool
    infers_honesty: bool


def list_rules() -> tuple[RuleInfo, ...]:
    """Every rule, then every mixer, with what it needs.

    Example:
        >>> [info.needs for info in list_rules() if info.name == "krum"]
        [('f',)]
    """
    return tuple(
        RuleInfo(
            name=entry.name,
            kind="rule" if issubclass(entry, Rule) else "mixer",
            summary=entry.summary,
            reference=entry.reference,
            needs=tuple(sorted(entry.needs)),
            settings=tuple(one.name for one in fields(entry) if one.init),
            streams=issubclass(entry, Rule) and entry.streams,
            infers_honesty=issubclass(entry, Rule) and entry.infers_honesty,
        )
        for entry in (*RULES, *MIXERS)
    )


def make(name: str, **settings: Any) -> Rule:
    """The rule with this snake_case name and these settings.

    A name or setting that does not exist raises ValueError, which suggests a close one and lists the allowed ones.

    Example:
        >>> make("trimmed_mean", trim=0.1)
        TrimmedMean(trim=0.1, f=None)
        >>> make("trimed_mean")
        Traceback (most recent call last):
            ...
        ValueError: unknown rule 'trimed_mean': did you mean trimmed_mean? Allowed: ...
    """
    return RULE_CATALOG.make(name, **settings)


def make_mixer(name: str, **settings: Any) -> Mixer:
    """The mixer with this snake_case name and these settings.

    Example:
        >>> make_mixer("nnm", f=4)
        NNM(f=4)
    """
    return MIXER_CATALOG.make(name, **settings)


def make_steps(text: str, *, own: bool = False) -> tuple[tuple[Mixer, ...], Rule]:
    """The mixers and the rule that a word stands for; with `own`, also classes in files, whose code is run.

    Example:
        >>> make_steps("nnm:f=4+krum:f=2")
        ((NNM(f=4),), Krum(f=2))
    """
    *mixers, rule = Spec.parse_all(text)
    return tuple(MIXER_CATALOG.build(mixer, own=own) for mixer in mixers), RULE_CATALOG.build(rule, own=own)


def _memory(value: Any) -> Memory | None:
    """A rule's memory between rounds, given by how much of the past it keeps."""
    if value is None or value is False:
        return None
    if isinstance(value, Memory):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("give the share of the past that is kept, such as 0.9")
    return Memory(forgetting=float(value))


def _no_memory(value: Any) -> None:
    if value is not None and value is not False:
        raise ValueError("it begins empty; leave the setting out")


def _no_root(value: Any) -> None:
    raise ValueError(
        "the trusted update is an array: the simulator trains it (root=100 says on how many images), in "
        "Python it is given"
    )


#: How settings that are objects are written as words.
_READ: dict[str, Callable[[Any], Any]] = {
    "Memory | None": _memory,
    "FoolsGoldMemory | None": _no_memory,
    "FLDetectorMemory | None": _no_memory,
    "RoDiLoCoMemory | None": _no_memory,
    "root": _no_root,
}
#: What papers, other libraries and this project's tables call some of the rules.
_ALIASES = {
    "fedavg": "mean", "average": "mean", "avg": "mean", "ours": "bayesian", "coordinate_median": "median",
    "trimavg": "trimmed_mean", "geomed": "geometric_median", "rfa": "geometric_median", "cclip": "centered_clipping",
}  # fmt: skip
RULE_CATALOG: Catalog[Rule] = Catalog(
    "rule", Rule, RULES, read=_READ, python="hn.", aliases=_ALIASES,
    instead={mixer.name: "it is a mixer; join a rule to it with +, as in nnm:f=2+median" for mixer in MIXERS},
)  # fmt: skip
MIXER_CATALOG: Catalog[Mixer] = Catalog(
    "mixer", Mixer, MIXERS, read=_READ, python="hn.",
    instead={rule.name: f"it is a rule; the mixers are {', '.join(mixer.name for mixer in MIXERS)}" for rule in RULES},
)  # fmt: skip


class _Package(ModuleType):
    """Keeps `hn.rules()`, the old name of `hn.list_rules()`, working, although `hn.rules` is this package now."""

    def __call__(self) -> tuple[RuleInfo, ...]:
        warnings.warn("hn.rules() is hn.list_rules() now", DeprecationWarning, stacklevel=2)
        return list_rules()


sys.modules[__name__].__class__ = _Package
