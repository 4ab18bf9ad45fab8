"""Process-wide facts and settings: no forked process, the host, pauses of garbage collection.

A forked process cannot work on tables if its parent already did: the threads of Polars, Arrow and
the object stores do not survive a fork, and the child would wait for them forever. Such a child
raises an error instead of hanging.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from keytide.errors import SetupError

__all__ = ["refuse_forked_child", "this_host", "without_collection"]


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
