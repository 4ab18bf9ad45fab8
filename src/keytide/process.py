"""What holds for the process as a whole: that it was not forked, and that it collects garbage.

A forked process cannot work on tables once its parent has: the threads of Polars, of Arrow and of
the object stores do not survive a fork, and a child would wait for them for ever. Such a child is
refused, which is better than one that hangs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from keytide.errors import SetupError

__all__ = ["refuse_forked_child", "without_collection"]


def refuse_forked_child() -> None:
    """Raise `SetupError` in a process that was forked after its parent had come this way."""
    if _working_process() != os.getpid():
        raise SetupError(
            "this process was forked from one that had worked on tables, and the threads that read "
            "and write them do not survive a fork; start processes with "
            "multiprocessing.get_context('spawn') or 'forkserver', or fork before the first use"
        )


@cache
def _working_process() -> int:
    # A forked child inherits the answer.
    return os.getpid()


@contextmanager
def without_collection() -> Iterator[None]:
    """A block that makes many objects and no circles of them: looking for some doubles its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
