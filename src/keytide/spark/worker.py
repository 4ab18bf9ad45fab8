"""The Python processes in which Spark runs tasks."""

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

__all__ = ["in_few_words", "pass_over_broken_pipes", "settle"]

C = TypeVar("C", bound=type)


@cache
def settle() -> None:
    """Spare this process what takes longer than a small task, once and for all.

    Runs on executors, whose Python processes Spark keeps. After each task it collects garbage: with
    Arrow, Polars and Spark imported, a walk of 40 ms that finds nothing. Before each task it has
    every archive on the path listed anew, in case of new files: 100 ms for that of Spark itself,
    which never changes.
    """
    gc.collect()
    gc.freeze()
    _list_once({"pyspark", "py4j"})
    pass_over_broken_pipes()


@cache
def pass_over_broken_pipes() -> None:
    """Have this process, where it is a worker of Spark's, end in silence when Spark hangs up.

    Spark does so where a task has given enough rows, for a LIMIT, and where one has failed. The
    worker would print a traceback, of nothing that is wrong. All other errors are printed.
    """
    if _main() != "pyspark.daemon":
        return
    original = traceback.print_exc

    def print_exc(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            original(*arguments, **named)

    traceback.print_exc = print_exc


def in_few_words(methods_of: C) -> C:
    """Have Spark report a Keytide error that a method of a class raises without a traceback.

    A worker of Spark's that has raised an error writes a report and ends. One that was made of
    another error keeps its traceback, which tells of that. Methods that give rows are left alone.
    """
    for name, method in list(vars(methods_of).items()):
        if callable(method) and not name.startswith("_") and not isgeneratorfunction(method):
            setattr(methods_of, name, _in_few_words(method))
    return methods_of


def _in_few_words(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def told(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except KeytideError as error:
            if error.__cause__ is None and _main().startswith("pyspark."):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return told


def _main() -> str:
    """The module that this process runs, which tells Spark's workers."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")


def _list_once(packages: set[str]) -> None:
    """Have the archives that these packages came from listed no more."""
    specs = [sys.modules[name].__spec__ for name in packages & {*sys.modules}]
    archives = {getattr(spec.loader, "archive", None) for spec in specs if spec is not None}
    list_anew = zipimporter.invalidate_caches

    def invalidate_caches(self: zipimporter) -> None:
        if self.archive not in archives:
            list_anew(self)

    setattr(zipimporter, "invalidate_caches", invalidate_caches)  # noqa: B010  # not for assignment
