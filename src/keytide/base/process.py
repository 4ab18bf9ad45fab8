"""The process: its settings, threads, optional libraries, temporary names and cached properties.

A forked process cannot work on tables if its parent already did: the threads of Polars, Arrow and
the object stores do not survive a fork, and the child would wait for them forever. Such a child
raises an error instead of hanging.

A caller that waits for short calls has exclusive threads until they end, so nested calls never
block each other. Nothing here uses a lock, because the garbage collector can close an abandoned
generator at any point, which can call this code.

An optional library is imported here, with an error that says how to install a missing one. Any
other import of such a library, except for its types, would raise Python's own error.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from keytide.errors import SetupError

# -- process-wide facts and settings ---------------------------------------------------------------


def refuse_forked_child() -> None:
    """Raise `SetupError` in a process that was forked after its parent had called this."""
    if _working_process() != os.getpid():
        raise SetupError(
            "this process was forked from one that had used tables, and the threads that read "
            "and write them do not survive a fork; start processes with "
            "multiprocessing.get_context('spawn') or 'forkserver', or fork before the first use"
        )


@cache
def _working_process() -> int:
    # A forked child inherits the cached answer.
    return os.getpid()


@cache
def this_host() -> str:
    """The name of this computer."""
    return socket.gethostname()


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection.

    Searching for cycles doubles the time of code that creates many objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# -- threads for short calls -----------------------------------------------------------------------


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
    threads = _idle_thread(1)
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
    threads = _idle_thread(at_once - 1)
    futures: list[Future[T]] = []
    try:
        futures += [threads.submit(call) for call in others]
        return [first(), *(future.result() for future in futures)]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        _give_back(at_once - 1, threads)


def _idle_thread(count: int) -> ThreadPoolExecutor:
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


# -- names of temporary columns --------------------------------------------------------------------


def scratch(name: str) -> str:
    """A column name that no table and no data file uses.

    The table format reserves names that begin with `_KEY_` for the key columns of data files, so no
    table has one. No file has a key column with this name either.
    """
    return f"{_PREFIX}{name}"


def is_scratch(column: str) -> bool:
    """Whether a column is a temporary one, which users must not see."""
    return column.startswith(_PREFIX)


_PREFIX = "_KEY__KEY_"


# -- cached properties -----------------------------------------------------------------------------


if TYPE_CHECKING:
    from typing_extensions import Self


if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property  # noqa: TID251  # it has no lock any more
else:

    class cached_property(Generic[T]):  # noqa: N801  # takes the place of what Python calls so
        """`functools.cached_property` of Python 3.12 and later, which has no lock.

        Until 3.11 all instances of a class share one lock: threads that read files for a property
        would wait for each other, and a thread that waits for another one could wait forever. Two
        concurrent threads may compute the same value twice.
        """

        def __init__(self, compute: Callable[[object], T]) -> None:
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...

        @overload
        def __get__(self, instance: object, owner: type) -> T: ...

        def __get__(self, instance: object | None, owner: type) -> Self | T:
            if instance is None:
                return self
            value = self._compute(instance)
            vars(instance)[self._name] = value
            return value


# -- imports of optional libraries -----------------------------------------------------------------


def library(name: str, extra: str, needed_for: str) -> ModuleType:
    """The module with that full name, from a library in `extra`. Raises `SetupError` without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing_library_error(name, extra, needed_for, str(error)) from error


def require(name: str, extra: str, needed_for: str) -> None:
    """Raise `SetupError` if a library is not installed, without importing it."""
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise _missing_library_error(name, extra, needed_for, "it is not installed")


def _missing_library_error(name: str, extra: str, needed_for: str, reason: str) -> SetupError:
    package = name.partition(".")[0]
    return SetupError(
        f"{needed_for}: this needs {package}, which cannot be imported ({reason}); install it "
        f"with: pip install 'keytide[{extra}]'"
    )
