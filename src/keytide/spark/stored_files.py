"""Files that Spark reads itself: file systems of a session, known Parquet files, and feed lines.

Spark reads files of an object store by itself if the session has a file system for it, such as S3A
from hadoop-aws. Its credentials are those of the session, not those of the table. So Keytide asks
the session once for each bucket whether it finds a file there.

Parquet files that Spark reads without looking for them first, because their sizes are known.

Spark asks an object store two or three times for each file that a reader names, one after the
other, before it plans a read. A table's metadata says what the answers are. Spark's own index of
files takes them from the cache in which it keeps such answers, and asks for files that are not in
it. The classes of the index are not part of Spark's public API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.spark.internals import is_apache_spark
from keytide.store.interface import Store

# -- file systems of a session ---------------------------------------------------------------------


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
        return lambda store, path: None
    if chosen == "never":
        return on_local_disk
    return _FileSystems(spark, None if chosen == "auto" else chosen).uri


def far_bytes_min(spark: SparkSession) -> int:
    """The size from which files of a table in an object store are read by Spark's own reader."""
    return _LARGE_BYTES if spark.conf.get(SETTING, "auto") in {"auto", ""} else 0


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
        """See `Locate`. The file system of a bucket is tried with one of its files."""
        local = on_local_disk(store, path)
        if local is not None:
            return local
        scheme, _, rest = store.uri_of(path).partition("://")
        if not rest:
            return None
        name = self.chosen
        if name is None:
            known = _KNOWN.setdefault(self.spark, {})
            bucket = scheme, rest.partition("/")[0]
            if bucket not in known:
                names = _FILE_SYSTEMS.get(scheme, ())
                known[bucket] = next((n for n in names if self._finds(f"{n}://{rest}")), None)
            name = known[bucket]
        return None if name is None else f"{name}://{rest}"

    def _finds(self, uri: str) -> bool:
        reader = self.spark.read.schema("nothing int").option("__globPaths__", "false")
        try:
            return len(reader.parquet(uri).inputFiles()) == 1
        except (PySparkException, Py4JError):
            return False  # there is no such file system, or it may not read the bucket


_KNOWN: WeakKeyDictionary[SparkSession, dict[tuple[str, str], str | None]] = WeakKeyDictionary()


# -- Parquet files of known size -------------------------------------------------------------------


_BLOCK_BYTES = 128 << 20
"""Spark only asks for the hosts of a block, and object stores have none."""


def known_parquet_files(
    sizes: Mapping[str, int], schema: StructType, options: Mapping[str, str], spark: SparkSession
) -> DataFrame | None:
    """The rows of files with these URIs and sizes in bytes, as a lazy DataFrame of a schema.

    None if this release of Spark has another index. Runs on the driver, and takes about a
    millisecond for each file. A file that is missing is an error of the task that reads it.
    REQUIRES: a classic session, sizes as `verify` checks them, because Spark divides files by them,
    and `options` of Spark's Parquet reader.
    """
    session: Any = spark._jsparkSession
    try:
        context = spark.sparkContext
        jvm, gateway = context._jvm, context._gateway
        hadoop = jvm.org.apache.hadoop.fs
        sources = jvm.org.apache.spark.sql.execution.datasources
        utils, none = jvm.org.apache.spark.api.python.PythonUtils, jvm.scala.Option.empty()
        cache = sources.FileStatusCache.getOrCreate(session)
        paths = jvm.java.util.ArrayList()
        for uri, size in sizes.items():
            path = hadoop.Path(uri)
            found = gateway.new_array(hadoop.FileStatus, 1)
            found[0] = hadoop.FileStatus(size, False, 1, _BLOCK_BYTES, 0, path)
            cache.putLeafFiles(path, found)
            paths.append(path)
        given = utils.toScalaMap(dict(options))
        index = sources.InMemoryFileIndex(
            session, utils.toSeq(paths), given, none, cache, none, none
        )
        columns = session.parseDataType(schema.json()).asNullable()
        no_columns = jvm.org.apache.spark.sql.types.StructType()
        format_ = sources.parquet.ParquetFileFormat()
        relation = sources.HadoopFsRelation(
            index, no_columns, columns, none, format_, given, session
        )
        return DataFrame(session.baseRelationToDataFrame(relation), spark)
    except (Py4JError, TypeError):  # to py4j, a class that does not exist is a package
        return None
