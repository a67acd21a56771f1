"""The client: trains on its own digits. For testing, `--attacks` makes sites lie, break or fail."""

from __future__ import annotations

import argparse

import numpy as np
import nvflare.client as flare
from task import digits, train

KEY = "numpy_key"  # what FLARE's NumPy recipe calls the model, which is one array


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--attacks", default="", help="what the last sites do, e.g. sign_flip,nan,wrong_shape")
    args = parser.parse_args()
    flare.init()
    k = int(flare.get_site_name().rpartition("-")[2]) - 1  # the simulator names its sites site-1, site-2, ...
    attacks = [name for name in args.attacks.split(",") if name]
    attack = attacks[args.sites - 1 - k] if args.sites - 1 - k < len(attacks) else ""
    x, y = digits(k, args.sites)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        old = np.asarray(received.params[KEY])
        new, loss = train(old, x, y, steps=100, rate=1.0)
        steps = len(y)
        if attack in ("sign_flip", "size_liar"):
            new = old - 4 * (new - old)
        if attack == "size_liar":
            steps = 10**9
        elif attack == "nan":
            new[0, 0] = np.nan
        elif attack == "wrong_shape":
            new = new[:-1]
        flare.send(
            flare.FLModel(
                params={KEY: new},
                metrics={"train_loss": loss},
                meta={"NUM_STEPS_CURRENT_ROUND": steps},
            )
        )


if __name__ == "__main__":
    main()
