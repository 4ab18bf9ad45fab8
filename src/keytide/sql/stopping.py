"""A signal that ends a running query."""

from __future__ import annotations

import threading

__all__ = ["Stop", "StoppedError"]


class StoppedError(Exception):
    """The query was stopped, so it has no result."""


class Stop:
    """Ends the queries that received it. Any thread can send it, and it cannot be revoked.

    DuckDB ends within milliseconds. A scan of Keytide ends after the current batch of
    rows, which is limited by 'read.memory'.
    """

    def __init__(self) -> None:
        self._sent = threading.Event()

    @property
    def is_sent(self) -> bool:
        """Whether the queries must end."""
        return self._sent.is_set()

    def send(self) -> None:
        """End the queries."""
        self._sent.set()

    def check(self) -> None:
        """Raise `StoppedError` once the stop was sent."""
        if self.is_sent:
            raise StoppedError
