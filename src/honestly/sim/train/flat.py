"""A model's parameters as one row of numbers, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each named tensor of a model stands in a flat row.

    >>> layout = Layout.of_parameters(nn.Linear(3, 2))
    >>> layout.size, layout.names
    (8, ('weight', 'bias'))
    >>> layout.view(torch.arange(8.0), "bias")
    tensor([6., 7.])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, one after the other."""
        starts, total = [], 0
        for tensor in tensors.values():
            starts.append(total)
            total += tensor.numel()
        return cls(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()), tuple(starts), total)

    @classmethod
    def of_parameters(cls, model: nn.Module) -> Layout:
        """The layout of the trainable parameters."""
        return cls.of({name: p for name, p in model.named_parameters() if p.requires_grad})

    @classmethod
    def of_statistics(cls, model: nn.Module) -> Layout:
        """The layout of the floating-point buffers, such as BatchNorm's running statistics."""
        return cls.of({name: b for name, b in model.named_buffers() if b.is_floating_point()})

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each named tensor has."""
        return {name: math.prod(shape) for name, shape in zip(self.names, self.shapes, strict=True)}

    def view(self, rows: Tensor, name: str) -> Tensor:
        """The named tensor inside a flat row (d,) or inside each of several rows (K, d); shares their memory."""
        i = self.names.index(name)
        start, shape = self.starts[i], self.shapes[i]
        part = rows[..., start : start + math.prod(shape)]
        # a slice of columns is not contiguous, so unflatten its last axis explicitly
        return part.unflatten(-1, shape) if len(shape) != 1 else part

    def views(self, row: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Every named tensor inside a flat row."""
        for name in self.names:
            yield name, self.view(row, name)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat row from named tensors."""
        if not self.names:
            return torch.empty(0)
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])
