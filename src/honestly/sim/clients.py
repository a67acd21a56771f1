"""The clients' data: who holds which samples, clean and poisoned, as one table of samples on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from honestly.lazy import cached_property
from honestly.sim.attacks import Attack, Backdoor, DataAttack
from honestly.sim.attacks.attack import check_poison
from honestly.sim.attacks.label_flip import LabelFlip
from honestly.sim.data import Dataset, prepare
from honestly.sim.experiment import Experiment
from honestly.sim.models import source
from honestly.sim.partition import Parts, partition
from honestly.sim.seeds import generator
from honestly.sim.train.pixels import Pixels
from honestly.sim.train.schedule import Schedule, plan

Ints = npt.NDArray[np.int64]
#: Mini-batches up to this size are padded as they are: what is drawn for them, such as crops, depends on their size.
ENOUGH = 4096


@dataclass(frozen=True)
class Clients:
    """All clients' samples, and the schedules that follow from them.

    Attributes:
        pixels: every training sample, clean and poisoned, on the device.
        test: the test set.
        triggered: the test images with the trigger, if the attack is a backdoor.
        parts: the clean samples of each client.
        poisoned: for each malicious client the samples that it trains on when it attacks, and which are poisoned.
    """

    experiment: Experiment
    pixels: Pixels
    test: Pixels
    triggered: Pixels | None
    parts: Parts
    poisoned: dict[int, tuple[Ints, npt.NDArray[np.bool_]]]

    @cached_property
    def batch(self) -> int:
        """The size of a mini-batch, without the padding that all images together in one would have."""
        sizes = [*map(len, self.parts), *(len(samples) for samples, _ in self.poisoned.values())]
        root = min(self.experiment.root, sum(map(len, self.parts)))
        return min(self.experiment.batch, max(ENOUGH, root, *sizes))

    def schedule(self, round: int, client: int, *, attacking: bool) -> Schedule:
        """What a client does in a round. Client, round and seed decide the shuffling, nothing else."""
        e = self.experiment
        attack = e.make_attack()
        if attacking and isinstance(attack, DataAttack):
            samples, mask = self.poisoned[client]
            phases = [(p.epochs, samples[mask] if p.select == "poisoned" else samples) for p in attack.phases(e.epochs)]
        else:
            phases = [(e.epochs, self.parts[client])]
        rng = generator(e.seed, "batches", round, client)
        return plan(phases, batch=self.batch, rng=rng, flip=bool(e.flip), crop=e.crop)

    def root_schedule(self, round: int) -> Schedule:
        """The server's own training, for rules that need a trusted update: ``root`` training images, drawn once."""
        e = self.experiment
        n = sum(len(part) for part in self.parts)
        mine = np.sort(generator(e.seed, "root").choice(n, size=min(e.root, n), replace=False))
        rng = generator(e.seed, "root batches", round)
        return plan([(e.epochs, mine)], batch=self.batch, rng=rng, flip=bool(e.flip), crop=e.crop)


def gather(experiment: Experiment, data: Dataset, device: torch.device | str) -> Clients:
    """Divide the data among the clients, poison the malicious clients' part, and put everything on the device."""
    e = experiment
    rng = generator(e.seed, "partition")
    parts = partition(data.labels, e.clients, kind=e.partition, alpha=e.alpha, rng=rng)
    attack = e.make_attack()
    _check_classes(attack, data)
    side = source(e.model).side
    size = (side, side) if side else data.size[1:]

    def fitted(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return prepare(images, size, e.fit)

    images, rows, labels = [fitted(data.images)], [np.arange(len(data.labels))], [data.labels]
    stored, known = len(data.images), len(data.labels)
    poisoned: dict[int, tuple[Ints, npt.NDArray[np.bool_]]] = {}
    if isinstance(attack, DataAttack):
        for number, client in enumerate(e.adversary.attackers):
            mine = parts[client]
            result = attack.poison(
                data.images[mine], data.labels[mine], rng=generator(e.seed, "poison", client), attacker=number
            )
            pixels, new_labels, mask = check_poison(attack, data.images, result)
            # a sample whose pixels did not change refers to the image that is already stored
            same = np.zeros(len(pixels), dtype=np.bool_)
            n = min(len(mine), len(pixels))  # an attack may also leave samples out
            same[:n] = (pixels[:n] == data.images[mine[:n]]).all(axis=(1, 2, 3))
            where = np.empty(len(pixels), dtype=np.int64)
            where[same] = mine[np.flatnonzero(same)]
            where[~same] = stored + np.arange(int((~same).sum()))
            if not same.all():
                images.append(fitted(np.asarray(pixels)[~same]))
                stored += int((~same).sum())
            rows.append(where)
            labels.append(np.asarray(new_labels, dtype=np.int64))
            poisoned[client] = (np.arange(known, known + len(pixels)), np.asarray(mask, dtype=np.bool_))
            known += len(pixels)

    def on_device(pictures: npt.NDArray[np.uint8], rows: Ints, labels: Ints, *, crop: int = 0) -> Pixels:
        return Pixels.of(pictures, rows, labels, mean=data.mean, std=data.std, crop=crop, device=device)

    triggered = None
    if isinstance(attack, Backdoor):
        victims = np.asarray(attack.victims(data.test_images, data.test_labels))
        stamped = fitted(np.asarray(attack.stamp(data.test_images[victims])))
        if len(stamped):
            goal = np.full(len(stamped), attack.target, dtype=np.int64)
            triggered = on_device(stamped, np.arange(len(stamped)), goal)
    return Clients(
        experiment=e,
        pixels=on_device(np.concatenate(images), np.concatenate(rows), np.concatenate(labels), crop=e.crop),
        test=on_device(fitted(data.test_images), np.arange(len(data.test_labels)), data.test_labels),
        triggered=triggered,
        parts=parts,
        poisoned=poisoned,
    )


def _check_classes(attack: Attack, data: Dataset) -> None:
    classes = len(data.classes)
    for key in ("source", "target"):
        value = getattr(attack, key, None)
        if isinstance(value, int) and value >= classes:
            raise ValueError(f"attack.{key} = {value}: {data.name} has the classes 0 to {classes - 1}")
    if (
        isinstance(attack, LabelFlip) and attack.classes != classes
    ):  # labels would leave the range, or be folded into it
        raise ValueError(
            f"attack.classes = {attack.classes}: {data.name} has {classes} classes; "
            f"write attack=label_flip:classes={classes}"
        )
