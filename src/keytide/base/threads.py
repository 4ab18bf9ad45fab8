"""Threads for short calls, which are reused because starting one may take longer than a call.

A caller that waits for calls has exclusive threads until they end, so nested calls never block each
other. Nothing here uses a lock, because the garbage collector can close an abandoned generator at
any point, which can call this code.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["begin", "side_by_side"]

T = TypeVar("T")

_IDLE_MAX = 4
"""The number of idle executors kept for each thread count.

A read from the store needs three in parallel.
"""

_idle: dict[int, deque[ThreadPoolExecutor]] = {}

# Threads do not survive a fork.
os.register_at_fork(after_in_child=_idle.clear)


def begin(call: Callable[[], T]) -> Future[T]:
    """Start a call in a thread. The process waits for it before it ends."""
    threads = _taken(1)
    future = threads.submit(call)
    future.add_done_callback(lambda _: _give_back(1, threads))
    return future


def side_by_side(calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """The results of some calls, in order, with at most `at_once` running in parallel.

    The first one runs in the caller's own thread, which would otherwise only wait. Raises the error
    of the first call that fails, after all started calls have ended. The other calls are dropped.
    """
    if len(calls) < 2 or at_once < 2:
        return [call() for call in calls]
    first, *others = calls
    threads = _taken(at_once - 1)
    futures: list[Future[T]] = []
    try:
        futures += [threads.submit(call) for call in others]
        return [first(), *(future.result() for future in futures)]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        _give_back(at_once - 1, threads)


def _taken(count: int) -> ThreadPoolExecutor:
    try:
        return _idle[count].pop()
    except (KeyError, IndexError):
        return ThreadPoolExecutor(count, thread_name_prefix="keytide")


def _give_back(count: int, threads: ThreadPoolExecutor) -> None:
    idle = _idle.setdefault(count, deque())
    if len(idle) < _IDLE_MAX:
        idle.append(threads)
    else:
        threads.shutdown(wait=False)
