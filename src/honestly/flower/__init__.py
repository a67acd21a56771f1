"""Robust averaging for Flower: `RobustFedAvg` instead of `FedAvg` (extra `[flower]`)."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("honestly.flower needs Flower: pip install 'honestly[flower]'", name="flwr")

from honestly.flower.asynchronous import train_buffered
from honestly.flower.legacy import LegacyRobustFedAvg
from honestly.flower.optimisers import RobustFedAdagrad, RobustFedAdam, RobustFedAvgM, RobustFedProx, RobustFedYogi
from honestly.flower.strategy import RobustFedAvg

__all__ = [
    "LegacyRobustFedAvg",
    "RobustFedAdagrad",
    "RobustFedAdam",
    "RobustFedAvg",
    "RobustFedAvgM",
    "RobustFedProx",
    "RobustFedYogi",
    "train_buffered",
]
