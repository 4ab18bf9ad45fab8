"""Creation of an object by exactly one of several writers, using conditional puts.

The response to a successful put can be lost. The next attempt then finds that the name is taken, by
its own object. Therefore a failed attempt leaves the outcome open until the content of the object
is read. Writers that must be distinguished from each other must write different content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

__all__ = ["claim", "honours_claims"]

# Errors that another attempt would only repeat.
_DEFINITE = (
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    FileNotFoundError,
    PermissionError,
)
_TAKEN = (AlreadyExistsError, FileExistsError)


def claim(
    put: Callable[[], object],
    read: Callable[[], bytes | None],
    data: bytes,
    pauses: Iterator[float],
    wait: Callable[[float], None],
) -> bool:
    """Whether this caller got the name. `put` writes `data` if there is no object, otherwise
    raises.

    `read` returns the existing object. A failed put is repeated after each of `pauses`, in seconds,
    and the last failure is raised. If a put is refused although there is no object, it met another
    put in progress, or an object that was deleted since. It is also repeated.
    """
    is_in_doubt = False
    while True:
        try:
            put()
            return True
        except _TAKEN as refused:
            found = read()
            if found is not None:
                return is_in_doubt and found == data
            error: Exception = refused
        except _DEFINITE:
            raise
        except (BaseError, OSError) as failed:
            is_in_doubt = True
            error = failed
        pause = next(pauses, None)
        if pause is None:
            raise error
        wait(pause)


def honours_claims(put: Callable[[], object]) -> bool:
    """Whether a service refuses a second object with the same name, which `put` writes.

    Some services with the S3 protocol ignore the condition or do not know it. See `claim`.
    """
    try:
        put()
        put()
    except _TAKEN:
        return True
    except (BaseError, OSError) as error:
        if _NOT_IMPLEMENTED in str(error):
            return False
        raise
    return False


_NOT_IMPLEMENTED = "501 Not Implemented"
