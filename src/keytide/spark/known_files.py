"""Parquet files that Spark reads without looking for them first, because their sizes are known.

Spark asks an object store two or three times for each file that a reader names, one after the
other, before it plans a read. A table's metadata says what the answers are. Spark's own index of
files takes them from the cache in which it keeps such answers, and asks for files that are not in
it. The classes of the index are not part of Spark's public API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

__all__ = ["known_parquet_files"]

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
        relation = _relation(sizes, schema, options, spark.sparkContext, session)
        return DataFrame(session.baseRelationToDataFrame(relation), spark)
    except (Py4JError, TypeError):  # to py4j, a class that does not exist is a package
        return None


def _relation(
    sizes: Mapping[str, int],
    schema: StructType,
    options: Mapping[str, str],
    context: Any,
    session: Any,
) -> Any:
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
    index = sources.InMemoryFileIndex(session, utils.toSeq(paths), given, none, cache, none, none)
    columns = session.parseDataType(schema.json()).asNullable()
    no_columns = jvm.org.apache.spark.sql.types.StructType()
    format_ = sources.parquet.ParquetFileFormat()
    return sources.HadoopFsRelation(index, no_columns, columns, none, format_, given, session)
