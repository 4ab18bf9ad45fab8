"""The source of a MERGE on Spark, and the target rows that it can match.

The driver collects a small source, plans the target again for the values of its columns in ON, and
sends them along with the splits. It receives nothing of a larger source: a shuffle sends the values
to every group of splits, and tasks read the rows with these values. If the source has many rows,
this step is skipped, because it would exclude few target rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from keytide.dml.engine import TargetScan
from keytide.spark.capacity import COPIES, tasks_for
from keytide.spark.columns import arrow_schema_of, column, partition_by, spark_schema
from keytide.spark.dml_tasks import GROUP, MatchingTask, scanned_schema
from keytide.spark.internals import is_connect, is_deterministic, known_bytes, planned_bytes
from keytide.spark.runner import Executors
from keytide.spark.worker import check_python
from keytide.sql.change_queries import Match
from keytide.sql.merged_rows import PassThrough
from keytide.types import quoted

_BYTES_MAX = 64 << 20


_COLLECTED_BYTES_MAX = 10 << 20
"""Spark itself collects a relation up to this size, to send it to every executor."""


@dataclass(frozen=True)
class Source:
    """The source of a merge.

    `stored` means that reading the rows repeatedly gives the same rows, so they need not be cached.
    """

    rows: DataFrame
    stored: bool
    collected: Callable[[], pa.Table]
    """The rows in the driver. Runs a Spark job, unless they are stored or were given."""

    @property
    def is_shuffled(self) -> bool:
        """Whether it should pay off to look at the source's values first, as far as is known
        before."""
        if is_connect(self.rows) or not (self.stored or is_deterministic(self.rows)):
            return False
        return planned_bytes(self.rows) <= _BYTES_MAX

    @property
    def row_bytes(self) -> int:
        """About the memory of its rows, each with a row of the target."""
        return COPIES * planned_bytes(self.rows)

    @property
    def is_small(self) -> bool:
        """Whether the driver can collect the rows, as far as is known before."""
        size = known_bytes(self.rows)
        return size is not None and size <= _COLLECTED_BYTES_MAX and has_exact_types(self.rows)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which the rows are computed once, even if they are read several times."""
        # If a user has cached the same plan, Keytide must not release that cache.
        level = self.rows.storageLevel
        holds = not (self.stored or level.useMemory or level.useDisk)
        if holds:
            self.rows.persist()
        try:
            yield
        finally:
            if holds:
                self.rows.unpersist()

    def columns(self, match: Match, target_scan: TargetScan) -> dict[str, str]:
        """Target columns that are matched by value, each with its source column."""
        target = {column.name: column.type for column in target_scan.columns}
        source = arrow_schema_of(self.rows.schema, "of the source")
        return match.comparable(target, {field.name: field.type for field in source})

    def matching(
        self, target_scan: TargetScan, passed: PassThrough, columns: Mapping[str, str]
    ) -> DataFrame:
        """The target rows that may have a source row with equal values in `columns`.

        The result has the columns of `scanned_schema`.
        """
        spark = self.rows.sparkSession
        groups = max(1, min(len(target_scan.splits), tasks_for(spark, target_scan.stored_bytes)))
        values = [f"{quoted(name)} AS _{i}" for i, name in enumerate(columns.values())]
        every = f"explode(sequence(0, {groups - 1})) AS {quoted(GROUP)}"
        dealt = self.rows.selectExpr(*values, every)
        dealt = partition_by(dealt, groups, column(GROUP))
        check_python(spark)
        task = MatchingTask(target_scan, passed, tuple(columns), groups)
        schema = spark_schema(scanned_schema(target_scan, passed))
        # Spark estimates few rows, but a value can occur in any number of target rows.
        return Executors().convert(task, dealt, schema).hint("merge")


def has_exact_types(rows: DataFrame) -> bool:
    """Whether rows keep their types when they are collected and sent back to Spark."""
    back = spark_schema(arrow_schema_of(rows.schema, "of the source"))
    return bool(back.simpleString() == rows.schema.simpleString())


def distinct_values(rows: pa.Table, columns: Mapping[str, str]) -> dict[str, pa.Array]:
    """The values of source rows for the target columns in `columns`."""
    return {name: pc.drop_null(rows.column(other).unique()) for name, other in columns.items()}
