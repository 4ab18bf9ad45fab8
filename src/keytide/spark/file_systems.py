"""The file systems of a session, through which Spark's own reader finds the files of tables.

Spark reads files of an object store by itself if the session has a file system for it, such as S3A
from hadoop-aws. Its credentials are those of the session, not those of the table. So Keytide asks
the session once for each bucket whether it finds a file there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keytide.errors import InvalidError
from keytide.spark.connect import is_apache_spark
from keytide.store.base import Store

__all__ = ["SETTING", "Locate", "far_bytes_min", "locate_in", "on_local_disk"]

SETTING = "spark.keytide.native-reads"
"""The session setting that says how Spark reads files of object stores by itself.

`auto`, the default: if the session finds them, and only large files of tables. `never`: not at all.
Any other value is the name of the file system, such as `s3a`, which is then not tried first.
"""

_LARGE_BYTES = 16 << 20
"""Spark's reader makes about seven requests for a file, one after the other, and Python tasks make
theirs side by side. Below this size, the requests take longer than Python and the way to the JVM.
"""

Locate: TypeAlias = Callable[[Store, str], str | None]
"""The URI by which Spark finds a file of a store. None if it does not."""

_FILE_SYSTEMS = {
    "s3": ("s3a", "s3"),
    "s3a": ("s3a", "s3"),
    "gs": ("gs",),
    "abfs": ("abfss", "abfs"),
    "abfss": ("abfss", "abfs"),
}
_NAME = re.compile(r"[a-z][a-z0-9+.-]*")


def locate_in(spark: SparkSession) -> Locate:
    """Where a session finds files. Raises `InvalidError` for an invalid value of `SETTING`.

    Only Apache Spark reads files by itself. Sail takes names for patterns, does not tell in which
    file a row is, and skips files that were deleted.
    """
    chosen = spark.conf.get(SETTING, "auto") or "auto"
    if not _NAME.fullmatch(chosen):
        raise InvalidError(
            f"the session setting {SETTING} is {chosen!r}; expected 'auto', 'never', or the name "
            "of a file system such as 's3a'"
        )
    if not is_apache_spark(spark):
        return _nowhere
    if chosen == "never":
        return on_local_disk
    return _FileSystems(spark, None if chosen == "auto" else chosen).uri


def far_bytes_min(spark: SparkSession) -> int:
    """The size from which files of a table in an object store are read by Spark's own reader."""
    return _LARGE_BYTES if spark.conf.get(SETTING, "auto") in {"auto", ""} else 0


def _nowhere(store: Store, path: str) -> str | None:
    """A session that reads no file by itself."""
    return None


def on_local_disk(store: Store, path: str) -> str | None:
    """The URI of a file on local disk.

    None for a remote file: its cached copy may go away at any time.
    """
    local = store.uncached().local_path(path)
    return None if local is None else f"file://{local}"


@dataclass(frozen=True)
class _FileSystems:
    spark: SparkSession
    chosen: str | None

    def uri(self, store: Store, path: str) -> str | None:
        """See `Locate`."""
        local = on_local_disk(store, path)
        if local is not None:
            return local
        scheme, _, rest = store.uri_of(path).partition("://")
        name = (self.chosen or self._name(scheme, rest)) if rest else None
        return None if name is None else f"{name}://{rest}"

    def _name(self, scheme: str, rest: str) -> str | None:
        """The file system of the session for a bucket, tried with one of its files."""
        known = _KNOWN.setdefault(self.spark, {})
        bucket = scheme, rest.partition("/")[0]
        if bucket not in known:
            names = _FILE_SYSTEMS.get(scheme, ())
            known[bucket] = next((n for n in names if self._finds(f"{n}://{rest}")), None)
        return known[bucket]

    def _finds(self, uri: str) -> bool:
        reader = self.spark.read.schema("nothing int").option("__globPaths__", "false")
        try:
            return len(reader.parquet(uri).inputFiles()) == 1
        except (PySparkException, Py4JError):
            return False  # there is no such file system, or it may not read the bucket


_KNOWN: WeakKeyDictionary[SparkSession, dict[tuple[str, str], str | None]] = WeakKeyDictionary()
