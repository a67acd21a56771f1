"""The server: FedAvg's app with another strategy. Changed lines are marked with `# robust`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum

from honestly.flower import RobustFedAvg  # robust
from quickstart.task import new_model, test, test_set

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    out = Path(str(config["out"])) if config["out"] else None
    common = {
        "fraction_evaluate": float(config["fraction-evaluate"]),
        "min_train_nodes": int(config["min-nodes"]),
        "min_available_nodes": int(config["min-nodes"]),
    }
    if config["strategy"] == "robust":
        strategy = RobustFedAvg(rule=rule_of(config), history=out, **common)  # robust
    else:  # Flower's own strategies, for comparison with the same clients
        strategy = {
            "fedavg": FedAvg,
            "fedmedian": FedMedian,
            "fedtrimmedavg": FedTrimmedAvg,
            "krum": lambda **kw: Krum(num_malicious_nodes=2, **kw),
        }[str(config["strategy"])](**common)

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model()),
        train_config=ConfigRecord({"server-round": 0}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    if out:
        save(out, result.arrays.to_numpy_ndarrays(), result.evaluate_metrics_serverapp)


def rule_of(config: dict) -> str:  # robust
    """Parse a rule as on the command line, "nnm:f=2+krum:f=2"; the Bayesian rule may remember suspicion."""
    forgetting = float(config["forgetting"])
    return f"bayesian:memory={forgetting}" if forgetting else str(config["rule"])


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    loss, accuracy = test(arrays.to_numpy_ndarrays(), *test_set())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


def save(out: Path, model: list[np.ndarray], rounds: dict[int, MetricRecord]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "model.npz", *model)
    accuracy = [rounds[r]["accuracy"] for r in sorted(rounds)]
    (out / "result.json").write_text(json.dumps({"accuracy": accuracy}) + "\n")
