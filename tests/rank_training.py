"""Jobs of the ranks that train a model, in the tests of `honestly.torch`; each process imports them by name."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


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


def ddp_goes_on(rank: int, K: int, fault: str) -> tuple[str, bool, list[float]]:
    """A step that fails between two good ones: its error, its gradients, and those after it."""
    from torch.nn.parallel import DistributedDataParallel

    from honestly.result import AggregationError
    from honestly.torch import RobustAverager, VerificationError, ddp_hook, reduction

    net = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    net.register_comm_hook(RobustAverager(verify=0.0 if fault == "nan" else 30.0), ddp_hook)
    loss_of(net, rank).backward()
    net.zero_grad()
    decide, text = reduction.Reduction.decide, ""

    def wrong(self: Any) -> Any:
        out, own = decide(self)
        return out, [x + 0.01 for x in own]

    if fault == "lie" and rank == 2:
        reduction.Reduction.decide = wrong
    try:
        (loss_of(net, rank) * (torch.nan if fault == "nan" and rank else 1.0)).backward()
    except (AggregationError, VerificationError) as error:
        text = str(error)
    reduction.Reduction.decide = decide
    lost = all(bool(p.grad.isnan().all()) for p in net.parameters())
    net.zero_grad()
    loss_of(net, rank, 1).backward()
    return text, lost, [float(p.grad.sum()) for p in net.parameters()]


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


def replicated(rank: int, K: int, given: list[list[Any]], broken: int, options: dict[str, Any]) -> dict[str, Any]:
    """Replicas of two ranks each; of two tensors the first is cut among them, and both have all of the second."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from honestly.torch import robust_all_reduce

    mesh = init_device_mesh("cpu", (K // 2, 2), mesh_dim_names=("replicate", "parallel"))
    own = [torch.from_numpy(x) for x in given[rank // 2]]
    places = (Shard(0), Replicate())
    parts = [distribute_tensor(x, mesh["parallel"], [place]) for x, place in zip(own, places, strict=True)]
    if rank == broken:
        parts[1].to_local()[0] = torch.nan
    out = robust_all_reduce(parts, mesh.get_group("replicate"), shards=mesh.get_group("parallel"), **options)
    return {
        "weights": out.weights,
        "reasons": dict(out.reasons),
        "value": [x.full_tensor().numpy() for x in out.value],
    }


def sharded_outer(rank: int, K: int) -> dict[str, Any]:
    """Local SGD of replicas of two shards each that begin apart: the models before the last meeting, and after it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from honestly.torch import RobustAverager, RobustOuterOptimizer

    mesh = init_device_mesh("cpu", (K // 2, 2), mesh_dim_names=("replicate", "shard"))
    net = model(seed=rank // 2)
    fully_shard(net, mesh=mesh["shard"])
    averager = RobustAverager(mesh.get_group("replicate"), "mean", shards=mesh.get_group("shard"))
    outer = RobustOuterOptimizer(net, lambda ps: torch.optim.SGD(ps, lr=1.0), every=1, averager=averager)

    def whole() -> Any:
        return torch.cat([p.full_tensor().detach().reshape(-1) for p in net.parameters()]).numpy()

    found = {"begin": whole()}
    inner = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(2):
        inner.zero_grad()
        loss_of(net, rank, step).backward()
        inner.step()
        found["before"] = whole()
        outer.step()
    outer.load_state_dict(outer.state_dict())
    return found | {"after": whole()}


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
