"""Spark jobs of a statement, none of whose tasks runs any more once it has failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from keytide.spark.connect import is_connect
from keytide.spark.internals import running_tasks_of

__all__ = ["ended_after_errors"]

_WAIT_S, _WAIT_S_MAX = 0.1, 15.0
"""Spark ends a worker that does not react to being killed after four seconds."""


@contextmanager
def ended_after_errors(spark: Any) -> Iterator[None]:
    """A block that runs jobs. An error leaves it when their tasks have been cancelled and ended.

    This includes an interrupt such as Ctrl-C. Waits for a limited time, and not at all on Spark
    Connect, which does not say which tasks run.
    """
    if is_connect(spark):
        yield
        return
    tag = f"keytide-{uuid4().hex}"
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the original error is more useful
            _end(context, tag)
        raise
    finally:
        with suppress(Exception):  # the session may be over
            context.removeJobTag(tag)


def _end(context: Any, tag: str) -> None:
    context.cancelJobsWithTag(tag)
    until = time.monotonic() + _WAIT_S_MAX
    while running_tasks_of(context, tag) and time.monotonic() < until:
        time.sleep(_WAIT_S)
