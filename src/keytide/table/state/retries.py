"""Work beside others who delete what it reads: expiries, above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keytide.errors import KeytideError, NotFoundError

__all__ = ["again", "is_gone"]

T = TypeVar("T")


def is_gone(error: KeytideError) -> bool:
    """Whether an error says that a file or a snapshot is not there."""
    return isinstance(error, NotFoundError) or isinstance(error.__cause__, FileNotFoundError)


def again(look: Callable[[], T], tries: int = 5) -> T:
    """What a look at the table gives, which is taken again where something went meanwhile.

    Whoever comes between deletes what is old: each time there is less of it. Raises what the last
    look raises.
    """
    try:
        return look()
    except KeytideError as error:
        if tries == 1 or not is_gone(error):
            raise
    return again(look, tries - 1)
