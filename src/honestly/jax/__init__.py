"""A robust mean over a mesh axis in JAX: `robust_mean` instead of `jax.lax.pmean` (extra `[jax]`).

Inside `jax.shard_map`, each device along the axis is a client. The devices exchange slices (`all_to_all`), add up their
Gram matrices (`psum`), run the rule on the host (`jax.pure_callback`: the package's own rules, in float64), average
their slice and gather the result.
"""

from importlib.util import find_spec

if find_spec("jax") is None:
    raise ModuleNotFoundError("honestly.jax needs JAX: pip install 'honestly[jax]'", name="jax")

from honestly.jax.mean import robust_mean

__all__ = ["robust_mean"]
