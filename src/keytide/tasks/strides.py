"""Reports how many rows the current work has processed, for progress displays.

Tasks report it as they write, and do not know who listens. If nobody does, it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["listening", "rows_done"]

_LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("keytide-strides", default=None)


def rows_done(count: int) -> None:
    """Report that the task of this thread has written this many more rows."""
    if tell := _LISTENER.get():
        tell(count)


@contextmanager
def listening(tell: Callable[[int], None]) -> Iterator[None]:
    """Receive the number of rows that the work of a block writes, in this thread."""
    token = _LISTENER.set(tell)
    try:
        yield
    finally:
        _LISTENER.reset(token)
