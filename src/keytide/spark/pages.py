"""Tables of connectors on Spark: each split is read by a task, or a merge is that of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.dml.attached import PagesScan, PagesTask
from keytide.external.connector import ExternalHandle
from keytide.spark.external import merged_to_spark
from keytide.spark.python import check_python
from keytide.spark.runner import Executors
from keytide.spark.types import batches_of, spark_schema

__all__ = ["pages_to_spark"]


def pages_to_spark(scan: PagesScan, spark: SparkSession) -> DataFrame:
    """The rows of a connector's table as a lazy DataFrame.

    Driver only; splits are listed here, and read when rows are asked for. Raises `SetupError` where
    Spark runs another Python, and what the connector raises. What a task raises later reaches the
    user as the Keytide error, which is one of Spark's too.
    """
    check_python(spark)
    table, _ = scan.narrowed()
    rows = merged_to_spark(scan, table, spark) if isinstance(table, ExternalHandle) else None
    if rows is not None:
        return rows
    tasks = [_Pages(task) for task in scan.tasks()]
    return Executors().rows(tasks, spark_schema(scan.schema), spark)


@dataclass(frozen=True)
class _Pages:
    task: PagesTask

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Spark wants them. Runs on executors."""
        for page in self.task.batches():
            yield from batches_of(pa.Table.from_batches([page]))
