"""Jobs of the ranks in the tests of `honestly.torch`; each process imports them by name."""

from __future__ import annotations

import dataclasses
import hashlib
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
        robust_all_reduce(tensors(given[rank], mine.pop("dtype", "float32")), **mine)
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
        time.sleep(3)
        return "", 0.0
    began = time.monotonic()
    try:
        robust_all_reduce(torch.ones(10), timeout=timedelta(seconds=1))
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
        passes.OwnPasses.gram = lambda self, clients, centre: gather(self, clients, centre) * 1.01
    for _ in range(40):
        try:
            robust_all_reduce(tensors(given[rank]), rule=rule, verify=1.0, inplace=True)
        except VerificationError as error:
            return str(error)
    return ""


def model(seed: int = 0, norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(seed)
    middle = [torch.nn.BatchNorm1d(16)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(10, 16), *middle, torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batch(rank: int, step: int = 0, n: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(n, 10, generator=generator)
    return x, (x[:, :4] * 2).argmax(1)


def loss_of(net: torch.nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(net(x), y)


def ddp(rank: int, K: int, bucket_cap_mb: float, liar: int, steps: int = 2) -> dict[str, Any]:
    """Gradients through DDP's hook and through one robust_all_reduce of all of them."""
    from torch.nn.parallel import DistributedDataParallel

    from honestly.torch import RobustAverager, ddp_hook, robust_all_reduce

    found: dict[str, Any] = {"ddp": [], "whole": [], "honesty": []}
    averager = RobustAverager(forgetting=0.9)
    net = DistributedDataParallel(model(), bucket_cap_mb=bucket_cap_mb)
    net.register_comm_hook(averager, ddp_hook)
    alone = model()
    rule = averager.rule
    for step in range(steps):
        factor = -5.0 if rank == liar else 1.0
        net.zero_grad()
        (factor * loss_of(net, rank, step)).backward()
        alone.zero_grad()
        (factor * loss_of(alone, rank, step)).backward()
        out = robust_all_reduce([p.grad for p in alone.parameters()], rule=rule, reference=0)
        rule = rule.after(out.diagnostics)
        found["ddp"].append([p.grad.numpy().copy() for p in net.parameters()])
        found["whole"].append([x.numpy() for x in out.value])
        found["honesty"].append((averager.last.honesty, out.honesty))
        found["memory"] = averager.state_dict()["memory"]
    return found


def outer(rank: int, K: int, make: str, bad: int, meetings: int = 3) -> dict[str, Any]:
    from honestly.torch import RobustAverager, RobustOuterOptimizer

    torch.manual_seed(rank)
    net = model(rank, norm=True)
    inner = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    makers = {
        "local": lambda ps: torch.optim.SGD(ps, lr=1.0),
        "diloco": lambda ps: torch.optim.SGD(ps, lr=0.7, momentum=0.9, nesterov=True),
        "adam": lambda ps: torch.optim.Adam(ps, lr=0.05),
    }
    outer = RobustOuterOptimizer(net, makers[make], every=4, averager=RobustAverager(forgetting=0.9), inner=inner)
    outs = []
    for step in range(4 * meetings):
        inner.zero_grad()
        loss_of(net, rank, step).backward()
        inner.step()
        if rank == bad and step == 5:
            with torch.no_grad():
                next(net.parameters())[0, 0] = torch.nan
        out = outer.step()
        if out is not None:
            outs.append((out.excluded, dict(out.reasons)))
    digest = hashlib.sha256(b"".join(x.numpy().tobytes() for x in net.state_dict().values() if x.is_floating_point()))
    return {
        "outs": outs,
        "hash": digest.hexdigest(),
        "loss": float(loss_of(net, 99, 99).detach()),
    }


def local_mean(rank: int, K: int) -> tuple[Any, Any]:
    """Local SGD with the plain mean: the model after averaging, and the models of all ranks before it."""
    import torch.distributed as dist

    from honestly.torch import RobustAverager, RobustOuterOptimizer

    net = model(rank)
    averager = RobustAverager(rule="mean")
    outer = RobustOuterOptimizer(net, lambda ps: torch.optim.SGD(ps, lr=1.0), every=1, averager=averager)
    inner = torch.optim.SGD(net.parameters(), lr=0.5)
    loss_of(net, rank).backward()
    inner.step()
    before = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    models = [torch.empty_like(before) for _ in range(K)]
    dist.all_gather(models, before)
    outer.step()
    state = outer.state_dict()
    outer.load_state_dict(state)
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy(), torch.stack(models).numpy()


def sharded(rank: int, K: int, liar: int, broken: int) -> dict[str, Any]:
    """Three replicas of two shards each: FSDP2 inside a replica, the robust average over the replicas."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from honestly.torch import RobustAverager

    mesh = init_device_mesh("cpu", (K // 2, 2), mesh_dim_names=("replicate", "shard"))
    replica = rank // 2
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    averager = RobustAverager(mesh.get_group("replicate"), shards=mesh.get_group("shard"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(averager.before_step)
    factor = -5.0 if replica == liar else 1.0
    (factor * loss_of(net, rank)).backward()
    parts = [p.grad for p in net.parameters()]
    assert all(isinstance(grad, DTensor) for grad in parts)
    own = [grad.full_tensor().numpy() for grad in parts]
    if rank == broken:
        parts[-1].to_local()[0] = torch.inf
    optimizer.step()
    averaged = [p.grad.full_tensor().numpy() for p in net.parameters()]
    out = averager.last
    new = averager.average({name: p.grad for name, p in net.named_parameters()}, inplace=False).value
    assert all(
        isinstance(x, DTensor) and x.shape == p.shape for x, p in zip(new.values(), net.parameters(), strict=True)
    )
    return {
        "own": own,
        "averaged": averaged,
        "weights": out.weights,
        "honesty": out.honesty,
        "reasons": dict(out.reasons),
        "clients": out.clients,
    }


def shards_that_differ(rank: int, K: int) -> str:
    """One shard of one replica has another rule."""
    from torch.distributed.device_mesh import init_device_mesh

    from honestly.torch import DisagreementError, robust_all_reduce

    mesh = init_device_mesh("cpu", (K // 2, 2), mesh_dim_names=("replicate", "shard"))
    groups = {"group": mesh.get_group("replicate"), "shards": mesh.get_group("shard")}
    try:
        robust_all_reduce(torch.ones(5 + rank % 2), rule="median" if rank == 3 else "mean", **groups)
    except DisagreementError as error:
        return str(error)
    raise AssertionError("no error")


def record(rank: int, K: int, folder: str, steps: int) -> dict[str, Any]:
    """Steps with a liar from the third and a rank that sends NaN from the fifth; return the averager's records."""
    from honestly.torch import RobustAverager

    averager = RobustAverager(forgetting=0.9, history=folder, record_every=4)
    generator = torch.Generator().manual_seed(rank)
    priors = []
    for step in range(steps):
        x = torch.randn(200, generator=generator) + 1.0
        x = -4 * x if rank == 1 and 2 <= step < steps - 2 else x
        x = x * torch.nan if rank == 2 and step >= 4 else x
        averager.average(x, reference=0)
        averager.note({"loss": 1.0 / (step + 1)})
        priors.append(float(averager.rule.memory.prior([1])[0]))
    averager.close()
    again = RobustAverager(forgetting=0.9)
    again.load_state_dict(averager.state_dict())
    assert again.rule == averager.rule
    return {"steps": [r.number for r in averager.history], "priors": priors, "step": averager.step}


def scaled(rank: int, K: int, bad: list[int]) -> tuple[bool, list[str]]:
    """A step without a usable majority, which a gradient scaler must skip."""
    from honestly.torch import RobustAverager

    averager = RobustAverager(unusable="nan")
    x = torch.full((4,), torch.inf if rank in bad else 1.0)
    out = averager.average(x)
    return bool(x.isnan().all()), [str(k) for k in out.excluded]


def astray(rank: int, K: int) -> str:
    """A rank whose state has diverged is found at the next step."""
    from honestly.torch import DisagreementError, RobustAverager

    averager = RobustAverager(forgetting=0.9)
    x = torch.randn(5, generator=torch.Generator().manual_seed(rank))
    averager.average(x)
    if rank == 1:
        averager.load_state_dict({"step": 7, "chain": "", "memory": None})
    try:
        averager.average(x)
    except DisagreementError as error:
        return str(error)
    raise AssertionError("no error")


def replicas(rank: int, K: int, lighthouse: str, method: str) -> dict[str, Any]:
    """torchft's own LocalSGD or DiLoCo with our manager; the last replica is NaN once, the one before lies."""
    import warnings
    from datetime import timedelta

    import torch.distributed as dist

    warnings.simplefilter("default")  # torchft 0.2 calls deprecated functions
    from torchft import ProcessGroupGloo
    from torchft.local_sgd import DiLoCo, LocalSGD

    from honestly.torch import RobustAverager
    from honestly.torch.torchft import RobustManager

    net = model(0)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    state = {"model": net.state_dict, "inner": inner.state_dict}
    outs: list[Any] = []

    class Noted(RobustAverager):
        def finish(self, *arguments: Any, **more: Any) -> Any:
            outs.append(super().finish(*arguments, **more))
            return outs[-1]

    averager = Noted(forgetting=0.9)
    manager = RobustManager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)), min_replica_size=K,
        load_state_dict=lambda new: net.load_state_dict(new["model"]),
        state_dict=lambda: {name: read() for name, read in state.items()},
        replica_id=f"replica-{rank}", store_addr="localhost", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, hostname="localhost", timeout=timedelta(seconds=20), averager=averager,
    )  # fmt: skip
    found: dict[str, Any] = {}
    try:
        if method == "local":
            training: Any = LocalSGD(manager, net, inner, sync_every=2)
        else:
            outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            training = DiLoCo(manager, [net], inner, outer, sync_every=2, use_bucketization=True)
        with training:
            for step in range(6):
                inner.zero_grad()
                (loss_of(net, rank, step) * (-20.0 if rank == K - 2 else 1.0)).backward()
                if rank == K - 1 and step == 3:
                    next(net.parameters()).grad[0, 0] = torch.nan
                inner.step()
        found["step"] = manager.current_step()
        found["clients"] = outs[-1].clients
        found["refused"] = [sorted(out.excluded) for out in outs]
        found["weights"] = [float(out.weights[K - 2]) for out in outs]
        found["model"] = [p.detach().numpy() for p in net.parameters()]
    finally:
        manager.shutdown(wait=False)
    return found


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
