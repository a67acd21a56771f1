"""Spot checks: another rank computes a slice again, both the numbers that were decided on and the result.

The slice and the checker are drawn when all results are in, from random numbers of all ranks: nobody knows them before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from honestly.result import ClientId, Float
from honestly.torch.layout import blocks

if TYPE_CHECKING:
    from honestly.torch.reduction import Reduction

#: Numbers that another machine's order of sums may change by this share of their scale.
ROUNDING = 1e-4
#: Values of the result, in units of their dtype's rounding of the largest value that went into them.
ULPS = 8.0


class VerificationError(RuntimeError):
    """A slice of the result, or the numbers that a rank contributed to the decision, are not what they should be."""


def verify_slices(
    reduction: Reduction, updates: Sequence[torch.Tensor], results: Sequence[torch.Tensor], count: float
) -> dict[str, Any]:
    """Check `count` slices on average; what was checked, and by which rank. Raises VerificationError on every rank.

    Args:
        reduction: the reduction, decided and gathered.
        updates: this rank's tensors as they were sent.
        results: the tensors as they were gathered.
        count: how many slices.
    """
    members = reduction.members
    words = members.gather(np.frombuffer(os.urandom(16), np.uint8))
    if members.shards is not None:  # all shards draw the same
        words = members.gather(words, members.shards)
    rng = np.random.default_rng(np.frombuffer(hashlib.sha256(words.tobytes()).digest(), np.uint64))
    number = int(count) + int(rng.random() < count % 1)
    checked: list[tuple[ClientId, ClientId]] = []
    for _ in range(number if members.K > 1 else 0):
        owner, *checkers = rng.permutation(members.K)[:3].tolist()
        fault = _check(reduction, updates, results, owner, checkers[0])
        if fault:
            names = [members.ids[k] for k in (owner, *checkers)]
            again = _check(reduction, updates, results, owner, checkers[1]) if len(checkers) > 1 else ""
            raise VerificationError(_accusation(names, fault, again))
        checked.append((members.ids[owner], members.ids[checkers[0]]))
    return {"verified": tuple(checked)}


def _accusation(names: Sequence[ClientId], fault: str, again: str) -> str:
    """A message that names the rank at fault. (It cannot tell the owner from a rank that sent it other values.)"""
    owner, checker, *others = names
    if again:
        return f"the slice of rank {owner}: {fault}; ranks {checker} and {others[0]} computed it again and agree"
    if others:
        return f"rank {checker} says of the slice of rank {owner}: {fault}; but rank {others[0]} finds nothing wrong"
    return f"rank {checker} says of the slice of rank {owner}: {fault}; of two ranks nobody can tell which is wrong"


def _check(
    reduction: Reduction, updates: Sequence[torch.Tensor], results: Sequence[torch.Tensor], owner: int, checker: int
) -> str:
    """What the checker found wrong, sent to all ranks; "" if nothing."""
    members = reduction.members
    own = blocks(reduction.cut, owner)
    rows: list[torch.Tensor] = []
    for block in own:
        theirs = reduction.columns(updates, reduction.cut[block.section], *block.chunk.own(owner))
        mine = block.width if members.me == checker else 0
        out = torch.empty((members.K, mine), dtype=theirs.dtype, device=theirs.device)
        sent = [block.width if rank == checker else 0 for rank in range(members.K)]
        members.wait(members.swap(out.view(-1), theirs, sent, mine), "the exchange of a slice to check")
        rows.append(out)
    fault = ""
    if members.me == checker:
        columns = [reduction.columns(results, reduction.cut[b.section], *b.chunk.own(owner)) for b in own if b.width]
        fault = _differences(reduction, owner, rows, columns)
    fault = next((text for text in members.tell(fault) if text), "")
    if members.shards is None:
        return fault
    return next((text for text in members.tell(fault, members.shards) if text), "")


def _differences(
    reduction: Reduction, owner: int, rows: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> str:
    """Compute all that the owner had to compute, and compare."""
    passes = reduction.passes
    assert passes is not None, "there is no decision yet"
    assert passes.answers is not None, "numbers were not recorded"
    assert passes.result is not None
    own = reduction.passes_of(owner, rows)
    slices = own.slices
    for name, arguments, parts in passes.answers:
        expected: Float = getattr(own, name)(*arguments)
        if not _close(parts[owner], expected, products=name == "gram"):
            return f"its part of `{name}` is wrong"
    name, arguments = passes.result
    values = slices.assemble(getattr(own, name)(*arguments)[0], ())
    for value, result, row in zip(values, results, slices.rows, strict=True):
        limit = ULPS * torch.finfo(value.dtype).eps * torch.nan_to_num(row.abs()).amax(0).double()
        wrong = ~((value.double() - result.to(value.device).double()).abs() <= limit)
        if bool(wrong.any()):
            return f"{int(wrong.sum())} of its {wrong.numel()} values of the result are wrong"
    return ""


def _close(part: Float, expected: Float, *, products: bool) -> bool:
    """Equal up to the order of sums; what is not finite is so in both."""
    scale = np.abs(expected)
    with np.errstate(over="ignore", invalid="ignore"):
        if products:
            norms = np.sqrt(np.diagonal(expected, axis1=-2, axis2=-1))
            scale = norms[..., :, None] * norms[..., None, :]
        fine = np.abs(part - expected) <= ROUNDING * scale
    return bool((fine | (~np.isfinite(part) & ~np.isfinite(expected))).all())
