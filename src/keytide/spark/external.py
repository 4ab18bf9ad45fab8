"""Tables that others keep, on Spark: versions of keys are dealt out by key and merged by tasks.

Of files that Spark reads as we do, only keys and what decides between versions are dealt out. What
comes back is which rows of which file are not the row of their key, as bitmaps, and Spark's own
reader reads the files without those; keys of which whole rows have to be compared come from tasks.
Of all others, whole versions are dealt out, and Spark gets what they are merged into. In either
case the rows are those of one version, that of the scan, and nothing is read before they are asked
for.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.dml.attached import PagesScan
from keytide.external.connector import ExternalHandle
from keytide.external.merging import Merging, split_condition
from keytide.external.parquet_part import ParquetPart
from keytide.spark.dealing import MergeTask, bytes_of, dealt_by_key
from keytide.spark.external_files import plain_files, rows_of_files
from keytide.spark.runner import Executors
from keytide.spark.types import spark_schema

__all__ = ["merged_to_spark"]

_SMALL_BYTES = 64 << 20
"""Versions up to this size are merged by one task: to deal them out takes longer."""


def merged_to_spark(
    scan: PagesScan, table: ExternalHandle, spark: SparkSession
) -> DataFrame | None:
    """The rows of a table that others keep, as a lazy DataFrame; None where one task is to merge.

    Driver only; parts are planned here. Raises what planning raises.
    """
    about_key, rest = split_condition(table.predicate, table.table.view.schema.primary_keys)
    versions = table.table.versions(about_key)
    merging = Merging(versions, tuple(column.name for column in scan.columns), rest)
    if not merging.columns or not _is_worth_dealing(merging):
        return None
    files = plain_files(table, merging)
    if files is None:
        return _merged(merging, scan.schema, spark)
    return rows_of_files(table, merging, files, scan.schema, spark)


def _is_worth_dealing(merging: Merging) -> bool:
    """Whether versions are many, and lie in parts of which several can be read at once."""
    parts = merging.versions.parts
    has_one = len(parts) == 1 and not isinstance(parts[0], ParquetPart)
    size = bytes_of(merging.versions, merging.columns_read)
    return bool(parts) and not has_one and size is not None and size > _SMALL_BYTES


def _merged(merging: Merging, schema: pa.Schema, spark: SparkSession) -> DataFrame:
    """The rows, of which Python has read all."""
    # Which keys need whole rows would be known too late: others have read the versions.
    whole = replace(merging, compares_rows=not merging.versions.are_in_order)
    task = MergeTask(whole.by_key, whole.shown, schema)
    count = sum(part.rows or 0 for part in merging.versions.parts) or None
    dealt = dealt_by_key(merging.versions, whole.columns_read, spark, count)
    return Executors().made(task, dealt, spark_schema(schema))
