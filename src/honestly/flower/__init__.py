"""Robust averaging for Flower: `RobustFedAvg` in the place of `FedAvg` (extra `[flower]`)."""

from honestly.flower.legacy import LegacyRobustFedAvg
from honestly.flower.strategy import RobustFedAvg

__all__ = ["LegacyRobustFedAvg", "RobustFedAvg"]
