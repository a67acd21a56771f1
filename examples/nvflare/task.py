"""The task: handwritten digits and the simplest model for them, softmax regression, which is one array."""

from __future__ import annotations

import numpy as np

from honestly.sim.data import load


def new_model() -> np.ndarray:
    """A weight for each pixel and class; the last row is the bias."""
    return np.zeros((65, 10), np.float32)


def digits(site: int, of: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of one of `of` sites; of = 0 gives the test set, which no site has."""
    data = load("digits")
    if not of:
        return _rows(data.test_images), data.test_labels
    mine = np.random.default_rng(7).permutation(len(data.labels))[site::of]
    return _rows(data.images[mine]), data.labels[mine]


def train(model: np.ndarray, x: np.ndarray, y: np.ndarray, *, steps: int, rate: float) -> tuple[np.ndarray, float]:
    """Gradient descent on all images; the trained model and its loss."""
    W, wanted = model.astype(np.float64), np.eye(10)[y]
    for _ in range(steps):
        W -= rate * x.T @ (_probabilities(W, x) - wanted) / len(y)
    loss = -np.log(_probabilities(W, x)[wanted == 1] + 1e-12).mean()
    return W.astype(np.float32), float(loss)


def accuracy(model: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The share of images that are classified correctly."""
    return float((_probabilities(model, x).argmax(axis=1) == y).mean())


def _probabilities(W: np.ndarray, x: np.ndarray) -> np.ndarray:
    scores = x @ W
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _rows(images: np.ndarray) -> np.ndarray:
    return np.column_stack([images.reshape(len(images), -1) / 255.0, np.ones(len(images))])
