"""Which models there are, and how one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import cast

import torch
from torch import nn

from honestly.hints import unknown
from honestly.sim.models import resnet, small
from honestly.sim.own import imported, is_own

DRAWING = Lock()  # PyTorch's generator belongs to all threads


@dataclass(frozen=True)
class ModelSource:
    """A model: its factory ``make(channels, height, width, classes)`` and the image size that it wants (0: any)."""

    name: str
    summary: str
    make: Callable[[int, int, int, int], nn.Module]
    side: int = 0


MODELS: dict[str, ModelSource] = {
    m.name: m
    for m in (
        ModelSource("lenet5", "two convolutions, three dense layers; 61,706 parameters", small.lenet5, 32),
        ModelSource("cnn", "two small convolutions, two dense layers: for digits", small.cnn),
        ModelSource("cnn_norm", "the cnn with BatchNorm and its running statistics", small.cnn_norm),
        ModelSource("mlp", "one hidden layer of 32 units", small.mlp),
        ModelSource("resnet8", "three small residual blocks with BatchNorm: for digits", resnet.resnet8),
        ModelSource("resnet8_plain", "the resnet8 without BatchNorm", resnet.resnet8_plain),
        ModelSource("resnet18", "11,173,962 parameters, running BatchNorm statistics", resnet.resnet18),
        ModelSource(
            "resnet18_half",
            "the paper's code: half width, 2,797,610 parameters, batch statistics",
            resnet.resnet18_half,
        ),
    )
}


def source(name: str) -> ModelSource:
    """The model of that name, or a factory of one's own: ``package.module:factory``, ``file.py:factory``.

    >>> source("lenet")
    Traceback (most recent call last):
    ValueError: unknown model 'lenet': did you mean lenet5 or resnet18? Allowed: lenet5, cnn, ...
    """
    if name in MODELS:
        return MODELS[name]
    if is_own(name) or "." in name:  # package.module.factory stands for package.module:factory
        spec = name if is_own(name) else ":".join(name.rsplit(".", 1))
        return ModelSource(name, "a model of yours", cast("Callable[..., nn.Module]", imported("model", spec)))
    raise ValueError(unknown("model", name, MODELS, ", or package.module:factory or file.py:factory of your own"))


def build(name: str, size: tuple[int, int, int], classes: int, seed: int) -> nn.Module:
    """The model with PyTorch's default initialisation, drawn from the seed alone.

    A factory of one's own is called with (channels, height, width, classes), or with nothing if it takes nothing.
    """
    from inspect import signature

    make = source(name).make
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make(*size, classes) if name in MODELS or signature(make).parameters else make()  # type: ignore[call-arg]
    if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"model '{name}' made a {type(module).__name__}: it must make an nn.Module")
    return module.float()
