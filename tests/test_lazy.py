"""Attributes that are computed when they are first read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from honestly.lazy import cached_property


class Meeting:
    """Its property is computed only if another one's is computed at the same time."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier, self.computed = barrier, 0

    @cached_property
    def met(self) -> bool:
        """Whether two met."""
        self.computed += 1
        self.barrier.wait()
        return True


def test_two_threads_compute_at_once() -> None:
    """A lock for all instances would make one wait for the other, and a forked process wait forever."""
    barrier = threading.Barrier(2, timeout=20)
    both = [Meeting(barrier) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda one: one.met, both))


def test_a_value_is_computed_once_and_can_be_removed() -> None:
    one = Meeting(threading.Barrier(1))
    assert one.met
    assert one.met
    assert one.computed == 1
    del one.met
    assert one.met
    assert one.computed == 2


def test_the_class_has_the_descriptor_and_its_text() -> None:
    assert Meeting.met.__doc__ == "Whether two met."
