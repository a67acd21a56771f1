"""Show what each framework's own averaging does with the same bad inputs, and what honestly does instead.

    python benchmarks/framework_faults.py flower nvflare --json a.json      # installed in this environment
    python benchmarks/framework_faults.py fedn --json b.json                # fedn and nvflare exclude each other
    python benchmarks/framework_faults.py --merge a.json b.json --out docs/results/framework-faults.md

Ten clients train the same small model; one of them is bad (three where noted). Everything goes through the frameworks'
own classes, in one process: Flower's strategies on Message objects, FLARE's FedAvg controller on FLModel objects,
FEDn's aggregator and its server-functions service on model bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import os
import queue
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
Arrays = dict[str, np.ndarray]
K, SPREAD = 10, 0.2


@dataclass
class Client:
    """What one client sends."""

    arrays: Arrays
    size: Any = 100
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 0.5})
    raw: bytes | None = None  # bytes instead of the array "w"


def old() -> Arrays:
    return {"w": np.ones((40, 25), np.float32), "b": np.ones(25, np.float32), "n": np.array([7], np.int64)}


def honest(k: int) -> Client:
    rng = np.random.default_rng(k)
    step = {name: 1 + 1 + SPREAD * rng.normal(size=x.shape) for name, x in old().items() if name != "n"}
    return Client({name: x.astype(np.float32) for name, x in step.items()} | {"n": np.array([8], np.int64)})


def flip_signs(client: Client) -> Client:
    client.arrays = {n: (x if n == "n" else (1 - 4 * (x - 1)).astype(np.float32)) for n, x in client.arrays.items()}
    return client


def _set(client: Client, **arrays: Any) -> Client:
    client.arrays |= arrays
    return client


def _without(client: Client, name: str) -> Client:
    return Client({n: x for n, x in client.arrays.items() if n != name})


def _rename(client: Client) -> Client:
    return Client({("v" if n == "w" else n): x for n, x in client.arrays.items()})


def _one_nan(client: Client) -> Client:
    client.arrays["w"][3, 4] = np.nan
    return client


def _size(client: Client, size: Any) -> Client:
    client.size = size
    return client


def _metrics(client: Client, **metrics: Any) -> Client:
    client.metrics |= metrics
    return client


def _raw(client: Client, data: bytes) -> Client:
    client.raw = data
    return client


def _absurd() -> bytes:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


FAULTS: dict[str, tuple[int, Callable[[Client], Client]]] = {
    "none": (0, lambda c: c),
    "one NaN": (1, _one_nan),
    "wrong shape": (1, lambda c: _set(c, b=np.ones(26, np.float32))),
    "array renamed": (1, _rename),
    "array missing": (1, lambda c: _without(c, "b")),
    "array added": (1, lambda c: _set(c, extra=np.ones(3, np.float32))),
    "text for numbers": (1, lambda c: _set(c, w=np.full((40, 25), "x"))),
    "garbage bytes": (1, lambda c: _raw(c, b"not an array")),
    "header claims 4 TB": (1, lambda c: _raw(c, _absurd())),
    "metric key added": (1, lambda c: _metrics(c, vote=1.0)),
    "reports a loss of -1e9": (1, lambda c: _metrics(c, loss=-1e9)),
    "reports 1e9 examples, sign flip": (1, lambda c: _size(flip_signs(c), 10**9)),
    "reports -1 examples": (1, lambda c: _size(c, -1)),
    "reports NaN examples": (1, lambda c: _size(c, float("nan"))),
    "sign flip x4": (1, flip_signs),
    "sign flip x4, 3 of 10": (3, flip_signs),
}


def clients(fault: str) -> list[Client]:
    bad, spoil = FAULTS[fault]
    return [spoil(honest(k)) if k >= K - bad else honest(k) for k in range(K)]


def verdict(arrays: Arrays | None, loss: float | None, counters: bool) -> str:
    """Describe the outcome: whether the model is the honest one, how far off it is, and whether the loss is correct."""
    if arrays is None:
        return "round lost"
    true = {n: np.mean([honest(k).arrays[n] for k in range(K)], axis=0) for n in ("w", "b")}
    if set(arrays) != set(old()) or any(arrays[n].shape != true[n].shape for n in true):
        return "**model has another layout**"
    if not all(np.isfinite(arrays[n].astype(float)).all() for n in true):
        return "**model is NaN**"
    rms = np.sqrt(np.mean(np.concatenate([(arrays[n] - true[n]).ravel() ** 2 for n in true])))
    words = []
    if rms > 1.5 * SPREAD:
        words.append(f"**model is off by {rms / SPREAD:.0f} spreads**")
    if counters and arrays["n"].dtype.kind != "i":
        words.append(f"counter becomes {arrays['n'].dtype}")
    if loss is not None and not abs(loss - 0.5) < 0.1:
        words.append(f"**loss {loss:.2g} reported**")
    return ", ".join(words) or "fine"


def outcome(fault: str, run: Callable[[], tuple[Arrays | None, float | None]]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return verdict(*run(), counters=fault == "none")
    except Exception as error:
        return f"**run ends**: {type(error).__name__}"


def flower() -> dict[str, dict[str, str]]:
    import flwr.serverapp.strategy as strategies
    from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict

    from honestly.flower import RobustFedAvg

    logging.getLogger("flwr").setLevel(logging.CRITICAL)

    def message(k: int, client: Client) -> Message:
        arrays = ArrayRecord({name: Array(x) for name, x in client.arrays.items()})
        if client.raw is not None:
            shape = (10**12,) if b"1000000000000" in client.raw else (40, 25)
            arrays["w"] = Array(dtype="float32", shape=shape, stype="numpy.ndarray", data=client.raw)
        metrics = MetricRecord({"num-examples": client.size, **client.metrics})
        meta = Metadata(1, "", 2**63 + k, 1, "x", "", 0.0, 10.0, "train")
        return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), metadata=meta)

    def run(strategy: Any, fault: str) -> tuple[Arrays | None, float | None]:
        strategy._model = ArrayRecord({name: Array(x) for name, x in old().items()})
        arrays, metrics = strategy.aggregate_train(1, [message(k, c) for k, c in enumerate(clients(fault))])
        result = None if arrays is None else {name: array.numpy() for name, array in arrays.items()}
        return result, None if metrics is None else metrics.get("loss")

    table: dict[str, Callable[[], Any]] = {
        "FedAvg": strategies.FedAvg,
        "FedMedian": strategies.FedMedian,
        "FedTrimmedAvg": strategies.FedTrimmedAvg,
        "Krum (told 3)": lambda: strategies.Krum(num_malicious_nodes=3),
        "Bulyan (told 1)": lambda: strategies.Bulyan(num_malicious_nodes=1),
        "RobustFedAvg": RobustFedAvg,
    }
    return {
        name: {fault: outcome(fault, lambda make=make, fault=fault: run(make(), fault)) for fault in FAULTS}
        for name, make in table.items()
    }


def nvflare() -> dict[str, dict[str, str]]:
    from nvflare.app_common.abstract.fl_model import FLModel
    from nvflare.app_common.workflows.fedavg import FedAvg

    from honestly.nvflare import RobustAggregator

    logging.disable(logging.CRITICAL)

    def run(aggregator: Any, fault: str) -> tuple[Arrays | None, float | None]:
        """FLARE's controller as its run() drives it, without the network in between."""
        from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

        controller = FedAvg(num_clients=K, aggregator=aggregator)
        controller.info = controller.warning = lambda *words: None
        controller.current_round, controller.fl_ctx = 0, None
        controller._aggr_helper, controller._aggr_metrics_helper = (
            WeightedAggregationHelper(),
            WeightedAggregationHelper(),
        )
        for k, client in enumerate(clients(fault)):
            meta = {"client_name": f"site-{k}", "NUM_STEPS_CURRENT_ROUND": client.size}
            sent = FLModel(params=dict(client.arrays), metrics=dict(client.metrics), current_round=0, meta=meta)
            with contextlib.suppress(Exception):  # the controller logs exceptions of its callback and continues
                controller._aggregate_one_result(sent)
        result = controller._get_aggregated_result()
        return (result.params or None), (result.metrics or {}).get("loss")

    table: dict[str, Callable[[], Any]] = {"FedAvg": lambda: None, "RobustAggregator": RobustAggregator}
    skip = {"garbage bytes", "header claims 4 TB"}  # FLARE decodes before the aggregator sees anything
    return {
        name: {f: "-" if f in skip else outcome(f, lambda make=make, f=f: run(make(), f)) for f in FAULTS}
        for name, make in table.items()
    }


