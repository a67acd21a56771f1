"""Norms about the reference and factors that shorten them, for the rules that clip."""

from __future__ import annotations

import numpy as np

from honestly.result import Float


def norms(about_reference: Float) -> Float:
    """`||w_k - reference||` from the Gram matrix about the reference."""
    return np.sqrt(np.maximum(np.diagonal(about_reference), 0.0))


def clip_factors(lengths: Float, radius: float) -> Float:
    """`min(1, radius / length)`: what a vector of each length is multiplied by; 1 for length 0."""
    return np.where(lengths > radius, radius / np.where(lengths > 0, lengths, 1.0), 1.0)


def cosines(about_reference: Float) -> Float:
    """(K, K) cosines between the updates `w_k - reference`; an update of length 0 agrees only with another such one."""
    lengths = norms(about_reference)
    nothing = lengths == 0.0
    units = np.where(nothing, 1.0, lengths)
    C = np.clip(about_reference / units[:, None] / units[None, :], -1.0, 1.0)
    C[np.ix_(nothing, nothing)] = 1.0
    np.fill_diagonal(C, 1.0)
    return C
