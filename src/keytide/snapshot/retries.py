"""Retries work that fails because others, mainly expiry, delete the files that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keytide.errors import KeytideError, NotFoundError

__all__ = ["again", "is_gone"]

T = TypeVar("T")


def is_gone(error: KeytideError) -> bool:
    """Whether an error says that a file or a snapshot does not exist."""
    return isinstance(error, NotFoundError) or isinstance(error.__cause__, FileNotFoundError)


def again(look: Callable[[], T], tries: int = 5) -> T:
    """Return the result of `look`, which is retried if something was deleted in the meantime.

    Others delete only what is old, so each time there is less of it. Raises the error of the last
    try.
    """
    try:
        return look()
    except KeytideError as error:
        if tries == 1 or not is_gone(error):
            raise
    return again(look, tries - 1)
