"""The author of a streaming batch: commit ids that stay the same after a restart of the query.

A query keeps its id over restarts, and a repeated batch has the same number. Together they make
commits idempotent without any option. A task finds both in its local properties, and a
`foreachBatch` function in those of the driver's thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame

from keytide.commit.author import Author
from keytide.errors import InvalidError
from keytide.spark.connect import is_connect, runs_batch_function

__all__ = ["StreamBatch", "author_in_stream", "batch_of_task"]

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class StreamBatch:
    """One micro-batch of a streaming query."""

    query_id: str
    batch_id: int

    @property
    def author(self) -> Author:
        """The author under which the batch is committed."""
        return Author(f"spark-{self.query_id}", self.batch_id)


def batch_of_task() -> StreamBatch:
    """The batch of this task. Runs on executors, in a streaming query."""
    context: Any = TaskContext.get()
    return StreamBatch(
        context.getLocalProperty(_QUERY_ID), int(context.getLocalProperty(_BATCH_ID))
    )


def author_in_stream(df: DataFrame, table_uri: str) -> Author | None:
    """The author of a write inside a `foreachBatch` function, otherwise None.

    The second and later writes to the same table within a batch get users of their own, in the
    order of the calls. So a repeated function must write in the same order. Raises `InvalidError`
    on Spark Connect, which does not say for which query a function runs.
    """
    if is_connect(df):
        if runs_batch_function():
            raise InvalidError(
                "Spark Connect does not tell foreachBatch functions which query they belong to; "
                "for exactly-once, write with table.write(batch, commit_user='a name of this "
                "query', commit_identifier=batch_id)"
            )
        return None
    context = df.sparkSession.sparkContext
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        return None
    batch = StreamBatch(query_id, int(batch_id))
    number = _WRITES.count(batch, context.getLocalProperty(_RUN_ID), table_uri)
    author = batch.author
    return author if number == 1 else replace(author, user=f"{author.user}-{number}")


class _WriteCounts:
    """Counts the writes to each table by the current batch of each running query."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str | None, str], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def count(self, batch: StreamBatch, run_id: str | None, table_uri: str) -> int:
        """Count one more write. The first one of a batch is 1."""
        key = (batch.query_id, run_id, table_uri)
        with self._lock:
            last_batch, count = self._counts.get(key, (-1, 0))
            count = count + 1 if last_batch == batch.batch_id else 1
            self._counts[key] = (batch.batch_id, count)
            return count


_WRITES = _WriteCounts()
