"""How many rows the work at hand has got through, for who shows that long work goes on.

Tasks tell it as they write, and know nothing of who listens. Where nobody does it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["listening", "rows_done"]

_LISTENER: ContextVar[Callable[[int], None] | None] = ContextVar("keytide-strides", default=None)


def rows_done(count: int) -> None:
    """Tell whoever listens that the task of this thread has written so many rows more."""
    if tell := _LISTENER.get():
        tell(count)


@contextmanager
def listening(tell: Callable[[int], None]) -> Iterator[None]:
    """Hear of the rows that the work of a block writes, in this thread."""
    token = _LISTENER.set(tell)
    try:
        yield
    finally:
        _LISTENER.reset(token)
