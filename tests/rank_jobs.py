"""Jobs of the ranks in the tests of `honestly.torch`; each process imports them by name."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import honestly as hn
from honestly.rules.rule import Mix


def updates(K: int, sizes: tuple[int, ...], liars: tuple[int, ...] = (), seed: int = 0) -> list[list[np.ndarray]]:
    """K updates of several tensors around a common direction; liars send -4 times theirs."""
    rng = np.random.default_rng(seed)
    common = [0.5 * rng.normal(size=size) for size in sizes]
    made = [[c + rng.normal(size=c.shape) for c in common] for _ in range(K)]
    for k in liars:
        made[k] = [-4 * x for x in made[k]]
    return made


def tensors(values: list[np.ndarray], dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(x)).to(getattr(torch, dtype)) for x in values]


def plain(out: Any) -> dict[str, Any]:
    """Convert a result to NumPy and text, to send it to the parent process."""
    value = out.value if isinstance(out.value, list | tuple) else [out.value]
    return {
        "value": [x.double().numpy() for x in value],
        "dtype": [str(x.dtype) for x in value],
        "weights": out.weights,
        "honesty": out.honesty,
        "reasons": dict(out.reasons),
        "excluded": out.excluded,
        "clients": out.clients,
        "status": str(out.status),
        "hash": hashlib.sha256(b"".join(x.contiguous().view(torch.uint8).numpy().tobytes() for x in value)).hexdigest(),
    }


class Unreadable(Mapping[str, Any]):
    """A mapping whose tensors cannot be had."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is gone")

    def __iter__(self) -> Iterator[str]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


def reduce(rank: int, K: int, given: list[list[np.ndarray]], dtype: str = "float32", **options: Any) -> dict[str, Any]:
    """One robust all-reduce; `chunk` sets the bytes that are sent at once."""
    from honestly.torch import layout, robust_all_reduce

    layout.CHUNK = options.pop("chunk", 1 << 20)
    layout.sections.cache_clear()
    shared = {name: tensors(options[name], dtype) for name in ("reference",) if name in options}
    if "sizes" in options:
        options["size"] = options.pop("sizes")[rank]
    return plain(robust_all_reduce(tensors(given[rank], dtype), **{**options, **shared}))


def reduce_many(rank: int, K: int, cases: list[tuple[list[list[np.ndarray]], str, dict[str, Any]]]) -> list[Any]:
    return [reduce(rank, K, given, dtype, **options) for given, dtype, options in cases]


def failing(rank: int, K: int, given: list[list[np.ndarray]], options: list[dict[str, Any]]) -> tuple[str, str]:
    """The error of a call that each rank makes with options of its own, and that the group still works after it."""
    from honestly.torch import robust_all_reduce

    mine = dict(options[rank])
    try:
        values = tensors(given[rank], mine.pop("dtype", "float32"))
        robust_all_reduce(values[-1] if mine.pop("flat", False) else values, **mine)
    except Exception as error:
        name, text = type(error).__name__, str(error)
    else:
        raise AssertionError("no error")
    assert robust_all_reduce(torch.ones(3), rule="mean").value.tolist() == [1.0, 1.0, 1.0]
    return name, text


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstThenMean(hn.Rule):
    """The first client in the first layer, the mean of all in the others: a rule that weighs each layer by itself."""

    name = "first_then_mean"
    summary = ""

    def mix(self, geometry: Any) -> Any:
        rows = np.full((len(geometry.layers), geometry.K), 1.0 / geometry.K)
        rows[0] = np.eye(geometry.K)[0]
        sizes = geometry.layer_sizes
        return Mix(matrix=(sizes @ rows / sizes.sum())[None], by_layer=rows)


def layered(rank: int, K: int, states: list[dict[str, np.ndarray]], chunk: int) -> dict[str, Any]:
    """State dicts with buffers; a rule that weighs layers, and the default one."""
    from honestly.torch import layout, robust_all_reduce

    layout.CHUNK = chunk
    layout.sections.cache_clear()
    mine = {name: torch.from_numpy(x) for name, x in states[rank].items()}
    outs = {"by layer": robust_all_reduce(mine, rule=FirstThenMean()), "bayesian": robust_all_reduce(mine)}
    return {
        name: ({key: x.numpy() for key, x in out.value.items()}, out.weights, out.honesty, out.verdicts)
        for name, out in outs.items()
    }


def containers(rank: int, K: int) -> dict[str, Any]:
    """Every kind of input, in place and out of place."""
    from honestly.torch import robust_all_reduce

    found: dict[str, Any] = {}
    wide = torch.full((4, 6), float(rank))
    out = robust_all_reduce({"a": wide.T, "b": torch.tensor(float(rank))}, rule="mean")
    found["mapping"] = {name: (tuple(x.shape), x.flatten().tolist()) for name, x in out.value.items()}
    strided = torch.full((4, 6), float(rank))[:, ::2]
    out = robust_all_reduce((strided, torch.empty(0)), rule="mean", inplace=True)
    found["strided"] = (strided.tolist(), out.value[0] is strided, type(out.value).__name__)
    pair = {"a": torch.full((3,), 10.0 + rank), "b": torch.full((3,), -10.0 - rank)}
    for name, reference in (("ordered", dict(pair)), ("reordered", dict(reversed(pair.items())))):
        old = {key: torch.round(x / 10) * 10 for key, x in reference.items()}
        out = robust_all_reduce(pair, rule="mean", pre="static_clipping:radius=0.1", reference=old)
        found[name] = {key: x.tolist() for key, x in out.value.items()}
    flat = torch.arange(7.0) + rank
    out = robust_all_reduce(flat, rule="mean", layers=[3, 4], inplace=True)
    found["flat"] = (flat.tolist(), out.value is flat)
    kept = torch.arange(7.0) + rank
    found["kept"] = (
        robust_all_reduce(kept, rule="mean").value.tolist(),
        kept.tolist() == (torch.arange(7.0) + rank).tolist(),
    )
    mixed = [
        torch.full((5,), float(rank)),
        torch.full((3,), float(rank), dtype=torch.bfloat16),
        torch.full((2,), float(rank)),
    ]
    found["mixed"] = [(str(x.dtype), x.tolist()) for x in robust_all_reduce(mixed, rule="median").value]
    return found


