"""The estimator of bayesian/bayesian.c: from Gram matrices to honesty and weights in one call."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from honestly.kernels.build import Program

SOURCES = ("bayesian.c", "numbers.h", "views.h", "likeness.h", "guard.h")
PROGRAM = Program("bayesian", Path(__file__).parent / "bayesian", SOURCES)
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Clients up to which the program is used; with more, the BLAS is better at the large products.
MOST = 512
#: Clients, and sizes of sets, from which the guard's search starts, at most.
FIRST, SIZES = 24, 12

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_JUDGED, _UNDECIDED, _NOT_HERE, _NO_MEMORY = range(4)


class _EstimatorJob(ctypes.Structure):
    """The struct job of bayesian.c."""

    _fields_ = (
        ("layers", _COUNT), ("n", _COUNT), ("tolerated", _COUNT), ("firsts", _COUNT), ("sizes", _COUNT),
        ("gram", _POINTER), ("reference", _POINTER), ("judged", _POINTER), ("prior", _POINTER), ("vote", _POINTER),
        ("noise", _POINTER), ("first", _POINTER), ("size", _POINTER), ("numbers", _POINTER), ("flags", _POINTER),
        ("copies", _POINTER), ("any_judged", _COUNT), ("contradiction", _COUNT), ("settled", _COUNT),
        ("rounds", _COUNT), ("pulled", _COUNT), ("spread", ctypes.c_double),
    )  # fmt: skip


class Findings(NamedTuple):
    """What the program found about n clients in L layers; see `honestly.rules.bayesian.estimate.Estimate`.

    `copies` is the first client of each one's group of copies. If not `decided`, a majority sent the same in every
    layer, and nothing but the weights counts; if not `judged`, nobody was judged.
    """

    weights: Floats
    evidence: Floats
    kept: Floats
    distance: Floats
    against: Floats
    votes: Floats
    spread: float
    accused: Bools
    opposed: Bools
    absurd: Bools
    group: Bools
    copies: Counts
    decided: bool
    judged: bool
    contradiction: bool
    settled: bool
    rounds: int
    pulled: int


def available() -> bool:
    """Whether the program is there; it is compiled when this is asked for the first time."""
    return PROGRAM.library() is not None


def estimate(
    gram: Floats,
    judged: Bools,
    tolerated: int,
    prior: Floats | None,
    reference: Floats | None,
    vote: Floats | None,
    noise: Floats | None,
    first: Counts,
    sizes: Counts,
) -> Findings | None:
    """What the program finds; None if the numbers are too large for it, or not numbers.

    Args:
        gram: (L, n, n) Gram matrices, symmetric; n >= 3.
        judged: (L,) by which layers clients are judged.
        tolerated: how many clients may lie, at least 1.
        prior: (n,) log-odds of honesty.
        reference: (L, n, n) Gram matrices about the previous model; `gram` itself, if it is about it.
        vote: (n,) sizes that count as votes, at most 1.
        noise: (n,) sizes in the unit of the client's noise.
        first: clients, in order, from which the guard's search for the worst subset starts.
        sizes: of the subsets to start from, in order.
    """
    library = PROGRAM.library()
    assert library is not None, "asked for a program that is not there"
    L, n, _ = gram.shape
    assert gram.shape == (L, n, n)
    assert judged.shape == (L,)
    assert 3 <= n <= MOST
    assert 0 < tolerated < n - tolerated
    assert first.dtype == sizes.dtype == np.int64
    assert 0 < len(first) <= FIRST
    assert 0 < len(sizes) <= SIZES
    assert 0 <= first[0] <= first[-1] < n
    assert 0 < sizes[0] <= sizes[-1] <= n
    assert reference is None or reference.shape == gram.shape
    own = np.ascontiguousarray(gram, np.float64)
    about = own if reference is gram else None if reference is None else np.ascontiguousarray(reference, np.float64)
    inputs = [own, about, np.ascontiguousarray(judged, np.bool_)]
    inputs += [None if x is None else np.ascontiguousarray(x, np.float64) for x in (prior, vote, noise)]
    assert all(x is None or x.shape == (n,) for x in inputs[3:])
    numbers, flags, copies = np.empty(4 * L * n + 2 * n), np.zeros((n + 3, n), np.bool_), np.arange(n)
    outs = [numbers, flags, copies]
    job = _EstimatorJob(
        L, n, tolerated, len(first), len(sizes),
        *(None if x is None else _address(x) for x in (*inputs, first, sizes, *outs)),
    )  # fmt: skip
    status = library.honestly_bayesian(ctypes.byref(job))
    if status == _NO_MEMORY:
        raise MemoryError(f"no memory to judge {n} clients in {L} layers")
    if status == _NOT_HERE:
        return None
    weights, evidence, shares, distance = (numbers[i * L * n : (i + 1) * L * n] for i in range(4))
    against, votes = numbers[4 * L * n :].reshape(2, n)
    return Findings(
        weights.reshape(L, n), evidence.reshape(n, L), shares.reshape(n, L), distance.reshape(n, L), against, votes,
        job.spread, flags[0], flags[1], flags[2], flags[3:], copies, status == _JUDGED, bool(job.any_judged),
        bool(job.contradiction), bool(job.settled), job.rounds, job.pulled,
    )  # fmt: skip


def _address(values: npt.NDArray[Any]) -> int:
    return values.__array_interface__["data"][0]
