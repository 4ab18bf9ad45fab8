"""Executors find the target rows that the source of a MERGE can match.

A shuffle sends the source's values in the columns of ON to every group of splits. Then tasks read
the rows with these values. The driver receives none of them. If the source has many rows, this step
is skipped, because it would exclude few target rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from keytide.dml.execution import Scanned
from keytide.spark.connect import cores, is_connect
from keytide.spark.dml_tasks import GROUP, MatchingTask, scanned_schema
from keytide.spark.internals import is_deterministic, planned_bytes
from keytide.spark.predicate import column
from keytide.spark.python import check_python
from keytide.spark.runner import Executors
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.sql.merge_match import Match
from keytide.sql.pass_through import PassThrough
from keytide.types import quoted

__all__ = ["Source"]

_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Source:
    """The source of a merge.

    `stored` means that reading the rows repeatedly gives the same rows, so they need not be cached.
    """

    rows: DataFrame
    stored: bool

    @property
    def is_dealt(self) -> bool:
        """Whether it should pay off to look at the source's values first, as far as is known
        before."""
        if is_connect(self.rows) or not (self.stored or is_deterministic(self.rows)):
            return False
        return planned_bytes(self.rows) <= _BYTES_MAX

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

    def columns(self, match: Match, scanned: Scanned) -> dict[str, str]:
        """Target columns that are matched by value, each with its source column."""
        target = {column.name: column.type for column in scanned.columns}
        source = arrow_schema_of(self.rows.schema, "of the source")
        return match.comparable(target, {field.name: field.type for field in source})

    def matching(
        self, scanned: Scanned, passed: PassThrough, columns: Mapping[str, str]
    ) -> DataFrame:
        """The target rows that may have a source row with equal values in `columns`.

        The result has the columns of `scanned_schema`.
        """
        spark = self.rows.sparkSession
        groups = max(1, min(len(scanned.splits), cores(spark)))
        values = [f"{quoted(name)} AS _{i}" for i, name in enumerate(columns.values())]
        every = f"explode(sequence(0, {groups - 1})) AS {quoted(GROUP)}"
        dealt = self.rows.selectExpr(*values, every).repartitionById(groups, column(GROUP))
        check_python(spark)
        task = MatchingTask(scanned, passed, tuple(columns), groups)
        schema = spark_schema(scanned_schema(scanned, passed))
        # Spark estimates few rows, but a value can occur in any number of target rows.
        return Executors().made(task, dealt, schema).hint("merge")
