"""The ranks that average together: their collectives, their failures, and the check that all ask for the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from honestly.result import ClientId, Float
from honestly.sources.claims import read_claims

#: Bytes of a rank's word in the agreement: a digest, whether it has a fault of its own, whether it reports a size.
DIGEST = 32
WRONG = "the ranks cannot average"

Group: TypeAlias = "dist.ProcessGroup | None"


class RankError(RuntimeError):
    """A collective did not finish: a rank died, hangs, or called something else."""


class DisagreementError(ValueError):
    """The ranks asked for different things. Every rank gets this error, which says who asked for what."""


class Word(NamedTuple):
    """What a rank asks for, in words; `fault` is what is wrong with its own call, and `size` its reported size."""

    text: str
    fault: str = ""
    size: float | None = None


def fault_of(error: Exception) -> str:
    """What is wrong with a rank's own call, for all ranks."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class Members:
    """The K ranks of a group, one update each; with `shards`, every update is spread over the ranks of that group.

    Numbers travel in float64 on `device`, where the group's backend can send them.

    Attributes:
        ranks: global ranks of the group, in its order.
        ids: the clients: these ranks; 0..K-1, the replicas, if each is spread over several ranks.
        K: how many.
        me: this rank's position among them.
    """

    def __init__(self, group: Group, shards: Group, device: torch.device, timeout: timedelta | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("there is no process group: call torch.distributed.init_process_group first")
        self.group = dist.group.WORLD if group is None else group
        self.shards = shards
        me = dist.get_rank(self.group)
        if me < 0 or (shards is not None and dist.get_rank(shards) < 0):
            raise ValueError(f"rank {dist.get_rank()} is not a member of the group that it averages in")
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(self.group))
        self.K, self.me, self.timeout = len(self.ranks), me, timeout
        self.ids: tuple[ClientId, ...] = self.ranks if shards is None else tuple(range(self.K))
        self.device = sendable(self.group, device)

    def wait(self, work: Any, what: str) -> None:
        """Wait for a collective that was started with `async_op=True`."""
        with stage(what, self.ranks):
            if self.timeout is None:
                work.wait()
            else:
                work.wait(self.timeout)

    def all_to_all(self, out: torch.Tensor, values: torch.Tensor, mine: list[int], theirs: list[int]) -> Any:
        """Start torch's collective; these three and `ranks_of` are what another kind of group does in its own way."""
        return dist.all_to_all_single(out, values, mine, theirs, group=self.group, async_op=True)

    def all_gather(self, out: torch.Tensor, values: torch.Tensor, group: Any) -> Any:
        """Start torch's collective."""
        return _all_gather(out, values, group=group, async_op=True)

    def all_reduce(self, total: torch.Tensor, group: Any) -> Any:
        """Start torch's collective."""
        return dist.all_reduce(total, group=group, async_op=True)

    def ranks_of(self, group: Group) -> list[int]:
        """The global ranks of a group, or of this one."""
        return dist.get_process_group_ranks(self.group if group is None else group)

    def swap(self, out: torch.Tensor, values: torch.Tensor, theirs: Sequence[int], mine: int) -> Any:
        """Start to send `theirs[j]` of `values` to rank j and to receive `mine` values of each in `out`."""
        with stage("the exchange of slices", self.ranks):
            return self.all_to_all(out, values, [mine] * self.K, list(theirs))

    def collect(self, out: torch.Tensor, values: torch.Tensor, group: Group = None) -> Any:
        """Start to gather everybody's `values`, of equal sizes, one after the other in `out`."""
        with stage("the gathering of results", self.ranks):
            return self.all_gather(out, values, self.group if group is None else group)

    def gather(self, values: np.ndarray, group: Group = None) -> np.ndarray:
        """(K, ...) everybody's array of this shape and dtype, in order of the ranks."""
        raw = torch.from_numpy(np.array(values, order="C").reshape(-1).view(np.uint8)).to(self.device)
        count = self.K if group is None else dist.get_world_size(group)
        out = torch.empty(count * raw.numel(), dtype=torch.uint8, device=self.device)
        if raw.numel():
            self.wait(self.collect(out, raw, group), "an exchange of numbers")
        return out.cpu().numpy().view(values.dtype).reshape(count, *values.shape)

    def sum(self, values: Float) -> Float:
        """The sum over all ranks, the same bits on each; over the shards, too."""
        total = torch.from_numpy(np.array(values, dtype=np.float64)).to(self.device)
        for group in (self.group, self.shards):
            if group is not None and total.numel():
                with stage("a sum of numbers", self.ranks):
                    work = self.all_reduce(total, group)
                self.wait(work, "a sum of numbers")
        return total.cpu().numpy()

    def tell(self, text: str, group: Group = None) -> list[str]:
        """What everybody says, in order; where nobody says anything, one number is all that is sent."""
        raw = text.encode()
        length = int(self.gather(np.array([len(raw)], np.int64), group).max())
        padded = np.frombuffer(raw.ljust(length), np.uint8)
        return [row.tobytes().decode().rstrip() for row in self.gather(padded, group)]

    def every(self, fine: bool) -> bool:
        """Whether it is so on all ranks."""
        return float(self.sum(np.array([0.0 if fine else 1.0]))[0]) == 0.0

    def agree(self, mine: Word, common: str = "") -> Float | None:
        """Raise on every rank if one has a fault of its own, or asks for something else; else the sizes, if reported.

        `common` is what the shards of an update must have in common; their tensors are of different shapes.
        """
        wrong, sizes = self._compare(mine, self.group, "rank")
        if self.shards is not None:  # a fault in one group concerns all
            wrong, _ = self._compare(Word(common, wrong), self.shards, "shard on rank")
            wrong, _ = self._compare(Word("", wrong), self.group, "rank")
        if wrong:
            raise DisagreementError(wrong)
        return sizes

    def _compare(self, mine: Word, group: Group, who: str) -> tuple[str, Float | None]:
        """What is wrong, the same text on every rank of the group ("" if nothing is), and the sizes."""
        word = np.zeros(DIGEST + 16, np.uint8)
        word[:DIGEST] = np.frombuffer(hashlib.sha256(mine.text.encode("utf-8", "backslashreplace")).digest(), np.uint8)
        word[DIGEST] = 0 if not mine.fault else 1
        word[DIGEST + 8 :] = read_claims("size", [mine.size], (0,)).view(np.uint8)  # a float64, whatever it was
        words = self.gather(word, group)
        if words[:, DIGEST].any() or (words[:, :DIGEST] != words[0, :DIGEST]).any():
            return self._difference(mine, group, who), None
        sizes = np.ascontiguousarray(words[:, DIGEST + 8 :]).view(np.float64)[:, 0]
        return "", None if np.isnan(sizes).all() else sizes

    def _difference(self, mine: Word, group: Group, who: str) -> str:
        """Who asked for what, the same text on every rank."""
        words = [json.loads(one) for one in self.tell(json.dumps([mine.fault, mine.text]), group)]
        ranks = self.ranks_of(group)
        faults = {fault: rank for rank, (fault, _) in reversed(list(zip(ranks, words, strict=True))) if fault}
        if faults:
            known = next((fault for fault in faults if fault.startswith(WRONG)), None)  # from another group
            return known or f"{WRONG}: {'; '.join(f'{who} {rank}: {fault}' for fault, rank in faults.items())}"
        requests: dict[str, list[int]] = {}
        for rank, (_, text) in zip(ranks, words, strict=True):
            requests.setdefault(text, []).append(rank)
        usual = max(requests, key=lambda text: len(requests[text]))
        others = [
            f"{who} {', '.join(map(str, own))} asks for {_unlike(text, usual)}"
            for text, own in requests.items()
            if text != usual
        ]
        return f"{WRONG}: they ask for different things; ranks {requests[usual]} agree, but {'; '.join(others)}"


