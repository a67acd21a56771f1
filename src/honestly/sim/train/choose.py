"""Which trainer runs a model."""

from __future__ import annotations

from torch import nn

from honestly.sim.experiment import Experiment
from honestly.sim.train.batched import BatchedTrainer
from honestly.sim.train.compiled.trainer import CompiledTrainer
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.residual.trainer import ResidualTrainer
from honestly.sim.train.sequential import SequentialTrainer, Speed
from honestly.sim.train.sgd import SGD
from honestly.sim.train.trainer import Trainer


def choose_trainer(module: nn.Module, pixels: Pixels, experiment: Experiment) -> Trainer:
    """The compiled trainer or a batched one if it supports the model, else one client after the other."""
    e = experiment
    sgd = SGD(e.lr, e.momentum, e.weight_decay, e.nesterov)
    if e.precision == "fp32" and CompiledTrainer.supports(module, pixels):
        return CompiledTrainer(module, pixels, sgd, e.batch)
    if e.precision == "fp32" and BatchedTrainer.supports(module):
        return BatchedTrainer(module, pixels, sgd, e.batch)
    if e.precision == "bf16" and ResidualTrainer.supports(module, pixels):
        return ResidualTrainer(module, pixels, sgd, e.batch)
    gpu = pixels.images.device.type == "cuda"
    speed = Speed(bf16=e.precision == "bf16", compile=gpu and e.precision == "bf16", lanes=4 if gpu else 1)
    return SequentialTrainer(module, pixels, sgd, e.batch, speed=speed)
