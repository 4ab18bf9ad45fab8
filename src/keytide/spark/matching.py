"""The rows of a target that the source of a MERGE can match, found by executors.

A shuffle deals the values that the source has in the columns of ON to every group of splits; tasks
then read the rows that have them. Nothing of it passes through the driver. A source of many rows is
not dealt: there would be little that it leaves out.
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
    """What a target is merged with.

    Rows that are `stored` are the same each time they are read, and need not be held.
    """

    rows: DataFrame
    stored: bool

    @property
    def is_dealt(self) -> bool:
        """Whether it pays to look at its values first, as far as can be told before it runs."""
        if is_connect(self.rows) or not (self.stored or is_deterministic(self.rows)):
            return False
        return planned_bytes(self.rows) <= _BYTES_MAX

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which rows are computed once, however often they are read."""
        # Of rows with the same plan, whoever had them kept; theirs are not ours to let go of.
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
        """The columns of a target, each with the one of the source whose values are dealt."""
        target = {column.name: column.type for column in scanned.columns}
        source = arrow_schema_of(self.rows.schema, "of the source")
        return match.comparable(target, {field.name: field.type for field in source})

    def matching(
        self, scanned: Scanned, passed: PassThrough, columns: Mapping[str, str]
    ) -> DataFrame:
        """The rows of a target that may have a row of the source with equal values in `columns`.

        The columns of the rows are those of `scanned_schema`.
        """
        spark = self.rows.sparkSession
        groups = max(1, min(len(scanned.splits), cores(spark)))
        values = [f"{quoted(name)} AS _{i}" for i, name in enumerate(columns.values())]
        every = f"explode(sequence(0, {groups - 1})) AS {quoted(GROUP)}"
        dealt = self.rows.selectExpr(*values, every).repartitionById(groups, column(GROUP))
        check_python(spark)
        task = MatchingTask(scanned, passed, tuple(columns), groups)
        schema = spark_schema(scanned_schema(scanned, passed))
        # Spark takes them for few, but a value may be that of any number of rows of the target.
        return Executors().made(task, dealt, schema).hint("merge")
