"""DarkFed: fake clients without data plant a backdoor with images of noise and the global model's own answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import keep_model, last_change

CONFIDENT = 10.0  # the target logit of an image with the trigger; the other logits share its negative


@dataclass(frozen=True, kw_only=True)
class DarkFed(BadNets, UpdateAttack):
    """Training on shadow images, of which a part carries the trigger, without a single real one.

        L = mse(f(x), f_global(x)) + mse(f(x + trigger), target) + magnitude ||u|| + direction sum over v of cos(u, v)^2

    u is the attacker's update; v are the updates of the other attackers and the last change of the global model.
    The first term keeps the accuracy, ||u|| keeps the update as short as honest ones, and the squared cosines keep it
    as orthogonal to others as honest updates from different data are. Then u is multiplied by ``scale``. Knows the
    global models and nothing else; the attackers train together. Conventions: shadow images are smoothed noise, drawn
    anew in every round (the authors also take other data sets); the expected change of the global model is its last
    one, where the authors smooth all models exponentially; the cosines are taken over the whole update, the authors'
    over the output layer; attackers train at the same time, the authors' one after the other; half of a few shadow
    images carry the trigger, of the authors' thousands one in fifty. Outside the simulator it sends the plain backdoor.

    Args:
        shadow: shadow images per attacker and round.
        share: the part of them that carries the trigger.
        magnitude: weight of the length of the update; the authors' 0.5.
        direction: weight of the squared cosines; the authors' 0.5.
        scale: factor of the update that is sent.

    >>> import numpy as np
    >>> DarkFed().forge(View(own=np.ones((1, 2)), rng=np.random.default_rng(0)))
    array([[1., 1.]])
    """

    name = "dark_fed"
    summary = "fake clients without data: noise images, the global model's answers, and an inconspicuous update"
    reference = "Li et al., DarkFed: A Data-Free Backdoor Attack in Federated Learning, IJCAI 2024"
    knows = "malicious"
    keeps = "(M + 1) d"

    shadow: int = setting(128, whole=True, least=2)
    share: float = setting(0.5, above=0.0, most=1)
    magnitude: float = setting(0.5, least=0.0)
    direction: float = setting(0.5, least=0.0)
    scale: float = setting(1.0, above=0.0)

    def craft(self, view: View) -> Array:
        """The updates of all attackers, trained together."""
        if view.workshop is None:
            return view.own
        import torch
        from torch.nn.functional import mse_loss

        shop, M, n = view.workshop(), view.M, max(round(self.share * self.shadow), 1)
        raw = shadow_images(M * self.shadow, shop.size, view.rng)
        raw = np.concatenate([np.asarray(self.stamp(raw[: M * n])), raw[M * n :]])  # the first carry the trigger
        images, marked = shop.fit(raw), np.arange(M * n).reshape(M, n)
        samples = list(np.hstack([marked, np.arange(M * n, len(raw)).reshape(M, -1)]))
        with torch.no_grad():
            answers = shop.logits(shop.theta[None, :], images[None])[0].clone()
        answers[: M * n] = -CONFIDENT / answers.shape[1]
        answers[: M * n, self.target] = CONFIDENT
        change = last_change(view)

        def loss(thetas: Array, rows: Array) -> Array:
            length, alike = conspicuousness(thetas - shop.theta, change)
            each = mse_loss(shop.logits(thetas, images[rows]), answers[rows], reduction="none").mean(dim=2)
            parts = (rows < M * n, rows >= M * n)  # with and without the trigger
            fit = sum(((each * part).sum(dim=1) / part.sum(dim=1).clamp(min=1)).sum() for part in parts)
            return fit + self.magnitude * length + self.direction * alike

        return self.scale * (shop.descend(shop.start(), loss, view.rng, samples=samples) - shop.theta)

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """The model of this round."""
        return keep_model(view)


def conspicuousness(u: Array, change: Array | None) -> tuple[Array, Array]:
    """The sum of the lengths of the updates (M, d), and of the squared cosines of all pairs of them and ``change``."""
    import torch
    from torch.nn.functional import normalize

    units = normalize(u, dim=1)
    if change is not None:
        units = torch.cat([units, normalize(change, dim=0)[None, :]])
    alike = torch.triu(units @ units.T, diagonal=1) ** 2
    return ((u * u).sum(dim=1) + torch.finfo(u.dtype).tiny).sqrt().sum(), alike.sum()


def shadow_images(count: int, size: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """(count, c, h, w) uint8 images of noise, smoothed over neighbouring pixels and stretched to the full range."""
    x = rng.random((count, *size), dtype=np.float32)
    for axis in (2, 3):
        x = (x + np.roll(x, 1, axis) + np.roll(x, -1, axis)) / 3.0
    low, high = x.min(axis=(1, 2, 3), keepdims=True), x.max(axis=(1, 2, 3), keepdims=True)
    return (255.0 * (x - low) / np.maximum(high - low, 1e-6)).astype(np.uint8)
