"""The Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
import sys
from functools import cache
from zipimport import zipimporter

__all__ = ["settle"]


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


def _list_once(packages: set[str]) -> None:
    """Have the archives that these packages came from listed no more."""
    specs = [sys.modules[name].__spec__ for name in packages & {*sys.modules}]
    archives = {getattr(spec.loader, "archive", None) for spec in specs if spec is not None}
    list_anew = zipimporter.invalidate_caches

    def invalidate_caches(self: zipimporter) -> None:
        if self.archive not in archives:
            list_anew(self)

    setattr(zipimporter, "invalidate_caches", invalidate_caches)  # noqa: B010  # not for assignment
