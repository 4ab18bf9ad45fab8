"""The batches of rows that Spark passes to Python tasks, and their sorted runs.

Spark ends a batch after 10,000 rows or 64 MB. It computes the size of the batch again for each row,
from all of its columns, which takes longer than reading and copying the row. So batches of rows
that are not long are limited by number alone, to one that keeps them far below 64 MB. Rows that
reach a task in small pieces are combined into sorted runs.

Executors import this module to write, so it imports nothing that only planning needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame

from keytide.base.dataclass import dataclass
from keytide.snapshot.live_files import LiveFiles
from keytide.spark.capacity import temporary_setting
from keytide.spark.columns import row_bytes
from keytide.spark.internals import is_apache_spark
from keytide.write.task import TaskResult, WriteTask

# -- batches ---------------------------------------------------------------------------------------


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
    if (
        is_long
        or is_nested
        or not is_apache_spark(spark)
        or any(spark.conf.get(name, None) not in {None, ours} for name, ours in _OURS.items())
    ):
        yield
        return
    with temporary_setting(spark, _ROWS, _ROWS_MAX), temporary_setting(spark, _BYTES, _UNLIMITED):
        yield


def stored_row_bytes(live: LiveFiles) -> float:
    """About how many bytes of memory a row of a table takes on average, 0 if there are none."""
    size, rows = live.files.columns("_FILE_SIZE", "_ROW_COUNT").sum().row(0)
    return _MEMORY_PER_STORED * size / rows if rows else 0.0


# -- sorted runs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BufferedTask:
    """Writes rows that arrive in small pieces, combined into runs of 'write-buffer-size'.

    REQUIRES: the rows arrive in their order.
    """

    task: WriteTask

    def feed(self, rows: Iterable[pa.Table], number: int) -> TaskResult:
        """Write the rows as one or more sorted runs for each bucket. Raises as `WriteTask.feed`."""
        return self.task.feed(_runs(rows, self.task.view.options.write_buffer_bytes), number)


def _runs(pieces: Iterable[pa.Table], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about `buffer_bytes`."""
    held: list[pa.Table] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= buffer_bytes:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
