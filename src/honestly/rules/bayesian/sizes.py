"""Sizes in the default rule: a small client says less, and its update is noisier, which is no lie.

The noise of an update from p examples has a variance of 1/p. What is used of the claims comes in two units. `vote` has
the cap of `honestly.rules.sizes`, by which no minority of heads gets a majority of the votes: it decides what a client
adds and who is far. `noise` is the claim over the median claim, at most 1: it decides what is unusual for a client of
that size. docs/explanation/sizes.md says what liars can make of either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.result import Float
from honestly.rules.sizes import positive, used_sizes

SMALLEST = 0.01  # by which a client is judged at least: ten times as far as usual is far for anybody


@dataclass(frozen=True)
class ClientSizes:
    """What is used of the claims of n clients.

    Attributes:
        vote: (n,) 1 at the cap.
        noise: (n,) the claim over the median claim, between 0.01 and 1.
    """

    vote: Float
    noise: Float

    def of(self, clients: npt.NDArray[np.int64]) -> ClientSizes:
        """Those of some of the clients."""
        return ClientSizes(self.vote[clients], self.noise[clients])


def client_sizes(claims: Float | None, tolerated: int) -> ClientSizes | None:
    """What the rule uses; None if no sizes were given, or if they make no difference."""
    if claims is None:
        return None
    vote, known = used_sizes(claims, tolerated), positive(claims)
    middle = float(np.median(known / 2)) * 2  # halved: two sizes near the largest float have a finite mean
    noise = np.maximum(np.minimum(known, middle) / middle, SMALLEST) if middle > 0 else np.ones(len(known))
    return None if (vote == 1.0).all() and (noise == 1.0).all() else ClientSizes(vote, noise)


def in_own_unit(r2: Float, unit: Float | None) -> Float:
    """Squared distances over those that noise gives a client of that size: `r^2 p`."""
    return r2 if unit is None else r2 * np.maximum(unit, SMALLEST)


def usual_agreement(usual: Float, size: ClientSizes | None) -> Float:
    """(V, n) the cosine with the others that is usual for a client of that size, from the (V, 1) median cosine.

    An update of signal S and noise N has a cosine of about S / sqrt(S^2 + N^2) with the signal. The odds S^2 / N^2
    grow with the size: a client so small that noise hides its signal cannot be said to oppose anything.
    """
    if size is None:
        return usual
    u2 = np.square(np.clip(usual, 0.0, 1.0 - 1e-9))
    odds = u2 / (1.0 - u2) * size.noise
    return np.where(usual > 0.0, np.sqrt(odds / (1.0 + odds)), usual)


def votes_by_size(votes: Float, size: ClientSizes | None) -> Float:
    """Shares of a vote, by size; as they are where that would leave nobody."""
    if size is None or not (votes * size.vote).any():
        return votes
    return votes * size.vote
