"""Liars that imitate honest clients, to have them accused: few of these may be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import honestly as hn

K, LAYERS = 20, 12
Client = dict[str, np.ndarray]
#: (clients, the first M of which lie; M; the number of victims): changes what the liars send.
Framing = Callable[[list[Client], int, int], None]


def federation(d: int, seed: int) -> list[Client]:
    """Honest clients with nothing in common; about half of them are far enough from the centre to be judged."""
    rng = np.random.default_rng(seed)
    return [{f"{i}": rng.uniform(0.7, 1.5) * rng.normal(size=d) for i in range(LAYERS)} for _ in range(K)]


def send_a_layer_of_each(clients: list[Client], M: int, n: int) -> None:
    for i, layer in enumerate(clients[0]):
        for liar in clients[:M]:
            liar[layer] = 1.2 * clients[M + i % n][layer]


def send_the_mean_of_some(clients: list[Client], M: int, n: int) -> None:
    for layer in clients[0]:
        mean = np.sum([client[layer] / np.linalg.norm(client[layer]) for client in clients[M : M + n]], axis=0)
        for liar in clients[:M]:
            liar[layer] = 1.4 * np.sqrt(mean.size) * mean / np.linalg.norm(mean)


def send_the_mean_of_two_others_in_each_layer(clients: list[Client], M: int, n: int) -> None:
    rng = np.random.default_rng(n)
    for layer in clients[0]:
        for liar in clients[:M]:
            one, other = M + rng.permutation(n)[:2]
            liar[layer] = 0.85 * (clients[one][layer] + clients[other][layer])


@pytest.mark.parametrize("d", [400, 5000])  # by NumPy, and by the program
@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize(
    "frame", [send_a_layer_of_each, send_the_mean_of_some, send_the_mean_of_two_others_in_each_layer]
)
def test_no_liar_has_more_than_one_honest_client_accused(frame: Framing, M: int, d: int) -> None:
    for n in (3, 6, 9):
        clients = federation(d, seed=n)
        frame(clients, M, n)
        out = hn.aggregate(clients)
        assert len(set(out.accused) & set(range(M, K))) <= M


@pytest.mark.parametrize("M", [3, 6, 9])
def test_who_pushes_in_a_common_direction_is_accused_although_some_copy_others_too(M: int) -> None:
    rng = np.random.default_rng(M)
    clients = federation(400, seed=M)
    for layer in list(clients[0])[:6]:
        lie = rng.normal(size=400)
        for liar in clients[:M]:
            liar[layer] = 2 * lie + rng.normal(size=400)
    for i, layer in enumerate(list(clients[0])[6:]):
        clients[0][layer] = 1.2 * clients[M + i][layer]
    assert set(range(M)) <= set(hn.aggregate(clients).accused)
