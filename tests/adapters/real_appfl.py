"""APPFL's own server and clients in one process, with our aggregator: run by the Python that has APPFL.

DIGITS=digits.npz python real_appfl.py WORK_FOLDER RULE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MODEL = """
import torch

class Digits(torch.nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        )

    def forward(self, x):
        return self.net(x)
"""
DATA = """
import os
import numpy as np
import torch

def everything():
    with np.load(os.environ["DIGITS"]) as file:
        images = torch.from_numpy(file["images"]).float()
        return images / images.max(), torch.from_numpy(file["labels"]).long()

def digits(part=0, parts=8, lie=False):
    images, labels = everything()
    mine = torch.arange(part, 1400, parts)
    train = torch.utils.data.TensorDataset(images[mine], 9 - labels[mine] if lie else labels[mine])
    return train, torch.utils.data.TensorDataset(images[1400:], labels[1400:])
"""
LOSS = """
import torch

class CE(torch.nn.Module):
    def forward(self, scores, labels):
        return torch.nn.functional.cross_entropy(scores, labels)
"""
METRIC = """
def accuracy(labels, scores):
    return 100 * float((scores.argmax(1) == labels).mean())
"""
CLIENTS, LIARS, ROUNDS = 8, 3, 4


def main(folder: Path, rule: str) -> None:
    import torch
    from appfl.agent import ClientAgent, ServerAgent
    from appfl.config import ClientAgentConfig, ServerAgentConfig
    from omegaconf import OmegaConf

    torch.manual_seed(0)
    torch.set_num_threads(1)
    files = {"model": MODEL, "data": DATA, "loss": LOSS, "metric": METRIC}
    files["aggregator"] = "from honestly.appfl import RobustAggregator\n"
    for name, text in files.items():
        (folder / f"{name}_file.py").write_text(text)
    path = {name: str(folder / f"{name}_file.py") for name in files}
    model = {"model_path": path["model"], "model_name": "Digits", "model_kwargs": {"hidden": 32}}
    kwargs = {"rule": rule, "history": str(folder / "history"), **model}
    train = {
        "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": 2, "optim": "SGD",
        "optim_args": {"lr": 0.1, "momentum": 0.9}, "loss_fn_path": path["loss"], "loss_fn_name": "CE",
        "metric_path": path["metric"], "metric_name": "accuracy", "do_validation": False, "device": "cpu",
        "train_batch_size": 24, "train_data_shuffle": True, "val_batch_size": 64, "use_dp": False,
        "optimize_memory": False,  # else it collects garbage all the time
    }  # fmt: skip
    server = ServerAgent(
        ServerAgentConfig(
            client_configs=OmegaConf.create({"train_configs": train, "model_configs": dict(model)}),
            server_configs=OmegaConf.create(
                {
                    "num_clients": CLIENTS, "num_global_epochs": ROUNDS, "scheduler": "SyncScheduler",
                    "scheduler_kwargs": {"same_init_model": True, "optimize_memory": False},
                    "aggregator": "RobustAggregator", "optimize_memory": False,
                    "aggregator_path": path["aggregator"], "aggregator_kwargs": kwargs, "device": "cpu",
                    "logging_output_dirname": str(folder / "log"), "logging_output_filename": "server",
                }
            ),
        )
    )  # fmt: skip
    clients = []
    for k in range(CLIENTS):
        data = {"dataset_path": path["data"], "dataset_name": "digits"}
        data["dataset_kwargs"] = {"part": k, "parts": CLIENTS, "lie": k >= CLIENTS - LIARS}
        own = {"device": "cpu", "logging_output_dirname": str(folder / "log"), "logging_output_filename": f"c{k}"}
        base = OmegaConf.structured(ClientAgentConfig)
        OmegaConf.set_struct(base, False)  # as when APPFL reads a client's file
        config = OmegaConf.create({"client_id": f"site-{k}", "train_configs": own, "data_configs": data})
        config.optimize_memory = False
        client = ClientAgent(OmegaConf.merge(base, config))
        client.load_config(server.get_client_configs())
        client.load_parameters(server.get_parameters(serial_run=True))
        server.set_sample_size(client.get_id(), client.get_sample_size())
        clients.append(client)
    while not server.training_finished():
        futures = []
        for k, client in enumerate(clients):
            client.train()
            sent = client.get_parameters()
            sent = sent[0] if isinstance(sent, tuple) else sent
            if k >= CLIENTS - LIARS:  # besides wrong labels, the opposite of what was learned
                old = server.get_parameters(serial_run=True, init_model=False)
                sent = {name: old[name] - 4 * (sent[name] - old[name]) for name in sent}
            futures.append(server.global_update(client.get_id(), sent, blocking=False))
        for client, future in zip(clients, futures, strict=True):
            client.load_parameters(future.result())
    sys.path.insert(0, str(folder))
    from data_file import everything

    images, labels = (part[1400:] for part in everything())
    scores = server.aggregator.model(images)
    rounds = server.aggregator.rounds
    found = {
        "accuracy": float((scores.argmax(1) == labels).double().mean()),
        "rounds": len(rounds),
        "accused": sorted({str(client) for record in rounds for client in record.accused}),
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
