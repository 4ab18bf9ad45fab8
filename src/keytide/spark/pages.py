"""Tables of connectors on Spark: a task reads each split, or many tasks merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keytide.dml.attach import PagesScan, PagesTask
from keytide.sources.scan import ExternalHandle
from keytide.spark.columns import batches_of, spark_schema
from keytide.spark.external import merged_to_spark
from keytide.spark.python import check_python
from keytide.spark.runner import Executors


def pages_to_spark(scan: PagesScan, spark: SparkSession) -> DataFrame:
    """The rows of a connector's table as a lazy DataFrame.

    Runs on the driver. Splits are listed here, and read when rows are requested. Raises
    `SetupError` when Spark runs another Python version, and what the connector raises. A later
    error in a task is raised as the Keytide error, which is also an error class of Spark.
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
        """The rows in Spark's batch format. Runs on executors."""
        for page in self.task.batches():
            yield from batches_of(pa.Table.from_batches([page]))