def fedn() -> dict[str, dict[str, str]]:
    from fedn.network.combiner.aggregators.fedavg import Aggregator
    from fedn.network.combiner.hooks import hooks
    from fedn.network.combiner.modelservice import load_model_from_bytes
    from fedn.network.grpc import fedn_pb2
    from fedn.utils.helpers.plugins.numpyhelper import Helper

    from honestly.scaleout import server_functions

    logging.disable(logging.CRITICAL)
    helper = Helper()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server_functions.py"
        path.write_text(server_functions())
        sys.path.insert(0, folder)
        import inspect

        import server_functions as exported  # pyright: ignore

        code = inspect.getsource(exported.ServerFunctions)

    def pack(arrays: Arrays) -> bytes:
        file = io.BytesIO()
        np.savez_compressed(file, **{str(i): x for i, x in enumerate(arrays.values())})
        return file.getvalue()

    def sent(client: Client) -> bytes:
        return client.raw if client.raw is not None else pack(client.arrays)

    def metadata(client: Client) -> dict[str, Any]:
        return {"num_examples": client.size, **client.metrics}

    def unpack(model: Any) -> Arrays | None:
        return None if model is None else dict(zip(old(), model, strict=False))

    def own(fault: str) -> tuple[Arrays | None, float | None]:
        class Updates:
            model_updates: queue.Queue[Any] = queue.Queue()

            def next_model_update(self) -> Any:
                update = self.model_updates.get()
                update.model_update_id = "x"
                return update

            def load_model_update(self, update: Any, helper: Any) -> Any:
                return load_model_from_bytes(sent(update), helper), metadata(update)

        updates = Updates()
        updates.model_updates = queue.Queue()
        for client in clients(fault):
            updates.model_updates.put(client)
        model, _ = Aggregator(updates).combine_models(helper=helper, delete_models=False)
        return unpack(model), None

    def ours(fault: str) -> tuple[Arrays | None, float | None]:
        service = hooks.FunctionServiceServicer()
        service.HandleProvidedFunctions(fedn_pb2.ProvidedFunctionsRequest(function_code=code), None)
        assert service.implemented_functions["aggregate"]

        def store(name: str, data: bytes) -> None:
            service.HandleStoreModel(iter([fedn_pb2.StoreModelRequest(id=name, data=data)]), None)

        store("global_model", pack(old()))
        for k, client in enumerate(clients(fault)):
            request = fedn_pb2.ClientMetaRequest(metadata=json.dumps(metadata(client)), client_id=str(k))
            service.HandleMetadata(request, None)
            store(str(k), sent(client))
        request = fedn_pb2.AggregationRequest(aggregate="aggregate")
        data = b"".join(part.data for part in service.HandleAggregation(request, None))
        assert service.implemented_functions["aggregate"], "the platform has retired the function"
        return unpack(load_model_from_bytes(data, helper)), None

    skip = {
        "array renamed",
        "metric key added",
        "reports a loss of -1e9",
    }  # arrays have no names; metrics are not averaged
    return {
        name: {f: "-" if f in skip else outcome(f, lambda run=run, f=f: run(f)) for f in FAULTS}
        for name, run in {"fedavg": own, "exported by honestly": ours}.items()
    }


