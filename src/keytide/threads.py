"""Threads for short calls: kept when they are done, for to start one may take longer than a call.

Whoever waits for calls has threads of his own until they are done, so calls that wait for other
calls never wait for each other. Nothing here takes a lock: the garbage collector may end an
abandoned generator in the midst of anything, and so come by here.
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
"""How many executors are kept of those with as many threads: a look has three at once."""

_idle: dict[int, deque[ThreadPoolExecutor]] = {}

# The threads of what a fork took along are not there.
os.register_at_fork(after_in_child=_idle.clear)


def begin(call: Callable[[], T]) -> Future[T]:
    """A call that is under way in a thread. The process waits for it before it ends."""
    threads = _taken(1)
    future = threads.submit(call)
    future.add_done_callback(lambda _: _give_back(1, threads))
    return future


def side_by_side(calls: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """What some calls give, in their order, with at most so many of them under way at once.

    The first runs in the caller's own thread, which would only wait meanwhile. Raises what the
    first of them raises, once those that have begun have ended; the others are dropped then.
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
