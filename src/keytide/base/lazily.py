"""Properties that are computed on first access."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["cached_property"]

T = TypeVar("T")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property  # noqa: TID251  # it has no lock any more
else:

    class cached_property(Generic[T]):  # noqa: N801  # takes the place of what Python calls so
        """`functools.cached_property` of Python 3.12 and later, which has no lock.

        Until 3.11 all instances of a class share one lock: threads that read files for a property
        would wait for each other, and a thread that waits for another one could wait forever. Two
        concurrent threads may compute the same value twice.
        """

        def __init__(self, compute: Callable[[object], T]) -> None:
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
            value = self._compute(instance)
            vars(instance)[self._name] = value
            return value
