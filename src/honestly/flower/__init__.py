"""Robust averaging for Flower: `RobustFedAvg` in the place of `FedAvg` (extra `[flower]`)."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("honestly.flower needs Flower: pip install 'honestly[flower]'", name="flwr")

from honestly.flower.asynchronous import train_buffered
from honestly.flower.legacy import LegacyRobustFedAvg
from honestly.flower.strategy import RobustFedAvg

__all__ = ["LegacyRobustFedAvg", "RobustFedAvg", "train_buffered"]
