"""Which models there are, and how one is made."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import torch
from torch import nn

from honestly.sim.models import resnet, small

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
        ModelSource("mlp", "one hidden layer of 32 units", small.mlp),
        ModelSource("resnet18", "11,173,962 parameters, running BatchNorm statistics", resnet.resnet18),
        ModelSource(
            "resnet18_half",
            "the paper's code: half width, 2,797,610 parameters, batch statistics",
            resnet.resnet18_half,
        ),
    )
}


def source(name: str) -> ModelSource:
    """The model of that name, or of a dotted name such as ``package.module.factory`` (or ``package.module:factory``).

    >>> source("lenet")
    Traceback (most recent call last):
    ValueError: unknown model 'lenet': did you mean lenet5? Allowed: lenet5, cnn, ...
    """
    if name in MODELS:
        return MODELS[name]
    module_name, _, factory = name.replace(":", ".").rpartition(".")
    if module_name:
        try:
            made: Any = getattr(importlib.import_module(module_name), factory)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"model '{name}' cannot be loaded: {error}") from error
        if not callable(made):
            raise ValueError(f"model '{name}' is no factory: it must be callable and return an nn.Module")
        return ModelSource(name, "a model of yours", cast("Callable[..., nn.Module]", made))
    close = difflib.get_close_matches(name, MODELS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    allowed = ", ".join(MODELS)
    raise ValueError(f"unknown model '{name}': {hint}Allowed: {allowed}, or package.module.factory of your own")


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
