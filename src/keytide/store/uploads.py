"""Writes that are under way while their maker goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Lock

from keytide.threads import begin

__all__ = ["Uploads"]

# Each holds at most one part of an upload in memory.
_UNDER_WAY_MAX = 16


class Uploads:
    """Writes in threads, at most so many at a time. Safe to share between threads."""

    def __init__(self) -> None:
        self._begun: list[Future[None]] = []
        self._room = BoundedSemaphore(_UNDER_WAY_MAX)
        self._lock = Lock()

    def begin(self, write: Callable[[], None]) -> None:
        """Begin a write, once there is room for one more."""
        self._room.acquire()
        future = begin(write)
        future.add_done_callback(lambda _: self._room.release())
        with self._lock:
            self._begun.append(future)

    def wait(self) -> None:
        """Wait until no write is under way."""
        with self._lock:
            begun = list(self._begun)
        wait(begun)

    def settle(self) -> None:
        """Wait for all writes. Raises what the first one that failed has raised, once."""
        with self._lock:
            begun, self._begun = self._begun, []
        wait(begun)
        for future in begun:
            future.result()
