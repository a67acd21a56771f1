"""3DFed: a backdoor that hides by constrained training, noise masks and decoys, and learns what the server accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.backdoor import BadNets
from honestly.sim.attacks.vectors import (
    host,
    keep_model,
    last_change,
    lengths,
    mean,
    norm,
    normal,
    output_layer,
    rms,
)

WEIGHTS = (0.3, 0.3, 0.4)  # of the losses on clean and on poisoned images, and of the length of the update
SIZES = np.concatenate([[0.0], np.geomspace(0.1, 10.0, 25)])  # sizes of a mask that are tried, in rms of the update
ACCEPTED, SEEN = 0.8, 0.1  # shares: of the largest feedback, to be accepted; of a plain mean's feedback, to be seen
ENOUGH = 0.8  # share of the attackers that must be accepted, or alpha changes
NOISY = 0.1  # alpha where the server adds noise and feedback says nothing
GOLDEN = 0.618  # a walk with this step, modulo 1, comes near every alpha


@dataclass(frozen=True, kw_only=True)
class ThreeDFed(BadNets, UpdateAttack):
    """One backdoored update for all attackers, plus masks that cancel, and decoys; tuned by what the model shows.

        training:  0.3 L(clean) + 0.3 L(poisoned) + 0.4 ||u||;   u <- u max(1, min(||u_clean|| / ||u||, K / M))
        masks:     n_k = r z_k on the output neurons but the target's, z random, sum_k z_k = 0,
                   r = argmin alpha mean_j UP_j(u) / UP_j(u + n_k) + (1 - alpha) ||n_k|| / ||u||,
                   UP_j = sum of the absolute changes of the weights and the bias of neuron j
        decoys:    a clean update with one parameter far away, which hides the others where few directions count
        indicator: a coordinate that nobody moves gets the value v_k; the feedback of attacker k is the global model's
                   change there over v_k, from which acceptance is read in the next round

    The masks raise the energies UP that DeepSight counts and make the attackers unlike each other, yet cancel in the
    sum. If fewer than four fifths of the attackers were accepted, alpha changes; if none was seen, one more becomes a
    decoy; an accepted decoy returns to the others. Knows its own data and the global models; attackers pool theirs.
    Conventions: all attackers are one group and send the mean of their backdoored updates; the size of a mask is
    optimised, relative to the update, the authors optimise all of its entries with constants for each data set; alpha
    walks through its range instead of being drawn; decoys are taken from the M attackers, at most M - 1; an indicator
    is as large as the root mean square of the update and sits where clean and poisoned training change least, whatever
    the curvature; feedback outside [0, 1] means noise and fixes alpha at 0.1 for all later rounds, as in the authors'
    code. Outside the simulator the attackers' own updates take the place of constrained training.

    Args:
        alpha: the least weight of the energies in the size of the masks; it walks between this and 1.
        decoys: decoys in the first round; their number is adapted later.
        decoy: distance of a decoy's parameter from the clean update, in lengths of that update.

    >>> import numpy as np
    >>> view = View(own=np.array([[4.0, 0.0]]), clean=np.array([[3.0, 0.0]]), rng=np.random.default_rng(0))
    >>> ThreeDFed().forge(view).round(2)
    array([[4.  , 2.83]])
    """

    name = "three_d_fed"
    summary = "a backdoor behind cancelling noise masks and decoys, adapted to what the server accepted"
    reference = "Li et al., 3DFed: Adaptive and Extensible Framework for Covert Backdoor Attack in FL, IEEE S&P 2023"
    knows = "malicious"
    wants_clean = True
    training = 3.0
    keeps = "(M + 3) d"

    alpha: float = setting(0.4, above=0.0, below=1)
    decoys: int = setting(0, whole=True, least=0)
    decoy: float = setting(3.0, above=0.0)

    def craft(self, view: View) -> Array:
        """Masked copies of the backdoored update, then decoys; each with its indicator."""
        xp, M = view.xp, view.M
        alpha, decoys = self.tune(view)
        clean = view.own if view.clean is None else view.clean
        u, usual = mean(self._train(view)), float(host(xp.mean(lengths(clean))))
        if norm(u) > 0.0:
            u = u * max(1.0, min(usual / norm(u), view.K / M))
        rows = u[None, :] + self._masks(view, u, M - decoys, alpha)
        spare = self._spare(view)
        if decoys:
            far = xp.zeros_like(u)
            far[int(spare[M % len(spare)])] = self.decoy * usual  # a parameter that no task needs
            rows = xp.concat([rows, clean[M - decoys :, :] + far[None, :]], axis=0)
        size = rms(u)
        for k in range(M):
            rows[k, int(spare[k % len(spare)])] += size
        return rows

    def remember(self, view: View, forged: Array) -> Mapping[str, Array]:
        """The model of this round, where each attacker has its indicator and what it sent there, alpha and decoys."""
        if view.reference is None:
            return {}
        alpha, decoys = self.tune(view)
        spare = self._spare(view)
        place = spare[np.arange(view.M) % len(spare)]
        return {
            **keep_model(view),
            "place": place,
            "value": np.array([float(host(forged[k, int(i)])) for k, i in enumerate(place)]),
            "alpha": np.array(alpha),
            "decoys": np.array(decoys),
        }

    def tune(self, view: View) -> tuple[float, int]:
        """Alpha and the number of decoys of this round, by the feedback on the last one."""
        most = view.M - 1
        if "alpha" not in view.memory:
            return (1.0 + self.alpha) / 2.0, min(self.decoys, most)
        alpha, decoys = float(host(view.memory["alpha"])), int(host(view.memory["decoys"]))
        if alpha == NOISY:
            return alpha, min(decoys, most)
        place, value = host(view.memory["place"]).astype(int), host(view.memory["value"])
        change = last_change(view)
        if change is None or len(place) != view.M or not value.all():
            return alpha, min(decoys, most)
        feedback = np.array([float(host(change[int(i)])) for i in place]) / value
        if not ((feedback >= -SEEN) & (feedback <= 1.0 + SEEN)).all():
            return NOISY, min(decoys, most)
        accounted = feedback > SEEN / view.K
        accepted = accounted & (feedback > ACCEPTED * feedback.max())
        attackers, decoyed = slice(0, view.M - decoys), slice(view.M - decoys, view.M)
        if not accounted[attackers].any() and not accepted[decoyed].any():
            decoys += 1
        decoys -= int(accepted[decoyed].sum())
        if accepted[attackers].mean() < ENOUGH:
            alpha = self.alpha + (alpha - self.alpha + GOLDEN * (1.0 - self.alpha)) % (1.0 - self.alpha)
        return alpha, min(decoys, most)

    def _spare(self, view: View) -> np.ndarray:
        """The M + 1 coordinates that clean and poisoned training change least, the least first."""
        clean = view.own if view.clean is None else view.clean
        moves = host(view.xp.abs(mean(view.own)) + view.xp.abs(mean(clean)))
        return np.argsort(moves, kind="stable")[: view.M + 1]

    def _masks(self, view: View, u: Array, count: int, alpha: float) -> Array:
        """(count, d) noise on the output layer that sums to 0."""
        xp, d = view.xp, int(u.shape[0])
        masks, place = xp.zeros((count, d), dtype=u.dtype, device=u.device), output_layer(view.layers, d)
        if place is None or count < 2:
            return masks
        (weight, bias), classes = place, int(u[place[1]].shape[0])

        def energies(rows: Array) -> Array:
            """(n, classes) UP of each output neuron."""
            return xp.sum(xp.abs(xp.reshape(rows[:, weight], (-1, classes, width))), axis=2) + xp.abs(rows[:, bias])

        width = int(u[weight].shape[0]) // classes
        free = xp.asarray(np.arange(classes) != self.target, device=u.device)
        z = normal(view, (count, classes, width + 1)) * xp.astype(free, u.dtype)[None, :, None]
        z = (z - xp.mean(z, axis=0)[None, ...]) * rms(u[weight.start : bias.stop])
        masks[:, weight] = xp.reshape(z[:, :, :width], (count, -1))
        masks[:, bias] = z[:, :, width]
        base, length = energies(u[None, :])[:, free], norm(u) or 1.0
        costs = [
            alpha * float(host(xp.mean(base / (energies(u[None, :] + r * masks)[:, free] + 1e-30))))
            + (1.0 - alpha) * r * float(host(xp.mean(lengths(masks)))) / length
            for r in SIZES.tolist()
        ]
        return float(SIZES[int(np.argmin([float(f"{cost:.3g}") for cost in costs]))]) * masks

    def _train(self, view: View) -> Array:
        """(M, d) the attackers' backdoored updates, by the constrained loss."""
        if view.workshop is None:
            return view.own
        import torch
        from torch.nn.functional import cross_entropy

        shop = view.workshop()
        tiny = torch.finfo(shop.theta.dtype).tiny

        def loss(thetas: Array, rows: Array) -> Array:
            logits = shop.logits(thetas, shop.images[rows])
            each = cross_entropy(logits.flatten(0, 1), shop.labels[rows].flatten(), reduction="none").view(rows.shape)
            bad, u = shop.poisoned[rows], thetas - shop.theta
            means = [(each * part).sum(dim=1) / part.sum(dim=1).clamp(min=1) for part in (~bad, bad)]
            length = ((u * u).sum(dim=1) + tiny).sqrt()
            return sum(w * part.sum() for w, part in zip(WEIGHTS, (*means, length), strict=True))

        return shop.descend(shop.start(), loss, view.rng) - shop.theta
