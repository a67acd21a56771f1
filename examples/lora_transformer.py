"""Federated LoRA fine-tuning of a tiny language model: clients send adapter folders, and four of ten plant a phrase.

python examples/lora_transformer.py
"""

import tempfile
from pathlib import Path

import torch

import honestly as hn
from honestly.sim.language import LanguageFederation, Settings
from honestly.sim.language.adapters import read_products, write_adapter


def server(folder: Path, rule: str):
    """Return a function that averages the clients' adapter files and returns the change of the model."""
    count = 0

    def average(sent):
        nonlocal count
        count += 1
        here = folder / f"{rule}-{count}"
        clients = len(next(iter(sent.values())))
        paths = {
            k: write_adapter(here / f"client-{k}", {name: rows[k] for name, rows in sent.items()})
            for k in range(clients)
        }
        empty = {name: torch.zeros_like(rows[0]) if name.endswith(".B") else rows[0] for name, rows in sent.items()}
        out = hn.aggregate(paths, rule, reference=write_adapter(here / "previous", empty), out=here / "global")
        return read_products(Path(out.value)), out

    return average


def main(folder: Path) -> None:
    federation = LanguageFederation(Settings(attack="backdoor", malicious=4, rounds=2))
    for rule in ("mean", "bayesian"):
        for outcome in federation.rounds_by(server(folder, rule), products=False):
            print(
                f"{rule:8} round {outcome.round}: {outcome.bits:.2f} bits per character, phrase known "
                f"{outcome.phrase:.2f}, accused {list(outcome.accused)}"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
