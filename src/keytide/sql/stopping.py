"""A signal that ends a running query."""

from __future__ import annotations

import threading

__all__ = ["Stop", "StoppedError"]


class StoppedError(Exception):
    """The query was stopped, so it has no result."""


class Stop:
    """Ends the queries that were given it. Any thread can send it, once and for all.

    DuckDB ends within milliseconds. A scan of Keytide ends after the batch of rows that it is
    reading, which has as many rows as fit into 'read.memory' at most.
    """

    def __init__(self) -> None:
        self._sent = threading.Event()

    @property
    def is_sent(self) -> bool:
        """Whether the queries are to end."""
        return self._sent.is_set()

    def send(self) -> None:
        """End the queries."""
        self._sent.set()

    def check(self) -> None:
        """Raise `StoppedError` once the stop was sent."""
        if self.is_sent:
            raise StoppedError
