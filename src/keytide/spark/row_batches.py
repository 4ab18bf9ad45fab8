"""The batches of rows that Spark passes to Python tasks.

Spark ends a batch after 10,000 rows or 64 MB. It computes the size of the batch again for each row,
from all of its columns, which takes longer than reading and copying the row. So batches of rows
that are not long are limited by number alone, to one that keeps them far below 64 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from keytide.snapshot.live_files import LiveFiles
from keytide.spark.columns import row_bytes
from keytide.spark.connect import is_apache_spark
from keytide.spark.settings import held_setting

__all__ = ["counted_batches", "stored_row_bytes"]

_BYTES, _UNLIMITED = "spark.sql.execution.arrow.maxBytesPerBatch", str((1 << 31) - 1)
_ROWS, _ROWS_MAX = "spark.sql.execution.arrow.maxRecordsPerBatch", "1000"
_OURS = {_BYTES: _UNLIMITED, _ROWS: _ROWS_MAX}
_LONG_ROW = 8 << 10
"""With rows of this many bytes on average, 1,000 are 8 MB. Spark measures the batches of longer
ones."""
_NESTED = frozenset({"array", "map", "struct", "variant"})
_MEMORY_PER_STORED = 4


@contextmanager
def counted_batches(rows: DataFrame, known_row_bytes: float = 0) -> Iterator[None]:
    """A context in which batches of a DataFrame's rows have at most 1,000 rows, of any size.

    `known_row_bytes` is the average of similar rows, 0 if it is unknown. Nothing changes for long
    rows, for nested columns, whose values may be long, and if the session has a limit of its own.
    """
    spark, schema = rows.sparkSession, rows.schema
    is_long = max(row_bytes(schema), known_row_bytes) > _LONG_ROW
    is_nested = not _NESTED.isdisjoint(field.dataType.typeName() for field in schema)
    if is_long or is_nested or not is_apache_spark(spark) or _limited_by_user(spark):
        yield
        return
    with held_setting(spark, _ROWS, _ROWS_MAX), held_setting(spark, _BYTES, _UNLIMITED):
        yield


def _limited_by_user(spark: SparkSession) -> bool:
    return any(spark.conf.get(name, None) not in {None, ours} for name, ours in _OURS.items())


def stored_row_bytes(live: LiveFiles) -> float:
    """About how many bytes of memory a row of a table takes on average, 0 if there are none."""
    size, rows = live.files.columns("_FILE_SIZE", "_ROW_COUNT").sum().row(0)
    return _MEMORY_PER_STORED * size / rows if rows else 0.0
