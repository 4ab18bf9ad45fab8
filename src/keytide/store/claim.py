"""A name in an object store that goes to one of many: what the answers to a conditional put mean.

An answer may be lost although the put was carried out, and the next try then finds the name taken
by its own object. So a try that failed leaves a doubt, which the content of the object settles.
Whoever has to know apart writers of the same content writes something of its own into it.
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

# Answers that another try would only bring again.
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
    """Whether the name is this caller's: `put` writes `data` where there is nothing, or raises.

    `read` gives what is there. A put that failed is made again after each of `pauses`, in seconds,
    and the last one raises. One that is refused although nothing is there met another that was
    under way, or an object that has gone since: it is made again likewise.
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
    """Whether a service refuses a second object of a name, which `put` writes; see `claim`.

    Some that speak the protocol of S3 take the condition for nothing, or do not know it.
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
