"""The estimator of bayesian/bayesian.c: Gram matrices in, whom to believe and how far out, in one call."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from honestly.kernels.build import Program

PROGRAM = Program("bayesian", Path(__file__).parent / "bayesian", ("bayesian.c", "views.h", "likeness.h", "guard.h"))
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Clients up to which the program is faster than NumPy, whose BLAS is better at large products.
MOST = 128

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_JUDGED, _UNDECIDED, _NOT_HERE, _NO_MEMORY = range(4)


class _EstimatorJob(ctypes.Structure):
    """The struct job of bayesian.c."""

    _fields_ = (
        ("layers", _COUNT), ("n", _COUNT), ("tolerated", _COUNT), ("from_reference", _COUNT), ("gram", _POINTER),
        ("judged", _POINTER), ("prior", _POINTER), ("vote", _POINTER), ("noise", _POINTER), ("weights", _POINTER),
        ("evidence", _POINTER), ("kept", _POINTER), ("distance", _POINTER), ("against", _POINTER), ("votes", _POINTER),
        ("spread", ctypes.c_double), ("accused", _POINTER), ("opposed", _POINTER), ("absurd", _POINTER),
        ("group", _POINTER), ("copies", _POINTER), ("any_judged", _COUNT), ("contradiction", _COUNT),
        ("settled", _COUNT), ("rounds", _COUNT), ("pulled", _COUNT), ("firsts", _COUNT), ("sizes", _COUNT),
        ("first", _POINTER), ("size", _POINTER),
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
    from_reference: bool,
    vote: Floats | None,
    noise: Floats | None,
    first: Counts,
    sizes: Counts,
) -> Findings | None:
    """What the program finds; None if the numbers are too large for it, or not numbers.

    Arguments:
        gram: (L, n, n) Gram matrices, symmetric; n >= 3.
        judged: (L,) by which layers clients are judged.
        tolerated: how many clients may lie, at least 1.
        prior: (n,) log-odds of honesty.
        from_reference: the Gram matrices are about the previous model.
        vote: (n,) sizes that count as votes, at most 1.
        noise: (n,) sizes in the unit of the client's noise.
        first: at most 24 clients from which the guard's search for the worst subset starts.
        sizes: at most 12 sizes of the subsets to start from.
    """
    library = PROGRAM.library()
    assert library is not None, "asked for a program that is not there"
    function = library.honestly_bayesian
    function.restype, function.argtypes = _COUNT, (_POINTER,)
    L, n, _ = gram.shape
    assert 0 < tolerated < n - tolerated
    assert n <= MOST
    assert judged.shape == (L,)
    job = _EstimatorJob(layers=L, n=n, tolerated=tolerated, from_reference=int(from_reference))
    held: list[npt.NDArray[Any]] = []

    def put(field: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        held.append(values)
        setattr(job, field, values.ctypes.data)
        return values

    put("gram", np.ascontiguousarray(gram, np.float64))
    put("judged", np.ascontiguousarray(judged, np.bool_))
    for name, given in (("prior", prior), ("vote", vote), ("noise", noise)):
        if given is not None:
            assert given.shape == (n,)
            put(name, np.ascontiguousarray(given, np.float64))
    for name, some, most in (("first", first, 24), ("size", sizes, 12)):
        assert some.dtype == np.int64
        assert 0 < len(some) <= most
        assert some.min() >= 0
        assert some.max() <= n - (name == "first")
        put(name, some)
    job.firsts, job.sizes = len(first), len(sizes)
    weights = put("weights", np.empty((L, n)))
    evidence = put("evidence", np.full((n, L), np.nan))
    kept, distance = put("kept", np.ones((n, L))), put("distance", np.zeros((n, L)))
    against, votes = put("against", np.full(n, -np.inf)), put("votes", np.empty(n))
    accused, opposed, absurd = (put(name, np.zeros(n, np.bool_)) for name in ("accused", "opposed", "absurd"))
    group = put("group", np.zeros((n, n), np.bool_))
    copies = put("copies", np.arange(n))
    status = function(ctypes.addressof(job))
    if status == _NO_MEMORY:
        raise MemoryError(f"no memory to judge {n} clients in {L} layers")
    if status == _NOT_HERE:
        return None
    return Findings(
        weights, evidence, kept, distance, against, votes, job.spread, accused, opposed, absurd, group, copies,
        status == _JUDGED, bool(job.any_judged), bool(job.contradiction), bool(job.settled), job.rounds,
        job.pulled,
    )  # fmt: skip