def two_groups(rank: int, K: int) -> tuple[Any, ...]:
    """Ranks 0 and 1, and ranks 2 and 3, as separate groups that reduce at the same time."""
    import torch.distributed as dist

    from honestly.torch import robust_all_reduce

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    out = robust_all_reduce(torch.full((5,), float(rank)), group=mine, rule="mean")
    alone = [dist.new_group([k]) for k in range(K)][rank]
    single = robust_all_reduce(torch.full((5,), float(rank)), group=alone)
    return out.clients, out.value.tolist(), single.value.tolist(), single.clients


def asynchronous(rank: int, K: int) -> list[Any]:
    """Three pending reductions while the group is used for something else."""
    import torch.distributed as dist

    from honestly.torch import robust_all_reduce

    pending = [robust_all_reduce(torch.full((1000,), float(rank + i)), rule="median", async_op=True) for i in range(3)]
    other = torch.ones(1)
    dist.all_reduce(other)
    values = [p.wait(20).value[0].item() for p in pending]
    wrong = robust_all_reduce(torch.ones(3 + rank), async_op=True)
    try:
        wrong.wait(20)
    except ValueError as error:
        return [values, other.item(), type(error).__name__, wrong.done()]
    raise AssertionError("no error")


def modes(rank: int, K: int, values: list[list[np.ndarray]]) -> list[str]:
    """The same result in every mode of autograd, under autocast and from compiled code."""
    from honestly.torch import robust_all_reduce

    given = [x.requires_grad_() for x in tensors(values[rank])]

    def step() -> str:
        out = robust_all_reduce([x * 1.0 for x in given])
        assert not any(x.requires_grad for x in out.value)
        return plain(out)["hash"]

    hashes = [step()]
    with torch.no_grad(), torch.no_grad():
        hashes.append(step())
    with torch.inference_mode():
        hashes.append(step())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hashes.append(step())

    @torch.compile(backend="eager")
    def compiled(xs: list[torch.Tensor]) -> torch.Tensor:
        out = robust_all_reduce([x * 1.0 for x in xs])
        return torch.cat([x.reshape(-1) for x in out.value]) * 1.0

    whole = compiled([x.detach() for x in given])
    plainly = torch.cat([x.reshape(-1) for x in robust_all_reduce([x.detach() for x in given]).value])
    assert torch.equal(whole, plainly)
    return hashes


def gone(rank: int, K: int, how: str) -> tuple[str, float]:
    """The last rank dies or hangs; return the errors of the others, and when they were raised."""
    import os
    import time
    from datetime import timedelta

    import torch.distributed as dist

    from honestly.torch import robust_all_reduce

    dist.barrier()
    if rank == K - 1:
        if how == "dies":
            os._exit(1)
        time.sleep(3600)  # `run` ends it
    began = time.monotonic()
    try:
        robust_all_reduce(torch.ones(10), timeout=timedelta(seconds=1))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    raise AssertionError("no error")


def never_joined(rank: int, K: int) -> tuple[str, float]:
    """The first asynchronous reduction, in which the last rank does not join, and when the others are told."""
    import time

    from honestly.torch import robust_all_reduce

    if rank == K - 1:
        time.sleep(3600)  # `run` ends it
    began = time.monotonic()
    try:
        robust_all_reduce(torch.ones(10), async_op=True).wait(60)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    raise AssertionError("no error")


def lying(rank: int, K: int, given: list[list[np.ndarray]], liar: int, lie: str, rule: str) -> str:
    """What a check of every slice says about a rank that lies in its slice."""
    from honestly.torch import VerificationError, passes, reduction, robust_all_reduce

    if rank == liar and lie == "result":
        decide = reduction.Reduction.decide

        def wrong(self: Any) -> Any:
            out, own = decide(self)
            own[0][1] += 0.01
            return out, own

        reduction.Reduction.decide = wrong
    if rank == liar and lie == "gram":
        gather = passes.OwnPasses.gram
        passes.OwnPasses.gram = lambda self, *args: gather(self, *args) * 1.01
    for _ in range(40):
        try:
            robust_all_reduce(tensors(given[rank]), rule=rule, verify=1.0, inplace=True)
        except VerificationError as error:
            return str(error)
    return ""


def on_gpu(rank: int, K: int, given: list[list[np.ndarray]], backend: str) -> list[Any]:
    """The same with CUDA tensors, at once and later."""
    import tempfile

    import torch.distributed as dist

    from honestly.torch import robust_all_reduce

    if backend == "nccl":
        dist.destroy_process_group()
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    mine = [x.cuda() for x in tensors(given[rank])]
    outs = [robust_all_reduce(mine, rule=rule) for rule in ("bayesian", "median")]
    assert all(x.is_cuda for out in outs for x in out.value)
    later = robust_all_reduce([x.clone() for x in mine], rule="median", async_op=True, inplace=True).wait(60)
    same = all(torch.equal(a, b) for a, b in zip(later.value, outs[1].value, strict=True))
    moved = [dataclasses.replace(out, value=[x.cpu() for x in out.value]) for out in outs]
    return [*(plain(out) for out in moved), same]
