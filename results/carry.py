"""CIFAR-10 in 94 MB instead of 184, in pieces, for a machine without a network that takes only so many bytes at a time.

    python results/carry.py pack DATA OUT      # OUT/head.npz and OUT/piece-00.npz ... from DATA/cifar-10-batches-py
    python results/carry.py unpack OUT DATA    # the same pickles again, bit by bit; half a minute on two cores

Lossless: each value is predicted from its neighbours, the errors are sorted by how rough the place is, and each kind is
coded by its own Huffman code. It needs NumPy alone. The prediction is computed in integers, so every machine finds
the same.
"""

from __future__ import annotations

import argparse
import pickle
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Places = list[tuple[int, int]]

NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
FOLDER = "cifar-10-batches-py"
PLANES = (1, 0, 2)  # green first: it says most about the others
SIDE, EDGE, MIDDLE = 32, 2, 128  # images have an edge of MIDDLE around them
SHIFT = 14  # weights are multiples of 2^-14
LEVELS = 24  # of roughness
#: Neighbours that are known already: of the same plane, and of each plane before, which is complete.
OWN: Places = [(0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-2, 1), (-1, -2), (-1, 2), (-2, -1)]
BEFORE: Places = [(0, 0), (0, -1), (-1, 0), (-1, -1), (-1, 1), (0, 1), (1, 0), (1, 1), (1, -1)]


class Coder:
    """The prediction of one value after the other, for n images at once.

    Attributes:
        planes: (3, 36, 36, n) values with their edges, as far as they are known.
        errors: the same for the absolute errors of the prediction.
    """

    def __init__(self, weights: Ints, limits: Ints, n: int) -> None:
        self.weights, self.limits = weights, limits
        shape = (3, SIDE + 2 * EDGE, SIDE + 2 * EDGE, n)
        self.planes, self.errors = np.full(shape, MIDDLE, np.int32), np.zeros(shape, np.int32)

    def predict(self, c: int, y: int, x: int) -> Ints:
        """(n,) predictions of the value in plane c."""
        weights = self.weights[c, place(y, x)]
        total = np.full(self.planes.shape[-1], int(weights[-1]) + (1 << (SHIFT - 1)), np.int64)
        for weight, values in zip(weights.tolist(), self.neighbours(c, y, x), strict=False):
            total += weight * (values - MIDDLE)
        return np.clip((total >> SHIFT) + MIDDLE, 0, 255).astype(np.int32)

    def neighbours(self, c: int, y: int, x: int) -> Iterator[Ints]:
        """The known values around a place."""
        for plane, around in [(c, OWN), *((b, BEFORE) for b in range(c))]:
            for dy, dx in around:
                yield self.planes[plane, y + EDGE + dy, x + EDGE + dx]

    def roughness(self, c: int, y: int, x: int) -> Ints:
        """(n,) how large the error will be: steps between neighbours, and the errors around."""
        y, x = y + EDGE, x + EDGE
        own, e = self.planes[c], self.errors[c]
        corner = own[y - 1, x - 1]
        steps = abs(own[y, x - 1] - corner) + abs(own[y - 1, x] - corner) + abs(own[y - 1, x] - own[y - 1, x + 1])
        rough = steps + 2 * (e[y, x - 1] + e[y - 1, x]) + e[y - 1, x - 1] + e[y - 1, x + 1] + e[y, x - 2] + e[y - 2, x]
        if c:
            before = self.errors[c - 1]
            rough = rough + 3 * before[y, x] + before[y, x + 1] + before[y + 1, x]
        return rough + 2 * self.errors[0][y, x] if c == 2 else rough

    def level(self, c: int, y: int, x: int) -> Any:
        """(n,) the roughness in LEVELS steps."""
        return np.digitize(self.roughness(c, y, x), self.limits[c])

    def learn(self, c: int, y: int, x: int, values: Ints, predictions: Ints) -> None:
        """The values of a place are known now."""
        self.planes[c, y + EDGE, x + EDGE] = values
        self.errors[c, y + EDGE, x + EDGE] = abs(values - predictions)


def place(y: int, x: int) -> int:
    """Which weights a place has: at the edges fewer neighbours are known."""
    return 0 if y == x == 0 else 1 if y == 0 else 2 if x == 0 else 3 if x == SIDE - 1 else 4 if 1 in (y, x) else 5


def scan() -> Iterator[tuple[int, int, int]]:
    """All places in the order of coding."""
    return ((c, y, x) for c in range(3) for y in range(SIDE) for x in range(SIDE))


