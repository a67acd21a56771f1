"""Image data sets: `digits` comes with the package; `mnist`, `fmnist`, `cifar10` are read from disk or downloaded."""

from __future__ import annotations

from honestly.sim.data.dataset import DATASETS, Dataset, DatasetSource, load, prepare

__all__ = ["DATASETS", "Dataset", "DatasetSource", "load", "prepare"]
