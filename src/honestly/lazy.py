"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - used as a decorator, as the standard library's
    """`functools.cached_property` without a lock, as it is from Python 3.12 on.

    Before, all instances of a class share a lock while one computes its value: threads wait for one another, and a
    process that is forked meanwhile waits forever.

    Example:
        >>> class Circle:
        ...     radius = 2
        ...     @cached_property
        ...     def area(self) -> int:
        ...         return 3 * self.radius**2
        >>> Circle().area
        12
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)  # found there before this descriptor is asked
        return value
