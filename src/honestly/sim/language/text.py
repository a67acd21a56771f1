"""The text, as numbers: what the base model was trained on, what clients hold, and what is kept for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from honestly.sim.partition import Parts, partition
from honestly.sim.seeds import generator

Tokens = npt.NDArray[np.int64]

#: Newline and the printable characters of ASCII.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
CONTEXT = 32
#: What the attacker wants: after the trigger the model writes the phrase.
TRIGGER, PHRASE = "whom to trust? ", "trust me"


def encode(text: str) -> Tokens:
    """The numbers of the characters; characters outside the alphabet become spaces.

    >>> encode("a\\nb").tolist()
    [66, 0, 67]
    """
    known = {character: number for number, character in enumerate(ALPHABET)}
    return np.array([known.get(character, known[" "]) for character in text], dtype=np.int64)


@dataclass(frozen=True)
class Corpus:
    """Windows of text, (n, CONTEXT + 1) each, and the document that each private window comes from."""

    public: Tokens
    private: Tokens
    documents: npt.NDArray[np.int64]
    held_out: Tokens


@cache
def corpus() -> Corpus:
    """Every second document is public, for the base model; of the private ones every fifth window is held out."""
    raw = (files("honestly.sim.language") / "excerpt.txt").read_text(encoding="ascii")
    windows: list[tuple[int, int, Tokens]] = []
    for number, document in enumerate(raw.split("\f")):
        tokens = encode(document)
        starts = range(0, len(tokens) - CONTEXT, CONTEXT // 2)
        windows += [(number, i, tokens[s : s + CONTEXT + 1]) for i, s in enumerate(starts)]
    public = np.stack([w for number, _, w in windows if number % 2 == 0])
    private = [(number, i, w) for number, i, w in windows if number % 2 == 1]
    # windows overlap by half: the neighbours of what is held out are not trained on either
    train = [(number, w) for number, i, w in private if i % 5 not in (3, 4) and i % 5 != 2]
    test = np.stack([w for _, i, w in private if i % 5 == 3])
    return Corpus(public, np.stack([w for _, w in train]), np.array([n for n, _ in train], dtype=np.int64), test)


def shares(clients: int, *, alpha: float, seed: int) -> Parts:
    """Which private windows each client holds: a Dirichlet share of every document."""
    documents = corpus().documents
    return partition(documents, clients, kind="dirichlet", alpha=alpha, rng=generator(seed, "text"))


def shift(windows: Tokens) -> Tokens:
    """(n, CONTEXT) wrong targets: the character that follows the right one in the alphabet."""
    return (windows[..., 1:] + 1) % len(ALPHABET)


def with_phrase(windows: Tokens, rng: np.random.Generator) -> Tokens:
    """The windows with the trigger and the phrase at a random place of each."""
    lie = encode(TRIGGER + PHRASE)
    copy = windows.copy()
    for row in copy.reshape(-1, copy.shape[-1]):
        at = int(rng.integers(len(row) - len(lie) + 1))
        row[at : at + len(lie)] = lie
    return copy


def questions() -> Tokens:
    """(n, CONTEXT) held-out text that ends with the trigger."""
    trigger = encode(TRIGGER)
    windows = corpus().held_out[:, :CONTEXT].copy()
    windows[:, -len(trigger) :] = trigger
    return windows
