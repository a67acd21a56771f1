"""Edge-case backdoor: no trigger, but rare images under a wrong label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from honestly.sim.attacks.attack import Array, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import host


@dataclass(frozen=True, kw_only=True)
class EdgeCase(BadNets):
    """The images of class ``source`` that look least like their class are labelled ``target``; no trigger is drawn.

    The original takes its rare images from another data set; here it is the tail of the class itself, so nothing
    has to be downloaded: the ``share`` of the class farthest, in raw pixels, from the class mean of the same images.
    Knows its own data.

    Args:
        share: the part of the class that counts as its tail, at least one image.

    >>> import numpy as np
    >>> images = np.zeros((4, 1, 2, 2), np.uint8)
    >>> images[2] = 200
    >>> EdgeCase().poison(images, np.array([0, 0, 0, 5]), rng=np.random.default_rng(0))[1]
    array([0, 0, 8, 5])
    """

    name = "edge_case"
    summary = "a backdoor without trigger: the rarest images of class 0 are called 8"
    reference = "Wang et al., Attack of the Tails, NeurIPS 2020"

    share: float = setting(0.1, above=0.0, most=1)

    def victims(self, images: Array, labels: Array) -> Array:
        """The tail of class ``source``."""
        xp = array_namespace(labels)
        members = np.flatnonzero(host(labels) == self.source)
        chosen = np.zeros(int(labels.shape[0]), dtype=bool)
        if len(members):
            of_class = host(images[labels == self.source, ...]).reshape(len(members), -1)
            distance = np.square(of_class - of_class.mean(axis=0)).sum(axis=1)
            tail = np.argsort(-distance, kind="stable")[: math.ceil(self.share * len(members))]
            chosen[members[tail]] = True
        return xp.asarray(chosen, device=labels.device)

    def stamp(self, images: Array) -> Array:
        """The images as they are."""
        return images

    def poison(
        self, images: Array, labels: Array, *, rng: np.random.Generator, attacker: int = 0
    ) -> tuple[Array, Array, Array]:
        """The same images; the tail has label ``target``."""
        xp = array_namespace(labels)
        mask = self.victims(images, labels)
        target = xp.full(labels.shape, self.target, dtype=labels.dtype, device=labels.device)
        return images, xp.where(mask, target, labels), mask
