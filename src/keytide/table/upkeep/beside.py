"""Work beside others who delete what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from keytide.errors import DataError, NotFoundError

__all__ = ["GoneError", "again", "telling_gone"]

T = TypeVar("T")

# Whoever comes between deletes what is old; each time there is less of it.
_TRIES = 5


class GoneError(Exception):
    """Something was deleted that had been there."""


@contextmanager
def telling_gone() -> Iterator[None]:
    """A block whose errors about files and snapshots that are not there are a `GoneError`."""
    try:
        yield
    except (DataError, NotFoundError) as error:
        if isinstance(error, DataError) and not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise GoneError from error


def again(look: Callable[[], T]) -> T:
    """What a look at the table gives, which is taken again where something went meanwhile.

    Raises what the last look raises.
    """
    for _ in range(_TRIES - 1):
        with suppress(GoneError), telling_gone():
            return look()
    return look()
