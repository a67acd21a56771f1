"""A server that works until it is killed: rounds with a memory, and a buffer whose model is saved after each average.

python server_to_kill.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import honestly as hn
from honestly.federation import Referee, Reply
from honestly.files import write_atomically


def main(folder: Path) -> None:
    kept = hn.Memory()
    if (folder / "history" / "memory.json").exists():
        kept = hn.Memory.from_dict(json.loads((folder / "history" / "memory.json").read_text()))
    referee = Referee(hn.Bayesian(memory=kept), history=folder / "history")
    saved = folder / "model.json"
    model, version = json.loads(saved.read_text()) if saved.exists() else (0.0, 0)
    buffer = hn.Buffer(3, "mean", discount=0, folder=folder / "buffer", version=version)
    number = 0
    while True:
        number += 1
        rng = np.random.default_rng(number)
        honest = [Reply(k, update={"w": 1 + 0.1 * rng.normal(size=50)}) for k in range(6)]
        referee.judge(number, [*honest, *(Reply(10 + k, update={"w": np.full(50, -9.0 - k)}) for k in range(2))])
        for k in range(3):
            # a client that answers again after a restart sends what it sent: it replaces itself
            out = buffer.add(k, np.array([1.0, buffer.version + k / 8]), version=buffer.version)
            if out is not None:
                model += float(out.value[0])
                write_atomically(saved, json.dumps([model, buffer.version]))
        print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