def _unlike(text: str, usual: str) -> str:
    """The first line that differs."""
    here, there = text.split("\n"), usual.split("\n")
    for a, b in zip(here, there, strict=False):
        if a != b:
            return f"{a[:300]!r} instead of {b[:300]!r}"
    return f"{len(here)} lines instead of {len(there)}"


@contextmanager
def stage(what: str, ranks: Sequence[int]) -> Generator[None]:
    """Report a broken connection or a timeout in terms of ranks."""
    try:
        yield
    except RuntimeError as error:  # all errors of torch.distributed are
        raise RankError(
            f"rank {dist.get_rank()}: {what} among the ranks {list(ranks)} did not end: one of them has died, "
            f"hangs, or called another collective ({type(error).__name__}: {str(error).splitlines()[0][:300]})"
        ) from error


def sendable(group: Any, device: torch.device) -> torch.device:
    """The device itself if the group's backend sends from there, else the CPU (gloo) or this rank's GPU (NCCL)."""
    by_device = dict(entry.split(":") for entry in str(dist.get_backend_config(group)).split(","))
    if device.type == "cpu" and "cpu" not in by_device:
        return torch.device(next(iter(by_device)), torch.accelerator.current_device_index())
    if device.type != "cpu" and by_device.get(device.type, "gloo") == "gloo":
        return torch.device("cpu")
    return device


# Renamed in PyTorch 2.13; the old name warns there.
_all_gather: Any = getattr(
    dist, "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
)
