"""Digits on NVIDIA FLARE's simulator, with a server that tells which sites to believe.

python job.py --sites 6 --attacks sign_flip,nan --out runs/nvflare
python job.py --sites 6 --attacks sign_flip,nan --mean          # FLARE's own average, for comparison
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv
from task import accuracy, digits, new_model

from honestly.nvflare import RobustAggregator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--attacks", default="")
    parser.add_argument("--rule", default="bayesian")
    parser.add_argument("--mean", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/nvflare"))
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parent
    recipe = NumpyFedAvgRecipe(
        name="digits",
        model=new_model().tolist(),
        min_clients=args.sites,
        num_rounds=args.rounds,
        train_script=str(here / "client.py"),
        train_args=f"--sites {args.sites}" + (f" --attacks {args.attacks}" if args.attacks else ""),
        aggregator=None if args.mean else RobustAggregator(rule=args.rule, history=str(out / "history")),
    )
    recipe.add_client_file(str(here / "task.py"))
    run = recipe.execute(SimEnv(num_clients=args.sites, num_threads=args.sites, workspace_root=str(out / "workspace")))
    models = sorted(Path(str(run.get_result())).rglob("server.npy"))
    if not models:
        raise SystemExit(f"the job left no model: {run.get_status()}")
    result = accuracy(np.load(models[0]), *digits(0, 0))
    (out / "result.json").write_text(json.dumps({"accuracy": result}) + "\n")
    print(f"accuracy of the global model: {result:.3f}")


if __name__ == "__main__":
    main()
