"""OpenFL's own plan and tensor data base with our aggregation function: run by the Python that has OpenFL.

DIGITS=digits.npz python real_openfl.py WORK_FOLDER RULE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

COLLABORATORS, LIARS, ROUNDS = 8, 3, 4


def trained(model: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Softmax regression by gradient descent."""
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(60):
        scores = images @ weight + bias
        p = np.exp(scores - scores.max(1, keepdims=True))
        error = p / p.sum(1, keepdims=True) - np.eye(10)[labels]
        weight -= 0.5 * images.T @ error / len(labels)
        bias -= 0.5 * error.mean(0)
    return {"weight": weight.astype("f4"), "bias": bias.astype("f4")}


def main(folder: Path, rule: str) -> None:
    from openfl.databases import TensorDB
    from openfl.federated import Plan
    from openfl.interface.aggregation_functions import AggregationFunction
    from openfl.utilities import TensorKey, change_tags

    with np.load(os.environ["DIGITS"]) as file:
        images, labels = file["images"].reshape(-1, 64) / file["images"].max(), file["labels"].astype(int)
    settings = {"rule": rule, "history": str(folder / "history")}
    function = Plan.build(template="honestly.openfl.RobustAggregation", settings=settings)
    assert isinstance(function, AggregationFunction)
    db, tags = TensorDB(), ("trained",)
    names = [f"hospital-{k}" for k in range(COLLABORATORS)]
    model = {"weight": np.zeros((64, 10), "f4"), "bias": np.zeros(10, "f4")}
    for number in range(ROUNDS):
        db.cache_tensor({TensorKey(n, "agg", number, False, ("model",)): v for n, v in model.items()})
        for k, name in enumerate(names):
            mine = slice(k, 1400, COLLABORATORS)
            sent = trained(model, images[mine], labels[mine])
            if k >= COLLABORATORS - LIARS:
                sent = {n: model[n] - 4 * (sent[n] - model[n]) for n in sent}
            own = change_tags(tags, add_field=name)
            db.cache_tensor({TensorKey(n, "agg", number, False, own): v for n, v in sent.items()})
        shares = dict.fromkeys(names, 1 / COLLABORATORS)
        model = {n: db.get_aggregated_tensor(TensorKey(n, "agg", number, False, tags), shares, function) for n in model}
    accuracy = float(((images[1400:] @ model["weight"] + model["bias"]).argmax(1) == labels[1400:]).mean())
    accused = sorted({str(client) for record in function.rounds for client in record.accused})
    print("FOUND " + json.dumps({"accuracy": accuracy, "rounds": len(function.rounds), "accused": accused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
