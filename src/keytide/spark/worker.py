"""The Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
import sys
import traceback
from functools import cache
from typing import Any
from zipimport import zipimporter

__all__ = ["pass_over_broken_pipes", "settle"]


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
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is None or main.name != "pyspark.daemon":
        return
    original = traceback.print_exc

    def print_exc(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            original(*arguments, **named)

    traceback.print_exc = print_exc


def _list_once(packages: set[str]) -> None:
    """Have the archives that these packages came from listed no more."""
    specs = [sys.modules[name].__spec__ for name in packages & {*sys.modules}]
    archives = {getattr(spec.loader, "archive", None) for spec in specs if spec is not None}
    list_anew = zipimporter.invalidate_caches

    def invalidate_caches(self: zipimporter) -> None:
        if self.archive not in archives:
            list_anew(self)

    setattr(zipimporter, "invalidate_caches", invalidate_caches)  # noqa: B010  # not for assignment
