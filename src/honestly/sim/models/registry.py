"""Which models there are, and how one is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from honestly.hints import unknown
from honestly.own import check_arguments, import_name, is_own

if TYPE_CHECKING:
    from torch import nn

DRAWING = Lock()  # PyTorch's generator belongs to all threads


@dataclass(frozen=True)
class ModelSource:
    """A model: its factory ``make(channels, height, width, classes)`` and the image size that it wants (0: any).

    The factory is named, not imported: listing the models must not load PyTorch.
    """

    name: str
    summary: str
    factory: str
    side: int = 0

    @property
    def make(self) -> Callable[..., nn.Module]:
        """The factory."""
        return import_name("model", self.factory)


MODELS: dict[str, ModelSource] = {
    name: ModelSource(name, summary, f"honestly.sim.models.{module}:{name}", side)
    for name, summary, module, side in (
        ("lenet5", "two convolutions, three dense layers; 61,706 parameters", "small", 32),
        ("cnn", "two small convolutions, two dense layers: for digits", "small", 0),
        ("cnn_norm", "the cnn with BatchNorm and its running statistics", "small", 0),
        ("mlp", "one hidden layer of 32 units", "small", 0),
        ("resnet8", "three small residual blocks with BatchNorm: for digits", "resnet", 0),
        ("resnet8_plain", "the resnet8 without BatchNorm", "resnet", 0),
        ("resnet18", "11,173,962 parameters, running BatchNorm statistics", "resnet", 0),
        ("resnet18_half", "the paper's code: half width, 2,797,610 parameters, batch statistics", "resnet", 0),
    )
}


def source(name: str) -> ModelSource:
    """The model of that name, or a user's factory: ``package.module:factory``, ``file.py:factory``.

    >>> source("lenet")
    Traceback (most recent call last):
    ValueError: unknown model 'lenet': did you mean lenet5 or resnet8 or resnet18? Allowed: ...
    """
    if name in MODELS:
        return MODELS[name]
    if is_own(name) or "." in name:  # package.module.factory stands for package.module:factory
        spec = name if is_own(name) else ":".join(name.rsplit(".", 1))
        import_name("model", spec)  # a wrong name is an error here
        return ModelSource(name, "a model of yours", spec)
    raise ValueError(unknown("model", name, MODELS, ", or package.module:factory or file.py:factory of your own"))


def build(name: str, size: tuple[int, int, int], classes: int, seed: int) -> nn.Module:
    """The model with PyTorch's default initialisation, drawn from the seed alone.

    A user's factory is called with (channels, height, width, classes), or with nothing if it takes nothing.
    """
    from inspect import signature

    import torch

    make = source(name).make
    arguments = ("channels", "height", "width", "classes") if name in MODELS or signature(make).parameters else ()
    check_arguments("model", name, make, *arguments)
    with DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make(*size, classes) if arguments else make()
        if name not in MODELS:
            _check(name, module, size, classes)
    return module.float()


def _check(name: str, module: Any, size: tuple[int, int, int], classes: int) -> None:
    """Raise ValueError unless a user's model gives a score of every class to images of this size."""
    import torch
    from torch import nn

    if not isinstance(module, nn.Module):
        raise ValueError(f"model '{name}' returned a {type(module).__name__}: it must return an nn.Module")
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise ValueError(f"model '{name}' has lazy layers: give the sizes of all layers")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"model '{name}' has no parameters to train")
    if any(p.is_complex() for p in module.parameters()):
        raise ValueError(f"model '{name}' has complex parameters: give real ones")
    trial = copy.deepcopy(module).float().eval()
    try:
        with torch.no_grad():
            scores = trial(torch.zeros(2, *size))
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"model '{name}' fails on images of (channels, height, width) = {size}: {error}") from error
    shape = tuple(getattr(scores, "shape", ()))
    if not isinstance(scores, torch.Tensor) or len(shape) != 2 or shape[0] != 2 or shape[1] < classes:
        form = f"an array of shape {shape}" if shape else f"a {type(scores).__name__}"
        raise ValueError(f"model '{name}' returned {form} for two images: expected {classes} scores each")
