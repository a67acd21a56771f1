"""Fed-BioMed's own experiment, strategy and breakpoint with our aggregator: run by the Python that has Fed-BioMed.

DIGITS=digits.npz python real_fedbiomed.py WORK_FOLDER RULE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

COUNT, LIARS, ROUNDS = 8, 3, 4


def main(folder: Path, rule: str) -> None:
    os.chdir(folder)
    import numpy as np
    import torch
    from fedbiomed.researcher.aggregators import Aggregator
    from fedbiomed.researcher.datasets import FederatedDataset
    from fedbiomed.researcher.federated_workflows import Experiment
    from fedbiomed.researcher.strategies.default_strategy import DefaultStrategy

    from honestly.fedbiomed import RobustAggregator

    torch.manual_seed(0)
    torch.set_num_threads(1)
    with np.load(os.environ["DIGITS"]) as file:
        images = torch.from_numpy(file["images"].reshape(-1, 64) / file["images"].max()).float()
        labels = torch.from_numpy(file["labels"]).long()
    nodes = [f"node-{k}" for k in range(COUNT)]
    remembers = {"forgetting": 0.9} if rule == "bayesian" else {}
    experiment = Experiment(aggregator=RobustAggregator(rule=rule, history=str(folder / "history"), **remembers))
    aggregator = experiment.aggregator()
    assert isinstance(aggregator, Aggregator)
    net = torch.nn.Linear(64, 10)
    model = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    strategy = DefaultStrategy()
    data = FederatedDataset({node: {"dataset_id": node, "shape": [64]} for node in nodes})
    for number in range(ROUNDS):
        chosen = strategy.sample_nodes(data.node_ids(), number)
        assert sorted(chosen) == sorted(nodes)
        replies = {}
        for k, node in enumerate(nodes):
            net.load_state_dict(model)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            mine = torch.arange(k, 1400, COUNT)
            for _ in range(60):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(images[mine]), labels[mine]).backward()
                optimizer.step()
            sent = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            if k >= COUNT - LIARS:
                sent = {name: model[name] - 4 * (sent[name] - model[name]) for name in sent}
            replies[node] = {"node_id": node, "success": True, "params": sent, "sample_size": len(mine), "msg": ""}
        params, weights, _, _ = strategy.refine(replies, number)
        model = aggregator.aggregate(
            params, weights, global_model=model, training_plan=None, training_replies=replies, node_ids=nodes,
            n_updates=None, n_round=number,
        )  # fmt: skip
    rounds = aggregator.rounds
    state = json.loads(json.dumps(aggregator.save_state_breakpoint(str(folder), global_model=model)))
    again = Experiment._create_object(state)
    assert isinstance(again, RobustAggregator)
    assert again.referee.rule == aggregator.referee.rule
    assert not aggregator.create_aggregator_args()  # nothing of the verdicts is sent to the nodes
    net.load_state_dict(model)
    accuracy = float((net(images[1400:]).argmax(1) == labels[1400:]).double().mean())
    accused = sorted({str(client) for record in rounds for client in record.accused})
    print("FOUND " + json.dumps({"accuracy": accuracy, "rounds": len(rounds), "accused": accused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
