"""Every rule and mixer of the package: one line each in the tables RULES and MIXERS."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from types import ModuleType
from typing import Any, TypeVar

from honestly.rules.align_ins import AlignIns
from honestly.rules.arc import ARC
from honestly.rules.base import Mixer, Rule
from honestly.rules.bayesian import Bayesian
from honestly.rules.bucketing import Bucketing
from honestly.rules.bulyan import Bulyan
from honestly.rules.caf import CAF
from honestly.rules.centered_clipping import CenteredClipping
from honestly.rules.cge import CGE
from honestly.rules.clipped_clustering import ClippedClustering
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
from honestly.rules.minimum_variance import MinimumVariance
from honestly.rules.monna import MoNNA
from honestly.rules.multi_krum import MultiKrum
from honestly.rules.nnm import NNM
from honestly.rules.norm_clipping import NormClipping
from honestly.rules.que import QUE
from honestly.rules.rflbat import RFLBAT
from honestly.rules.rlr import RLR
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
    "NNM",
    "QUE",
    "RFLBAT",
    "RLR",
    "RULES",
    "SMEA",
    "AlignIns",
    "Bayesian",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "ClippedClustering",
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
    "RuleInfo",
    "SignGuard",
    "SmoothedGeometricMedian",
    "StaticClipping",
    "TrimmedMean",
    "list_rules",
    "make",
    "make_mixer",
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
            settings=_settings(entry),
            streams=issubclass(entry, Rule) and entry.streams,
            infers_honesty=issubclass(entry, Rule) and entry.infers_honesty,
        )
        for entry in (*RULES, *MIXERS)
    )


def make(name: str, **settings: Any) -> Rule:
    """The rule with this snake_case name and these settings.

    A name or setting that does not exist raises ValueError with what was probably meant and what is allowed.

    Example:
        >>> make("trimmed_mean", trim=0.1)
        TrimmedMean(trim=0.1, f=None)
        >>> make("trimed_mean")
        Traceback (most recent call last):
            ...
        ValueError: there is no rule 'trimed_mean'; did you mean 'trimmed_mean'? Rules: ...
    """
    return _make(RULES, "rule", name, settings)


def make_mixer(name: str, **settings: Any) -> Mixer:
    """The mixer with this snake_case name and these settings.

    Example:
        >>> make_mixer("nnm", f=4)
        NNM(f=4)
    """
    return _make(MIXERS, "mixer", name, settings)


_T = TypeVar("_T", Rule, Mixer)


def _make(table: tuple[type[_T], ...], kind: str, name: str, settings: dict[str, Any]) -> _T:
    entries = {entry.name: entry for entry in table}
    if name not in entries:
        raise ValueError(
            f"there is no {kind} {name!r}{_meant(name, entries)} {kind.capitalize()}s: {', '.join(sorted(entries))}"
        )
    entry = entries[name]
    allowed = _settings(entry)
    for setting in settings:
        if setting not in allowed:
            raise ValueError(
                f"{kind} {name!r} has no setting {setting!r}{_meant(setting, allowed)} "
                f"Settings: {', '.join(allowed) or 'none'}"
            )
    missing = [field.name for field in fields(entry) if _required(field) and field.name not in settings]
    if missing:
        wanted = " and ".join(f"{setting}=..." for setting in missing)
        raise ValueError(f"{kind} {name!r} must be told {' and '.join(missing)}: give {wanted}")
    return entry(**settings)


def _required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def _settings(entry: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(entry) if field.init)


def _meant(word: str, words: Any) -> str:
    close = get_close_matches(str(word), list(words), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else "."


class _Package(ModuleType):
    """`hn.rules()`, the old name of `hn.list_rules()`, goes on working although `hn.rules` is this package now."""

    def __call__(self) -> tuple[RuleInfo, ...]:
        return list_rules()


sys.modules[__name__].__class__ = _Package
