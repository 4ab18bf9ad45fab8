"""Row-level changes on Spark: executors read, compute and change; the driver gets fragments.

The splits of a target are the partitions of a DataFrame. Spark SQL finds the rows and computes the
new values; then tasks hand them to a source of the split that they came from. Where a statement
names other tables too, Spark may have moved rows, and they are brought together by split again.
Where the splits say exactly which rows are meant and new values are constants, there is nothing to
compute: a task reads and changes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.dml.execution import RowChange, Scanned, SplitResult
from keytide.dml.merge import Sinks
from keytide.spark.connect import cores
from keytide.spark.dml_tasks import (
    SPLIT,
    ChangeTask,
    MergeTask,
    ScanTask,
    WholeTask,
    scanned_schema,
)
from keytide.spark.matching import Source
from keytide.spark.predicate import column
from keytide.spark.python import check_python
from keytide.spark.runner import Cluster, Executors
from keytide.spark.types import spark_schema
from keytide.sql.merge_plan import MergeQuery
from keytide.sql.pass_through import ROW, PassThrough
from keytide.sql.row_query import RowQuery
from keytide.types import quoted

__all__ = ["SparkMergeHost", "SparkRowHost"]


@dataclass(frozen=True)
class SparkRowHost:
    """Carries DELETE and UPDATE out on a session; see `Host`. One Spark job."""

    query: RowQuery
    spark: SparkSession
    compute: Callable[[Sequence[str], DataFrame], DataFrame]
    """Runs the query with some columns passed through, over the target's rows."""

    def change(
        self, scanned: Scanned, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`."""
        constants = self.query.constants if scanned.is_exact else None
        if constants is None:
            self._computed(scanned, change, take)
            return
        fields, table = self.query.fields, self.query.table
        values = tuple(constants.columns)
        tasks = [WholeTask(one, change, values, fields, table) for one in _one_by_one(scanned)]
        Cluster(self.spark).each(tasks, take)

    def _computed(
        self, scanned: Scanned, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        passed = PassThrough(scanned.columns[-1].type)
        names = (*passed.names, SPLIT)
        rows = self.compute(names, _frame(scanned, passed, self.spark))
        if self.query.bound.relations:
            # A join or a subquery may have moved rows away from those of their split.
            rows = rows.repartition(max(cores(self.spark), 1), column(SPLIT))
        task = ChangeTask(scanned, change, passed, self.query.fields, self.query.table)
        results: list[list[SplitResult]] = []
        try:
            Executors().feed(task, rows, results.append)
        except PySparkException as error:
            raise self.query.bound.refused(str(error).splitlines()[0]) from error
        finally:
            for each in results:
                for result in each:
                    take(result)


@dataclass(frozen=True)
class SparkMergeHost:
    """Carries a MERGE out on a session; see `MergeHost`. One Spark job."""

    query: MergeQuery
    spark: SparkSession
    compute: Callable[[PassThrough, DataFrame], DataFrame]
    """Runs the query over the target's rows."""
    source: Source | None = None
    """What the query merges, where rows of the target that match nothing of it stay as they are."""

    def merge(self, scanned: Scanned, sinks: Sinks, take: Callable[[SplitResult], None]) -> None:
        """See `MergeHost.merge`."""
        passed = self.query.passed(sinks.pages)
        with self._target(scanned, passed) as target:
            self._merge(self.compute(passed, target), passed, sinks, take)

    @contextmanager
    def _target(self, scanned: Scanned, passed: PassThrough) -> Iterator[DataFrame]:
        """The rows of the target that are needed."""
        source = self.source
        columns = {} if source is None else source.columns(self.query.match, scanned)
        if source is None or not (columns and scanned.splits and source.is_dealt):
            yield _frame(scanned, passed, self.spark)
            return
        with source.held():
            yield source.matching(scanned, passed, columns)

    def _merge(
        self,
        rows: DataFrame,
        passed: PassThrough,
        sinks: Sinks,
        take: Callable[[SplitResult], None],
    ) -> None:
        count = max(cores(self.spark), 1)
        # All that concerns a row of the target comes to one task; new rows are dealt out.
        every = f"xxhash64({', '.join(map(quoted, rows.columns))})"
        rows = rows.repartition(count, F.expr(f"coalesce({self._place(sinks, passed)}, {every})"))
        task = MergeTask(sinks, passed, self.query.made, count)
        try:
            Executors().feed(task, rows, take)
        except PySparkException as error:
            raise self.query.bound.refused(str(error).splitlines()[0]) from error

    def _place(self, sinks: Sinks, passed: PassThrough) -> str:
        """What rows have in common that belong to one task, in SQL; NULL for a new row."""
        if not sinks.layout:
            return quoted(ROW)
        names = [f.name for f in sinks.pages.row_id.type]
        members = ", ".join(quoted(passed.names[names.index(name)]) for name in sinks.layout)
        return f"CASE WHEN {quoted(ROW)} IS NOT NULL THEN xxhash64({members}) END"


# -- reading ---------------------------------------------------------------------------------------


def _frame(scanned: Scanned, passed: PassThrough, spark: SparkSession) -> DataFrame:
    """The rows of a target, one partition for each split, with what is passed through."""
    tasks = [
        ScanTask(scanned_one, passed, number)
        for number, scanned_one in enumerate(_one_by_one(scanned))
    ]
    check_python(spark)
    return Executors().rows(tasks, spark_schema(scanned_schema(scanned, passed)), spark)


def _one_by_one(scanned: Scanned) -> Iterator[Scanned]:
    for split in scanned.splits:
        yield replace(scanned, splits=[split])