FRAMEWORKS = {
    "flower": ("Flower", "flwr", flower),
    "nvflare": ("NVIDIA FLARE", "nvflare", nvflare),
    "fedn": ("FEDn and Scaleout", "fedn", fedn),
}
INTRODUCTION = """# Bad inputs, side by side

Ten clients send a model update; one of them (three where it says so) is bad. Each cell says what becomes of the round
under the framework's own strategy, and in the last column of each table what becomes of it with honestly in its place.
"Fine" means that the new model lies within one and a half honest spreads of the mean of all ten as they would have been
if honest, with its layout and (first row) its integer counters, and that the reported loss is the honest one.
"Run ends" means that the strategy raised, which ends the whole run. "-": the aggregation never sees such an input.

*Written by `benchmarks/framework_faults.py`; do not edit.*
"""


def page(results: dict[str, Any]) -> str:
    parts = [INTRODUCTION]
    for key, (title, _, _) in FRAMEWORKS.items():
        if key not in results:
            continue
        table = results[key]["table"]
        parts.append(f"## {title} ({results[key]['version']})\n")
        parts.append("| the bad client | " + " | ".join(table) + " |")
        parts.append("|---|" + "---|" * len(table))
        parts += [f"| {fault} | " + " | ".join(row[fault] for row in table.values()) + " |" for fault in FAULTS]
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []])
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="files written by --json")
    parser.add_argument("--out", type=Path, help="the page to write (default: standard output)")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for path in args.merge:
        results |= json.loads(path.read_text())
    for key in args.frameworks:
        _, package, run = FRAMEWORKS[key]
        results[key] = {"version": f"{package} {importlib.metadata.version(package)}", "table": run()}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    text = page(results)
    args.out.write_text(text) if args.out else print(text)


if __name__ == "__main__":
    main()
