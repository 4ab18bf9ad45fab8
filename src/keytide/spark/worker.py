"""Setup of the Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache, wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar
from zipimport import zipimporter

from keytide.errors import KeytideError

C = TypeVar("C", bound=type)


@cache
def set_up() -> None:
    """Switch off what takes longer than a small task in this process, permanently.

    Runs on executors, whose Python processes Spark reuses. After each task, Spark collects garbage:
    with Arrow, Polars and Spark imported, this takes 40 ms and finds nothing. Before each task,
    Spark discards the import caches of all archives on the path. Listing those again that the
    process was started with takes 200 ms, although they never change: they are Spark's own.
    """
    gc.collect()
    gc.freeze()
    archives = {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    list_anew = zipimporter.invalidate_caches

    def invalidate_caches(self: zipimporter) -> None:
        if self.archive not in archives:
            list_anew(self)

    setattr(zipimporter, "invalidate_caches", invalidate_caches)  # noqa: B010  # not for assignment
    ignore_broken_pipes()


def use_cores_of_task() -> None:
    """Let Polars start as many threads in a Spark worker as its tasks have cores.

    Otherwise, the workers of a host would each start a thread for every core. Has an effect only
    before Polars is imported. A value that the environment sets is kept.
    """
    if _main() == "pyspark.worker" or (_main(), *sys.argv[1:2]) == _FORKED_WORKER:
        # Spark sets this to its own 'spark.task.cpus'.
        os.environ.setdefault("POLARS_MAX_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


# The driver's Python processes have another second part.
_FORKED_WORKER = ("pyspark.daemon", "pyspark.worker")


@cache
def ignore_broken_pipes() -> None:
    """Let this process, if it is a Spark worker, exit silently when Spark closes the connection.

    Spark does this when a task has returned enough rows for a LIMIT, and when another one failed.
    Otherwise the worker would print a traceback although nothing is wrong. All other errors are
    printed.
    """
    if _main() != "pyspark.daemon":
        return
    original = traceback.print_exc

    def print_exc(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            original(*arguments, **named)

    traceback.print_exc = print_exc


def shorten_errors(methods_of: C) -> C:
    """Make Spark report a Keytide error from a method of a class without a traceback.

    A Spark worker that raised an error writes a report and exits. An error that was caused by
    another one keeps its traceback, which describes the cause. Methods that return rows are not
    changed.
    """
    for name, method in list(vars(methods_of).items()):
        if callable(method) and not name.startswith("_") and not isgeneratorfunction(method):
            setattr(methods_of, name, _in_few_words(method))
    return methods_of


def _in_few_words(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def shortened(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except KeytideError as error:
            if error.__cause__ is None and _main().startswith("pyspark."):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return shortened


def _main() -> str:
    """The main module of this process, which identifies Spark's workers."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
