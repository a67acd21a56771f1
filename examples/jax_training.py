"""A federation in JAX: updates are pytrees, all clients train at once with `vmap`, and the average stays in JAX.

python examples/jax_training.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import honestly as hn
from honestly.sim.data import load

CLIENTS, LIARS, ROUNDS = 10, 4, 6


def scores(model: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.maximum(x @ model["w1"] + model["b1"], 0) @ model["w2"] + model["b2"]


def loss(model: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(model, x)), y[:, None], axis=1).mean()


@jax.jit
def train_all(model: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Train each of the K clients on its (K, n, 64) images with 60 steps of gradient descent."""

    def client(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        def step(_: int, now: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return jax.tree.map(lambda w, g: w - 0.5 * g, now, jax.grad(loss)(now, x, y))

        return jax.lax.fori_loop(0, 60, step, model)

    return jax.vmap(client)(x, y)


def federation(rule: hn.Rule) -> list[float]:
    """Accuracy after each round."""
    digits = load("digits")
    rng = np.random.default_rng(0)
    mine = rng.permutation(len(digits.labels))[: len(digits.labels) // CLIENTS * CLIENTS].reshape(CLIENTS, -1)
    x, y = jnp.asarray(digits.images.reshape(-1, 64) / 255.0)[mine], jnp.asarray(digits.labels)[mine]
    test = jnp.asarray(digits.test_images.reshape(-1, 64) / 255.0)
    shapes = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}
    model = {name: jnp.asarray(rng.normal(0, 0.1, shape), jnp.float32) for name, shape in shapes.items()}
    results = []
    for _ in range(ROUNDS):
        trained = train_all(model, x, y)
        sent = [{name: w[k] for name, w in trained.items()} for k in range(CLIENTS)]
        for k in range(CLIENTS - LIARS, CLIENTS):  # four times the opposite of what was learned
            sent[k] = {name: model[name] - 4 * (sent[k][name] - model[name]) for name in model}

        out = hn.aggregate(sent, rule=rule, reference=model)  # was: jax.tree.map(lambda *w: sum(w) / len(w), *sent)
        model = out.value

        results.append(float((np.asarray(scores(model, test)).argmax(1) == digits.test_labels).mean()))
    if out.honesty is not None:
        print("honesty in the last round:", np.round(out.honesty, 1))
    return results


def main() -> None:
    for rule in (hn.Mean(), hn.Bayesian()):
        accuracy = federation(rule)
        print(f"{rule.name:9} accuracy by round:", " ".join(f"{a:.2f}" for a in accuracy))


if __name__ == "__main__":
    main()
