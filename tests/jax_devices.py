"""`honestly.jax.robust_mean` on eight devices emulated on one CPU; run in a separate process."""

from __future__ import annotations

import os
import warnings

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
warnings.simplefilter("error")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import honestly as hn  # noqa: E402
from honestly.jax import robust_mean  # noqa: E402

K = 8
mesh = jax.make_mesh((K,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))


def reduced(updates: dict, rule: object, pre: object = (), reference: object = None) -> tuple[dict, dict]:
    """(K, ...) results, one for each device, of (K, ...) updates."""

    def step(x: dict) -> tuple[dict, dict]:
        mine = jax.tree.map(lambda leaf: leaf[0], x)
        mean, info = robust_mean(mine, "clients", rule, pre, reference=reference, with_info=True)
        return jax.tree.map(lambda leaf: leaf[None], (mean, info))

    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("clients"), out_specs=P("clients")))
    mean, info = run(updates)
    return jax.tree.map(np.asarray, mean), jax.tree.map(np.asarray, info)


def check(updates: dict, rule: object, pre: object = (), reference: object = None, atol: float = 2e-5) -> None:
    """Check that all devices have the same bits, and that they agree with `hn.aggregate` on the same updates."""
    mean, info = reduced(updates, rule, pre, reference)
    rows = [{name: np.asarray(x[k]) for name, x in updates.items()} for k in range(K)]
    zeros = None if reference is None else {name: np.zeros_like(x) for name, x in rows[0].items()}
    whole = hn.aggregate(rows, rule, pre=pre, reference=zeros)
    for name, values in mean.items():
        assert all(values[k].tobytes() == values[0].tobytes() for k in range(K)), (rule, name)
        assert values.dtype == updates[name].dtype
        scale = 500 if values.dtype.name == "bfloat16" else 1
        np.testing.assert_allclose(
            values[0].astype(np.float64),
            np.asarray(whole.value[name], dtype=np.float64),
            rtol=0,
            atol=scale * atol,
            err_msg=str(rule),
        )
    usable = np.array([k not in whole.excluded for k in range(K)])
    assert (info["usable"] == usable).all(), (rule, info["usable"])
    for field in ("weights", "honesty"):
        expected = getattr(whole, field)
        if expected is None:
            assert np.isnan(info[field]).all(), (rule, field)
        else:
            np.testing.assert_allclose(info[field][0], expected, atol=1e-3, err_msg=f"{rule} {field}")


def updates(dtype: str = "float32") -> dict:
    rng = np.random.default_rng(0)
    made = {"w": rng.normal(size=(K, 6, 5)) + 0.5, "b": rng.normal(size=(K, 3)) + 0.5, "s": rng.normal(size=K)}
    made = {
        name: x * np.where(np.arange(K) >= 6, -4.0, 1.0).reshape(K, *[1] * (x.ndim - 1)) for name, x in made.items()
    }
    return {name: jnp.asarray(x, dtype=dtype) for name, x in made.items()}


def check_training_step() -> None:
    """Parameters that are replicated: JAX would add up their gradients before a robust mean sees them."""

    def loss(w: dict, x: jax.Array) -> jax.Array:
        return (x @ w["w"]).mean()

    def step(w: dict, x: jax.Array, *, both: bool = False) -> dict:
        error, gradient = jax.value_and_grad(loss)(w, x)
        if both:
            return robust_mean((error, gradient), "clients", "median")[1]
        return robust_mean(gradient, "clients", "median")

    def varying(w: dict, x: jax.Array) -> dict:
        return step(jax.tree.map(lambda p: jax.lax.pcast(p, "clients", to="varying"), w), x)

    weights, data = {"w": jnp.ones(3)}, jnp.ones((2 * K, 3)).at[-4:].set(-100.0)  # the last two devices lie
    specs = {"mesh": mesh, "in_specs": (P(), P("clients"))}
    for how in (step, lambda w, x: step(w, x, both=True)):
        with pytest.raises(ValueError, match=r"'w'\] is the same on all devices of 'clients'.*check_vma=False"):
            jax.shard_map(how, out_specs=P(), **specs)(weights, data)
        mean = jax.shard_map(how, out_specs=P(), check_vma=False, **specs)(weights, data)
        assert mean["w"].tolist() == [1.0, 1.0, 1.0]
    assert set(jax.shard_map(varying, out_specs=P("clients"), **specs)(weights, data)["w"].tolist()) == {1.0}


def check_layer_in_which_devices_hardly_differ() -> None:
    """About 0, float32 rounds away how they differ: by 1e-4 of a common gradient. The last three lie."""
    rng = np.random.default_rng(1)
    large, small = rng.normal(size=(K, 500)), 1e-4 * rng.normal(size=(K, 300))
    small[5:] += 2e-3 * rng.normal(size=300)
    sent = {"large": jnp.asarray(large, "float32"), "small": jnp.asarray(small + rng.normal(size=300), "float32")}
    check(sent, "bayesian", reference=0)
    honest = np.asarray(sent["small"][:5], np.float64)
    error = np.asarray(reduced(sent, "bayesian", reference=0)[0]["small"][0], np.float64) - honest.mean(axis=0)
    assert error @ error <= 3 / (8 - 3 - 3) * np.square(honest - honest.mean(axis=0)).sum(axis=1).mean()


def main() -> None:
    assert len(jax.devices()) == K
    check_training_step()
    rules = ["mean", "median", hn.TrimmedMean(f=2), "geometric_median", "bayesian", hn.MultiKrum(f=2), "norm_clipping"]
    for rule in rules:
        check(updates(), rule)
    check(updates(), "bayesian", [hn.NNM(f=2)])
    check(updates(), "bayesian", reference=0)
    check_layer_in_which_devices_hardly_differ()
    check(updates("bfloat16"), "median")
    check(updates("bfloat16"), "bayesian")
    check({**updates(), "nothing": jnp.zeros((K, 0))}, "bayesian")
    check({**updates(), "nothing": jnp.zeros((K, 0))}, "median")
    with jax.enable_x64(True):
        for rule in ("median", hn.MultiKrum(f=2, keep=3)):
            check(updates("float64"), rule, atol=1e-12)
    # two devices that lie where the centre is taken from must not hide a third, nor the differences of the others
    far = {name: x.at[7].divide(-4).at[jnp.array([0, 4])].set(1e8) for name, x in updates().items()}
    for rule in ("bayesian", "geometric_median", hn.MultiKrum(f=2)):
        check(far, rule)
    broken = updates()
    broken["w"] = broken["w"].at[1, 0, 0].set(jnp.nan)
    broken["b"] = broken["b"].at[5, 2].set(jnp.inf)
    for rule in ("mean", "median", "bayesian", "geometric_median"):
        check(broken, rule)
    for pre in ((), "nnm:f=1"):  # too few of the eight are left for this rule
        mean, _ = reduced(broken, hn.MultiKrum(f=3), pre)
        assert all(np.isnan(values).all() for values in mean.values()), pre
    for k in range(2, 5):
        broken["s"] = broken["s"].at[k].set(jnp.nan)
    for rule in ("mean", "median", "bayesian"):
        mean, _ = reduced(broken, rule)
        assert all(np.isnan(values).all() for values in mean.values()), rule
    for rule, words in (
        ("sign_guard", "needs signs"),
        (hn.Bulyan(f=1), "coordinate by coordinate"),
        (hn.Krum(f=4), r"needs at least 2f\+3 = 11"),
    ):
        with pytest.raises(ValueError, match=words):
            reduced(updates(), rule)
    print("all devices agree")


if __name__ == "__main__":
    main()
