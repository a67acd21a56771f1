"""Chameleon: a backdoor whose images look, to the model, like those of the target class."""

from __future__ import annotations

from dataclasses import dataclass

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import output_layer

BATCH = 64  # images that are contrasted with each other at least, as in the authors' code


@dataclass(frozen=True, kw_only=True)
class Chameleon(BadNets, UpdateAttack):
    """Contrastive training draws poisoned images to the target class; then the output layer alone is trained.

        stage 1:  L = -mean_i s_i mean over p in P(i) of log(exp(z_i.z_p / T) / sum over a != i of exp(z_i.z_a / T))
        stage 2:  cross-entropy, only the output layer moves

    z are the features before the output layer, as unit vectors; P(i) are the other images of the mini-batch with the
    label of i; s_i is ``facilitate`` for images with label ``target``, else 1. Honest clients that train on images of
    classes ``source`` and ``target`` undo such a backdoor less, so it lasts after the attack has stopped. Knows its own
    data and the global model. Conventions: stage 1 takes ``epochs`` passes at the honest learning rate times ``rate``,
    where the authors schedule a rate of their own; BatchNorm statistics are those of the global model. Outside the
    simulator, where there is nothing to train on, it sends the plain backdoor.

    Args:
        epochs: passes over the data in stage 1; the authors' 10.
        rate: learning rate of stage 1, relative to that of honest clients.
        temperature: T; the authors' 0.07.
        facilitate: the weight of images with label ``target``; the authors' 2.

    >>> import numpy as np
    >>> Chameleon().forge(View(own=np.ones((1, 2)), rng=np.random.default_rng(0)))
    array([[1., 1.]])
    """

    name = "chameleon"
    summary = "contrastive training makes poisoned images look like the target class, so the backdoor lasts"
    reference = "Dai and Li, Chameleon: Adapting to Peer Images for Planting Durable Backdoors in FL, ICML 2023"
    training = 2.0
    keeps = "features of a mini-batch"

    epochs: int = setting(10, whole=True, least=0)
    rate: float = setting(0.3, above=0.0)
    temperature: float = setting(0.07, above=0.0)
    facilitate: float = setting(2.0, above=0.0)

    def craft(self, view: View) -> Array:
        """Each attacker's update after both stages."""
        if view.workshop is None:
            return view.own
        import torch
        from torch.nn.functional import cross_entropy, normalize

        shop = view.workshop()

        def contrast(thetas: Array, rows: Array) -> Array:
            z = normalize(shop.features(thetas, shop.images[rows]), dim=2)
            return contrastive(z, shop.labels[rows], self.temperature, self.target, self.facilitate).sum()

        def classify(thetas: Array, rows: Array) -> Array:
            logits = shop.logits(thetas, shop.images[rows])
            return len(rows) * cross_entropy(logits.flatten(0, 1), shop.labels[rows].flatten())

        place, head = output_layer(view.layers, len(shop.theta)), torch.ones_like(shop.theta)
        if place is not None:
            head[: place[0].start] = 0.0
        size, rate = max(BATCH, shop.batch), self.rate * shop.rate
        thetas = shop.descend(shop.start(), contrast, view.rng, epochs=self.epochs, batch=size, rate=rate)
        return shop.descend(thetas, classify, view.rng, moves=head) - shop.theta


def contrastive(z: Array, labels: Array, temperature: float, target: int, facilitate: float) -> Array:
    """(...,) the supervised contrastive loss of unit vectors (..., n, f), images with label ``target`` weighted."""
    import torch

    others = ~torch.eye(labels.shape[-1], dtype=torch.bool, device=z.device)
    alike = ((labels[..., :, None] == labels[..., None, :]) & others).to(z.dtype)
    scores = (z @ z.mT / temperature).masked_fill(~others, -torch.inf)
    logs = torch.where(others, scores - torch.logsumexp(scores, dim=-1, keepdim=True), torch.zeros_like(scores))
    means = (alike * logs).sum(dim=-1) / alike.sum(dim=-1).clamp(min=1.0)
    weights = torch.where(labels == target, facilitate, 1.0).to(z.dtype)
    return -(weights * means).mean(dim=-1)
