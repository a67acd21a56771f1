"""Run a study of two rules and two attacks, or resume it if it was stopped, and print its table.

python examples/study.py [FOLDER]
honestly report FOLDER        # the same as pages, tables and figures
"""

import sys
import tempfile
from pathlib import Path

from honestly.cli import main as honestly
from honestly.runs.store import Store

STUDY = """
name = "example"

[base]
dataset = "digits"
model = "mlp"
clients = 10
rounds = 4
malicious = 3

[axes]
attack = ["sign_flip", "label_flip"]
rule = [{ label = "FedAvg", rule = "mean" }, { label = "Ours", rule = "bayesian" }]
seed = [0, 1]
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "example.toml").write_text(STUDY)
    honestly(["bench", str(folder / "example.toml"), "--out", str(folder / "results"), "--quiet"])  # as in a shell

    runs = Store.read(folder / "results").runs()
    print(
        f"{len(runs)} runs, {sum(run.status == 'done' for run in runs)} done; accuracy in the last round, seeds 0 and 1"
    )
    for rule in ("FedAvg", "Ours"):
        for attack in ("sign_flip", "label_flip"):
            results = [
                run.summary["accuracy_last"] for run in runs if (run.cell["rule"], run.cell["attack"]) == (rule, attack)
            ]
            print(f"{rule:7} {attack:11}", " ".join(f"{accuracy:.2f}" for accuracy in results))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
