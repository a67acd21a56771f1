"""The task: 1,797 handwritten digits and a small network, in NumPy, so the app starts in a second."""

from __future__ import annotations

import numpy as np

from honestly.sim.data import load

HIDDEN = 32


def new_model(seed: int = 0) -> list[np.ndarray]:
    """Weights and biases of 64 -> 32 -> 10."""
    rng = np.random.default_rng(seed)
    return [
        rng.normal(0, 0.125, (64, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        rng.normal(0, 0.18, (HIDDEN, 10)).astype(np.float32),
        np.zeros(10, np.float32),
    ]


def partition(k: int, of: int) -> tuple[np.ndarray, np.ndarray]:
    """The k-th client's share of the training images and their labels."""
    digits = load("digits")
    mine = np.random.default_rng(7).permutation(len(digits.labels))[k::of]
    return _pixels(digits.images[mine]), digits.labels[mine]


def test_set() -> tuple[np.ndarray, np.ndarray]:
    """Images that no client has."""
    digits = load("digits")
    return _pixels(digits.test_images), digits.test_labels


def train(
    model: list[np.ndarray], x: np.ndarray, y: np.ndarray, epochs: int, rate: float
) -> tuple[list[np.ndarray], float]:
    """Mini-batch gradient descent; the trained model and its loss."""
    W1, b1, W2, b2 = (w.astype(np.float64) for w in model)
    rng, loss = np.random.default_rng(0), 0.0
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(len(y)), max(1, len(y) // 16)):
            hidden, p = _forward((W1, b1, W2, b2), x[rows])
            loss = float(-np.log(p[np.arange(len(rows)), y[rows]] + 1e-12).mean())
            d2 = p.copy()
            d2[np.arange(len(rows)), y[rows]] -= 1
            d2 /= len(rows)
            d1 = (d2 @ W2.T) * (hidden > 0)
            W2 -= rate * hidden.T @ d2
            b2 -= rate * d2.sum(axis=0)
            W1 -= rate * x[rows].T @ d1
            b1 -= rate * d1.sum(axis=0)
    return [w.astype(np.float32) for w in (W1, b1, W2, b2)], loss


def test(model: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Loss and accuracy."""
    _, p = _forward(model, x)
    with np.errstate(invalid="ignore"):
        loss = float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean())
    return loss, float((p.argmax(axis=1) == y).mean())


def _forward(model: tuple[np.ndarray, ...] | list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    W1, b1, W2, b2 = model
    with np.errstate(over="ignore", invalid="ignore"):
        hidden = np.maximum(x @ W1 + b1, 0)
        scores = hidden @ W2 + b2
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, p / p.sum(axis=1, keepdims=True)


def _pixels(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / 255.0 - 0.3
