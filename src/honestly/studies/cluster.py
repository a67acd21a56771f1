"""A study on a Ray cluster: the driver claims runs, tasks stream rounds and states back, the driver alone writes.

The nodes need no shared disk and no data sets: both come from the driver. When a node is lost, its runs continue
elsewhere from the latest state that the driver has.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import time
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from honestly.runs.provenance import provenance
from honestly.runs.states import States
from honestly.runs.store import ATTEMPTS, LostClaimError, Run, Store, StoreError
from honestly.sim.checkpoint import final_model, latest_state, pack_state
from honestly.sim.run import Stop
from honestly.sim.summary import summary
from honestly.studies.limit import OutOfTimeError
from honestly.studies.work import Datasets, Heartbeat, WorkOptions, describe_error, forget, free_the_dead, new_worker

# A task sends small states after every round and large ones every few seconds: a lost node costs no more than that.
SMALL, STATE_EVERY = 1 << 20, 20.0
Files = dict[str, bytes]


@dataclass
class RayTask:
    """A run in progress, and the stream of what it sends."""

    run: Run
    stream: Any
    worker: str


def rounds_of(experiment: str, files: Files, start: Files, data: Any) -> Iterator[dict[str, Any]]:
    """The task on a node: continue from a state, and send the node's name, every round, some states, and the end.

    Args:
        experiment: its canonical JSON.
        files: the run's latest state, by its file's name; {} for none.
        start: the last state of the run that this one starts from; {} for none.
        data: the data set.
    """
    import torch

    from honestly.sim.experiment import Experiment
    from honestly.sim.rounds import Federation

    device = "cuda" if torch.cuda.is_available() and _gpus() else "cpu"
    if device == "cpu":
        torch.set_num_threads(max(1, int(_cpus())))
    e = Experiment.of(json.loads(experiment))
    with TemporaryDirectory() as temporary:
        here, before = Path(temporary) / "run", Path(temporary) / "start"
        for folder, content in ((here, files), (before, start)):
            folder.mkdir()
            for name, body in content.items():
                (folder / name).write_bytes(body)
        federation = Federation(e, data=data, device=device)
        state = latest_state(States(here), federation.start(), e.rounds, lambda _: None)
        if e.warm_up and state.round == 0:
            state = replace(state, model=final_model(before, e.warm_up, state.model))
        yield {"resumed_at": state.round}
        sent = time.monotonic()
        for record in federation.rounds(state):
            message: dict[str, Any] = {"record": record.numbers, "seconds": record.laps}
            small = record.state.model.theta.nbytes <= SMALL
            if small or record.state.round == e.rounds or time.monotonic() - sent >= STATE_EVERY:
                message["state"] = pack_state(record.state)
                sent = time.monotonic()
            yield message
        yield {"provenance": provenance(device, e.seed, resumed_at=state.round)}


def _ray() -> Any:
    """Import Ray, an untyped extra, only where it is needed."""
    return importlib.import_module("ray")


def _gpus() -> list[Any]:
    return list(_ray().get_gpu_ids())


def _cpus() -> float:
    return float(_ray().get_runtime_context().get_assigned_resources().get("CPU", 1))


def files_of(folder: Path, rounds: int) -> Files:
    """The latest state of a run, from which it continues, unless it is ahead of the rounds in the store."""
    states = States(folder)
    latest = states.latest(rounds)
    return {} if latest is None else {states.path(latest).name: states.path(latest).read_bytes()}


def on_ray(
    store: Store,
    ids: Collection[str],
    options: WorkOptions,
    *,
    address: str = "",
    gpus: float = 0.0,
    cpus: float = 1.0,
) -> bool:
    """Do runs on a Ray cluster; False if asked to stop.

    Args:
        store: the study's store; only this process writes to it.
        ids: the runs to do.
        options: where the data sets are, and whether to keep models.
        address: the cluster; "" starts one on this machine.
        gpus, cpus: what a run takes; a fraction of a GPU lets several runs share it.
    """
    ray = _ray()
    with _aside(store.folder / "ray.log"), _connect(ray, address):
        return Driver(store, ids, options, gpus, cpus, ray).run()


@contextlib.contextmanager
def _aside(path: Path) -> Generator[None]:
    """Write Ray's messages about nodes to a file instead of the terminal."""
    with path.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


