"""honestly: robust averaging for federated learning. It tells which clients to believe."""

from typing import TYPE_CHECKING, Any

from honestly import rules
from honestly._version import __version__
from honestly.aggregate import aggregate
from honestly.result import Aggregate, AggregationError, Status, Verdict
from honestly.rules import (
    ARC,
    CAF,
    CGE,
    FLAME,
    LASA,
    MDA,
    NNM,
    QUE,
    RFLBAT,
    RLR,
    SMEA,
    AlignIns,
    BatchNormGuard,
    Bayesian,
    Bucketing,
    Bulyan,
    CenteredClipping,
    ClippedClustering,
    DeepSight,
    DnC,
    FLDetector,
    FLDetectorMemory,
    FLTrust,
    FoolsGold,
    FoolsGoldMemory,
    FreqFed,
    GeometricMedian,
    Krum,
    Meamed,
    Mean,
    Median,
    MinimumVariance,
    MoNNA,
    MultiKrum,
    NormClipping,
    RoDiLoCo,
    SignGuard,
    SmoothedGeometricMedian,
    StaticClipping,
    TrimmedMean,
    list_rules,
    make,
    make_mixer,
)
from honestly.rules.memory import Memory
from honestly.rules.rule import Mixer, Rule
from honestly.sources.checkpoints.options import Checkpoints
from honestly.sources.groups import Groups

if TYPE_CHECKING:
    from honestly.federation.buffer import Buffer

__all__ = [
    "ARC",
    "CAF",
    "CGE",
    "FLAME",
    "LASA",
    "MDA",
    "NNM",
    "QUE",
    "RFLBAT",
    "RLR",
    "SMEA",
    "Aggregate",
    "AggregationError",
    "AlignIns",
    "BatchNormGuard",
    "Bayesian",
    "Bucketing",
    "Buffer",
    "Bulyan",
    "CenteredClipping",
    "Checkpoints",
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
    "Groups",
    "Krum",
    "Meamed",
    "Mean",
    "Median",
    "Memory",
    "MinimumVariance",
    "Mixer",
    "MoNNA",
    "MultiKrum",
    "NormClipping",
    "RoDiLoCo",
    "Rule",
    "SignGuard",
    "SmoothedGeometricMedian",
    "StaticClipping",
    "Status",
    "TrimmedMean",
    "Verdict",
    "__version__",
    "aggregate",
    "list_rules",
    "make",
    "make_mixer",
    "rules",
]


def __getattr__(name: str) -> Any:
    """A federation's server side is loaded when it is used."""
    if name == "Buffer":
        from honestly.federation.buffer import Buffer

        return Buffer
    raise AttributeError(f"module 'honestly' has no attribute {name!r}")