def fit(images: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """The weights of the prediction for small absolute errors, and the limits between levels of roughness."""
    rng = np.random.default_rng(0)
    known = Coder(np.zeros((3, 6, len(OWN) + 2 * len(BEFORE) + 1), np.int32), np.zeros((3, LEVELS - 1), np.int32), 3000)
    sample = as_planes(images[rng.choice(len(images), 3000, replace=False)])
    known.planes[:, EDGE:-EDGE, EDGE:-EDGE] = sample
    for c in range(3):
        for p in range(6):
            spots = [(y, x) for y in range(SIDE) for x in range(SIDE) if place(y, x) == p]
            every = 8 if p == 5 else 1  # there are many
            rows = [np.stack([v[::every] for v in known.neighbours(c, y, x)], 1) for y, x in spots]
            values = np.concatenate([sample[c, y, x, ::every] for y, x in spots]).astype(float) - MIDDLE
            F = np.hstack([np.concatenate(rows).astype(float) - MIDDLE, np.ones((len(values), 1))])
            w = np.zeros(F.shape[1])
            for _ in range(6):  # weighted least squares, towards least absolute errors
                trust = 1.0 / np.maximum(abs(F @ w - values), 2.0)
                w = np.linalg.solve(F.T @ (F * trust[:, None]) + 1e-3 * np.eye(len(w)), F.T @ (trust * values))
            known.weights[c, p, [*range(len(w) - 1), -1]] = np.rint(w * (1 << SHIFT))
        rough: list[Ints] = []
        for y in range(SIDE):
            for x in range(SIDE):
                rough.append(known.roughness(c, y, x))
                known.learn(c, y, x, sample[c, y, x], known.predict(c, y, x))
        known.limits[c] = np.quantile(np.concatenate(rough), np.arange(1, LEVELS) / LEVELS)
    return known.weights, known.limits


def as_planes(images: npt.NDArray[np.uint8]) -> Ints:
    """(n, 3, 32, 32) images as (3, 32, 32, n) planes."""
    return images[:, PLANES].transpose(1, 2, 3, 0).astype(np.int32)


def encode(images: npt.NDArray[np.uint8], weights: Ints, limits: Ints) -> dict[str, npt.NDArray[np.uint8]]:
    """The errors of the prediction by plane and level, compressed."""
    coder, planes = Coder(weights, limits, len(images)), as_planes(images)
    kinds: list[list[npt.NDArray[np.uint8]]] = [[] for _ in range(3 * LEVELS)]
    for c, y, x in scan():
        predictions, level = coder.predict(c, y, x), coder.level(c, y, x)
        errors = ((planes[c, y, x] - predictions + MIDDLE) & 255).astype(np.uint8)
        for i in range(LEVELS):
            kinds[c * LEVELS + i].append(errors[level == i])
        coder.learn(c, y, x, planes[c, y, x], predictions)
    return {f"k{i:02}": compress(np.concatenate(errors)) for i, errors in enumerate(kinds)}


def compress(errors: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Huffman's code alone: there is nothing in errors that repeats."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return np.frombuffer(coder.compress(errors.tobytes()) + coder.flush(), np.uint8)


def decode(piece: Path, weights: Ints, limits: Ints) -> npt.NDArray[np.uint8]:
    """(n, 3, 32, 32) images."""
    with np.load(piece, allow_pickle=False) as file:
        n = int(file["n"])
        kinds = [np.frombuffer(zlib.decompress(file[f"k{i:02}"].tobytes(), -15), np.uint8) for i in range(3 * LEVELS)]
    coder, begin = Coder(weights, limits, n), [0] * len(kinds)
    for c, y, x in scan():
        predictions, level = coder.predict(c, y, x), coder.level(c, y, x)
        errors = np.empty(n, np.int32)
        for i in range(LEVELS):
            k, here = c * LEVELS + i, level == i
            end = begin[k] + int(here.sum())
            errors[here], begin[k] = kinds[k][begin[k] : end], end
        coder.learn(c, y, x, (predictions + errors - MIDDLE) & 255, predictions)
    images = np.empty((n, 3, SIDE, SIDE), np.uint8)
    images[:, PLANES] = coder.planes[:, EDGE:-EDGE, EDGE:-EDGE].transpose(3, 0, 1, 2)
    return images


def pack(data: Path, out: Path, pieces: int) -> None:
    """Write the pieces."""
    out.mkdir(parents=True, exist_ok=True)
    batches = [pickle.loads((data / FOLDER / name).read_bytes(), encoding="bytes") for name in NAMES]  # one's own files
    images = np.concatenate([np.asarray(batch[b"data"]) for batch in batches]).reshape(-1, 3, SIDE, SIDE)
    labels = np.concatenate([np.asarray(batch[b"labels"], np.uint8) for batch in batches])
    weights, limits = fit(images)
    np.savez_compressed(out / "head.npz", weights=weights, limits=limits, labels=labels)
    parts = np.array_split(images, pieces)
    with ProcessPoolExecutor() as pool:
        for i, kinds in enumerate(pool.map(encode, parts, [weights] * pieces, [limits] * pieces)):
            np.savez(out / f"piece-{i:02}.npz", n=len(parts[i]), **kinds)


def unpack(out: Path, data: Path) -> None:
    """Write the pickles again."""
    with np.load(out / "head.npz", allow_pickle=False) as head:
        weights, limits, labels = head["weights"], head["limits"], head["labels"]
    paths = sorted(out.glob("piece-*.npz"))
    with ProcessPoolExecutor() as pool:
        images = np.concatenate(list(pool.map(decode, paths, [weights] * len(paths), [limits] * len(paths))))
    (data / FOLDER).mkdir(parents=True, exist_ok=True)
    rows = images.reshape(len(NAMES), -1, 3 * SIDE * SIDE)
    for name, values, own in zip(NAMES, rows, labels.reshape(len(NAMES), -1).tolist(), strict=True):
        batch = {b"batch_label": name.encode(), b"labels": own, b"data": values}
        (data / FOLDER / name).write_bytes(pickle.dumps(batch, protocol=4))


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--pieces", type=int, default=12)
    args = parser.parse_args()
    if args.what == "pack":
        pack(args.source, args.target, args.pieces)
    else:
        unpack(args.source, args.target)


if __name__ == "__main__":
    main()
