"""Writes in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Lock

from keytide.base.threads import begin

__all__ = ["Uploads"]

# Each holds at most one part of an upload in memory.
_UNDER_WAY_MAX = 16


class Uploads:
    """Writes in threads, with a limit on how many run in parallel.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._begun: list[Future[None]] = []
        self._room = BoundedSemaphore(_UNDER_WAY_MAX)
        self._lock = Lock()

    def begin(self, write: Callable[[], None]) -> None:
        """Start a write, once fewer than the maximum are running."""
        self._room.acquire()
        future = begin(write)
        future.add_done_callback(lambda _: self._room.release())
        with self._lock:
            self._begun.append(future)

    def wait(self) -> None:
        """Wait until no write is running."""
        with self._lock:
            begun = list(self._begun)
        wait(begun)

    def settle(self) -> None:
        """Wait for all writes. Raises the error of the first one that failed, once."""
        with self._lock:
            begun, self._begun = self._begun, []
        wait(begun)
        for future in begun:
            future.result()
