"""Forked processes, which cannot work on tables once their parent has.

The threads of Polars, of Arrow and of the object stores do not survive a fork, and a child would
wait for them for ever. Such a child is refused, which is better than one that hangs.
"""

from __future__ import annotations

import os
from functools import cache

from keytide.errors import SetupError

__all__ = ["refuse_forked_child"]


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