def check_address(address: str) -> None:
    """Refuse at once an address for which Ray would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://"):
        raise ValueError(
            f"--ray {address}: rounds cannot be streamed to a Ray client; start it on a node, with --ray auto"
        )
    if not colon:
        return
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--ray {address}: write HOST:PORT, such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(f"--ray {address}: no answer ({error.strerror or error}); is the cluster up?") from error


@contextlib.contextmanager
def _connect(ray: Any, address: str) -> Generator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
    mine = not ray.is_initialized()
    if mine:
        check_address(address)
        try:
            more: dict[str, Any] = {} if address else {"include_dashboard": False}
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(f"--ray {address}: cannot reach the cluster: {error}") from error
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


class Driver:
    """Hands out runs and stores what they send."""

    def __init__(
        self, store: Store, ids: Collection[str], options: WorkOptions, gpus: float, cpus: float, ray: Any
    ) -> None:
        self.store, self.ids, self.options, self.ray = store, ids, options, ray
        self.need = {name: amount for name, amount in (("GPU", gpus), ("CPU", cpus)) if amount}
        # we handle lost nodes: Ray would start the run again, we continue from its latest state
        self.remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(rounds_of)
        self.data = Datasets(options.data)
        self.shared: dict[str, Any] = {}
        self.tasks: list[RayTask] = []
        self.furthest: dict[str, int] = {}  # the latest round of each run, and nodes lost since it
        self.lost: dict[str, int] = {}
        self.base = new_worker()

    def run(self) -> bool:
        """Run until nothing is left; False if asked to stop, `OutOfTimeError` when the time is up."""
        if self.room() == 0:
            need = " and ".join(f"{amount:g} {name}" for name, amount in self.need.items())
            raise ValueError(f"no node of the cluster has {need}: ask for less with --gpus-per-run and --cpus-per-run")
        with Heartbeat(self.store.folder, self.base), Stop() as stop:
            try:
                while not stop.requested:
                    if (
                        self.options.ends is not None
                        and time.time() >= self.options.ends
                        and self.store.count_open(self.ids)
                    ):
                        raise OutOfTimeError  # rounds since a task's last state are computed again
                    self._hand_out()
                    if not self.tasks:
                        if not self.store.count_open(self.ids):
                            return True
                        free_the_dead(self.store)
                        time.sleep(0.5)
                        continue
                    self._listen()
                return False
            finally:
                for task in self.tasks:
                    with contextlib.suppress(Exception):
                        self.ray.cancel(task.stream, force=True)
                    with contextlib.suppress(StoreError):
                        self.store.release(task.worker)

    def room(self) -> int:
        """How many runs the present nodes can do at once; a run needs one node with enough of every resource."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not self.need:
            return len(nodes)
        return sum(int(min(there.get(n, 0.0) / amount + 1e-9 for n, amount in self.need.items())) for there in nodes)

    def _hand_out(self) -> None:
        while len(self.tasks) < max(1, self.room()):
            worker = f"{self.base}-{time.monotonic_ns():x}"
            run = self.store.claim(worker, among=self.ids)
            if run is None:
                return
            try:
                name = run.experiment["dataset"]
                if name not in self.shared:
                    self.shared[name] = self.ray.put(self.data.get(name))
                before = self.store.needs().get(run.id)
                stream = self.remote.remote(
                    json.dumps(run.experiment), self._state(run),
                    {} if before is None else self._state(self.store.run(before)), self.shared[name],
                )  # fmt: skip
            except (ValueError, OSError) as error:  # a data set that is not there
                self.store.fail(run.id, describe_error(error), worker=worker)
                continue
            self.tasks.append(RayTask(run, stream, worker))

    def _state(self, run: Run) -> Files:
        return files_of(self.store.run_folder(run.id), run.rounds)

    def _listen(self) -> None:
        """Process the messages that have arrived; the run of a lost task becomes free again."""
        streams = [task.stream for task in self.tasks]
        ready, _ = self.ray.wait(streams, num_returns=1, timeout=0.5, fetch_local=False)
        for task in [task for task in self.tasks if task.stream in ready]:
            try:
                ended = self._take(task, self.ray.get(next(task.stream)))
            except StopIteration:
                ended = True
            except LostClaimError:
                ended = True
                self.ray.cancel(task.stream, force=True)
            except self.ray.exceptions.RayTaskError as error:
                ended = True
                cause = error.cause if isinstance(error.cause, Exception) else error
                with contextlib.suppress(LostClaimError):
                    self.store.fail(task.run.id, describe_error(cause), worker=task.worker)
            except self.ray.exceptions.RayError:  # the node or its process is gone
                ended = True
                self._lose(task)
            if ended:
                self.tasks.remove(task)

    def _lose(self, task: RayTask) -> None:
        """Free the run of a lost node. A run that loses several nodes without finishing a round has failed."""
        id = task.run.id
        self.lost[id] = self.lost.get(id, 0) + 1
        with contextlib.suppress(LostClaimError):
            if self.lost[id] >= ATTEMPTS:
                self.store.fail(id, f"its process or node was lost {ATTEMPTS} times in one round", worker=task.worker)
            else:
                self.store.release(task.worker)

    def _take(self, task: RayTask, message: dict[str, Any]) -> bool:
        id, store = task.run.id, self.store
        if "resumed_at" in message:
            store.keep_rounds(id, message["resumed_at"], worker=task.worker)
        elif "record" in message:
            done = message["record"]["round"]
            store.write_round(id, message["record"], message["seconds"], worker=task.worker)
            if "state" in message:
                States(store.run_folder(id)).write(done, message["state"])
            if done > self.furthest.get(id, 0):
                self.furthest[id], self.lost[id] = done, 0
        else:
            store.finish(id, summary(store.rounds(id)), message["provenance"], worker=task.worker)
            if not self.options.keep_models:
                forget(store, id)
            return True
        return False
