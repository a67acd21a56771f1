"""Average the updates of ten clients robustly with one call, and see which clients to believe.

python examples/library.py
"""

import numpy as np

import honestly as hn

NAMES = ["Aarhus", "Bergen", "Cork", "Delft", "Espoo", "Faro", "Graz", "Lyon", "Oulu", "Porto"]


def update(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The update of an honest client: a state dict, as in PyTorch."""
    return {
        "layer.weight": (0.5 + rng.normal(size=(64, 32))).astype(np.float32),
        "layer.bias": (0.5 + rng.normal(size=32)).astype(np.float32),
        "norm.num_batches_tracked": np.array(7),
    }


def main() -> None:
    rng = np.random.default_rng(0)
    updates = {name: update(rng) for name in NAMES}
    for liar in ("Graz", "Lyon", "Oulu"):  # four times the opposite of what they learned
        updates[liar] = {name: -4 * array for name, array in updates[liar].items() if "num" not in name}
        updates[liar]["norm.num_batches_tracked"] = np.array(7)
    updates["Porto"]["layer.bias"][3] = np.nan  # and one is broken

    previous = {name: np.zeros_like(array) for name, array in updates["Aarhus"].items()}
    out = hn.aggregate(updates, reference=previous)
    for name, honesty, verdict, why in zip(out.clients, out.honesty, out.verdicts, out.explanations, strict=True):
        print(f"{name:8} honest with probability {honesty:.2f}   {verdict}: {why}")
    print(out.summary())
    mean = hn.aggregate(updates, rule="mean").value["layer.weight"].mean()
    print(f"average weight: {out.value['layer.weight'].mean():.2f}, and by the plain mean {mean:.2f} (truth: 0.5)")


if __name__ == "__main__":
    main()
