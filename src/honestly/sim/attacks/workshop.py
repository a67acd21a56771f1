"""For attackers that train with a loss of their own: the data and the model that they have, and gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any


@dataclass(frozen=True)
class Workshop:
    """What M attackers need for local training with a loss of their own; tensors of PyTorch.

    Attributes:
        theta: (d,) the global model.
        images: (N, c, h, w) the clean and poisoned images of all attackers, pixels from 0 to 1, at the size that the
            model sees.
        labels: (N,) the labels that they train on.
        poisoned: (N,) which samples `DataAttack.poison` poisoned.
        samples: for each attacker the numbers of its samples.
        logits: thetas (M, d), images (M, n, c, h, w) -> (M, n, classes), each model on its images; differentiable.
        features: the same, (M, n, f): what the last layer with parameters gets.
        size: (c, h, w) of a raw image of the data set.
        fit: raw images (n, c, h, w), uint8 in NumPy -> tensors from 0 to 1 at the size that the model sees.
        epochs, batch, rate, momentum: the honest clients' training.
    """

    theta: Array
    images: Array
    labels: Array
    poisoned: Array
    samples: Sequence[np.ndarray]
    logits: Callable[[Array, Array], Array]
    features: Callable[[Array, Array], Array]
    size: tuple[int, int, int]
    fit: Callable[[Any], Array]
    epochs: int
    batch: int
    rate: float
    momentum: float

    def start(self) -> Array:
        """(M, d) the global model, once for each attacker."""
        return self.theta[None, :].repeat(len(self.samples), 1)

    def descend(
        self,
        thetas: Array,
        loss: Callable[[Array, Array], Array],
        rng: np.random.Generator,
        *,
        samples: Sequence[np.ndarray] | None = None,
        epochs: int | None = None,
        batch: int | None = None,
        rate: float | None = None,
        moves: Array | None = None,
    ) -> Array:
        """(M, d) the models after SGD with momentum on ``loss(thetas, rows)``, the sum of the attackers' losses.

        ``rows``, (M, b), are a mini-batch of each attacker's samples. All attackers take the same number of steps, as
        many as the one with most samples needs; those with fewer see theirs more often, and those with none stay where
        they are. ``moves``, (d,), is 1 for the parameters that may change, else 0.
        """
        import torch

        numbers = self.samples if samples is None else samples
        count = max((len(mine) for mine in numbers), default=0)
        if count == 0:
            return thetas
        size = min(batch or self.batch, count)
        passes = self.epochs if epochs is None else epochs
        steps = passes * -(-count // size)
        rows = np.stack([_repeat(mine, steps * size, rng) for mine in numbers]).reshape(len(numbers), steps, size)
        table = torch.as_tensor(rows, device=thetas.device)
        scale = torch.as_tensor([float(len(mine) > 0) for mine in numbers], dtype=thetas.dtype, device=thetas.device)
        allowed = scale[:, None] if moves is None else scale[:, None] * moves[None, :]
        thetas = thetas.detach().clone()
        velocity, step = torch.zeros_like(thetas), self.rate if rate is None else rate
        with one_thread():
            for t in range(steps):
                thetas.requires_grad_(True)
                (slope,) = torch.autograd.grad(loss(thetas, table[:, t]), thetas)
                velocity = self.momentum * velocity + slope * allowed
                thetas = (thetas - step * velocity).detach()
        return thetas


def _repeat(mine: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """(length,) the samples in random order, again and again; sample 0 for an attacker without any."""
    if len(mine) == 0:
        return np.zeros(length, dtype=np.int64)
    passes = [rng.permutation(mine) for _ in range(-(-length // len(mine)))]
    return np.concatenate([np.zeros(0, np.int64), *passes])[:length]


@contextmanager
def one_thread() -> Generator[None]:
    """PyTorch with one thread: small tensors are not worth more, and sums must not depend on their number."""
    import torch

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
