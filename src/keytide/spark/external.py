"""External tables on Spark: versions are shuffled by key and merged in tasks.

There are two ways. If Spark's own reader reads the files correctly, only keys and the columns that
decide between versions are shuffled. The result is a bitmap of the losing rows of each file, and
Spark's reader reads the files without these rows. Keys for which whole rows must be compared come
from tasks. In all other cases, whole versions are shuffled, and Spark receives the merged rows. In
both cases the rows belong to the one version that the scan has, and nothing is read until rows are
requested.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.dml.attached import PagesScan
from keytide.sources.connector import ExternalHandle
from keytide.sources.merging import Merging, split_condition
from keytide.sources.parquet_part import ParquetPart
from keytide.spark.dealing import MergeTask, bytes_of, dealt_by_key
from keytide.spark.external_files import plain_files, rows_of_files
from keytide.spark.file_systems import locate_in
from keytide.spark.runner import Executors
from keytide.spark.types import spark_schema

__all__ = ["merged_to_spark"]

_SMALL_BYTES = 64 << 20
"""Versions up to this size are merged by one task, because a shuffle would take longer."""


def merged_to_spark(
    scan: PagesScan, table: ExternalHandle, spark: SparkSession
) -> DataFrame | None:
    """The rows of an external table as a lazy DataFrame, None if a single task should merge them.

    Runs on the driver, and plans the parts here. Raises what planning raises.
    """
    about_key, rest = split_condition(table.predicate, table.table.view.schema.primary_keys)
    versions = table.table.versions(about_key)
    merging = Merging(versions, tuple(column.name for column in scan.columns), rest)
    if not merging.columns or not _is_worth_dealing(merging):
        return None
    files = plain_files(table, merging, locate_in(spark))
    if files is None:
        return _merged(merging, scan.schema, spark)
    return rows_of_files(table, merging, files, scan.schema, spark)


def _is_worth_dealing(merging: Merging) -> bool:
    """Whether there are many versions, in parts of which several can be read in parallel."""
    parts = merging.versions.parts
    has_one = len(parts) == 1 and not isinstance(parts[0], ParquetPart)
    size = bytes_of(merging.versions, merging.columns_read)
    return bool(parts) and not has_one and size is not None and size > _SMALL_BYTES


def _merged(merging: Merging, schema: pa.Schema, spark: SparkSession) -> DataFrame:
    """The rows, all of them read in Python."""
    # Other tasks have read the versions, so it would be too late to fetch whole rows only for the
    # keys that need them.
    whole = replace(merging, compares_rows=not merging.versions.are_in_order)
    task = MergeTask(whole.by_key, whole.shown, schema)
    count = sum(part.rows or 0 for part in merging.versions.parts) or None
    dealt = dealt_by_key(merging.versions, whole.columns_read, spark, count)
    return Executors().made(task, dealt, spark_schema(schema))
