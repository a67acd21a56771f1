"""The client: trains on its own digits. `--attack` makes sites lie, break or fail, for trying out."""

from __future__ import annotations

import argparse

import numpy as np
import nvflare.client as flare
from task import join, partition, split, train

KEY = "numpy_key"  # what FLARE's NumPy recipe calls the model, which is one array


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--attacks", default="", help="what the last sites do, e.g. sign_flip,nan,wrong_shape")
    args = parser.parse_args()
    flare.init()
    k = int(flare.get_site_name().rpartition("-")[2]) - 1  # the simulator calls its sites site-1, site-2, ...
    attacks = [name for name in args.attacks.split(",") if name]
    attack = attacks[args.sites - 1 - k] if args.sites - 1 - k < len(attacks) else ""
    x, y = partition(k, args.sites)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        old = split(received.params[KEY])
        new, loss = train(old, x, y, epochs=3, rate=0.1)
        steps = len(y)
        if attack == "sign_flip":
            new = [w0 - 4 * (w - w0) for w0, w in zip(old, new, strict=True)]
        elif attack == "nan":
            new[0][0, 0] = np.nan
        elif attack == "size_liar":
            new, steps = [w0 - 4 * (w - w0) for w0, w in zip(old, new, strict=True)], 10**9
        flare.send(
            flare.FLModel(
                params={KEY: join(new)[:-1] if attack == "wrong_shape" else join(new)},
                metrics={"train_loss": loss},
                meta={"NUM_STEPS_CURRENT_ROUND": steps},
            )
        )


if __name__ == "__main__":
    main()
