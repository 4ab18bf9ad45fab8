"""The classes `Scan`, `FallbackScan` and `Changes`: what to read of a table, as public objects.

A `Scan` has the rows of one snapshot, a `FallbackScan` those of two branches of a table. `Changes`
are what changed between two snapshots.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide.base.arguments import check_spark_session
from keytide.changes import change_scan
from keytide.changes.change_scan import changed_rows
from keytide.errors import KeytideError
from keytide.read import fallback
from keytide.read import scan as read_scan
from keytide.read.plan import read_buckets
from keytide.show.buckets import read_buckets_table
from keytide.show.elements import columns_table, notebook, paragraph, problem
from keytide.show.explanations import changes_table, plan_list

__all__ = ["Changes", "FallbackScan", "Scan"]

# -- the `Scan` class: rows of one snapshot --------------------------------------------------------


_BUCKETS_SHOWN = 8


class Scan(read_scan.Scan):
    """Rows of one snapshot: one merged row per key, in no particular order.

    A scan is lazy and keeps reading its snapshot, whatever is committed later. Methods that return
    everything need memory for the result. `to_batches` needs only as much as 'read.memory' allows.
    Errors in stored files are raised when the files are read, see `to_batches`.
    """

    @classmethod
    def of(cls, scan: read_scan.Scan) -> Scan:
        """Wrap the internal scan object."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame. Files that need no merge are read by Spark's Parquet
        reader.

        The DataFrame keeps reading the scan's snapshot. Raises `SetupError` without the `spark`
        extra, and as `tasks` does. A missing or corrupt file raises when Spark reads it.
        """
        check_spark_session(spark, "Scan.to_spark")
        from keytide.spark.read_plans import scan_to_spark

        return scan_to_spark(self, spark)

    def _repr_html_(self) -> str:
        columns = columns_table(("Column", "Type"), [(f.name, f.type.sql()) for f in self.fields])
        try:
            plan = plan_list(self.explain().plan())
            buckets = read_buckets(self.plan.buckets, self.view, _BUCKETS_SHOWN)
        except (KeytideError, OSError) as error:
            return notebook(problem(error), columns)
        table = read_buckets_table(buckets, len(self.plan.buckets)) if buckets else ""
        return notebook(plan, table, columns)


# -- the `FallbackScan` class ----------------------------------------------------------------------


class FallbackScan(fallback.FallbackScan):
    """Rows of a table whose options name a second branch: one merged row per key, in no order.

    `Table.scan` returns it for tables with 'scan.fallback-branch' or 'scan.primary-branch'. It has
    the methods of `Scan` that return rows, `count` and `explain`. It is lazy and keeps reading one
    snapshot of each branch.
    """

    @classmethod
    def wrapping(cls, scan: fallback.FallbackScan) -> FallbackScan:
        """Wrap the internal scan object."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame. Raises as `Scan.to_spark`."""
        check_spark_session(spark, "FallbackScan.to_spark")
        from keytide.spark.read_plans import fallback_to_spark

        return fallback_to_spark(self, spark)

    def _repr_html_(self) -> str:
        columns = columns_table(("Column", "Type"), [(f.name, f.type.sql()) for f in self.fields])
        try:
            return notebook(plan_list(self.explain().plan()), columns)
        except (KeytideError, OSError) as error:
            return notebook(problem(error), columns)


# -- the `Changes` class ---------------------------------------------------------------------------


_ROWS_SHOWN = 20


class Changes(change_scan.Changes):
    """What changed after one snapshot up to another one, as rows with their `_row_kind`.

    Lazy: nothing is read until a method asks for rows, and later commits have no effect. Methods
    that return everything need memory for the result. `to_batches` needs only as much as
    'read.memory' allows. Reading raises `DataError`, naming the file, when one is missing or
    corrupt.
    """

    @classmethod
    def of(cls, changes: change_scan.Changes) -> Changes:
        """Wrap the internal changes object."""
        return cls(**{member.name: getattr(changes, member.name) for member in fields(changes)})

    def to_spark(self, spark: Any) -> Any:
        """The changes as a Spark DataFrame, computed by the executors.

        The rows '-U' and '+U' of an update are adjacent in a partition, where the changes of a
        bucket are in order. Needs the `spark` extra. Raises as `plan`. An error in a task arrives
        as Spark's PythonException with the message of the Keytide error.
        """
        check_spark_session(spark, "Changes.to_spark")
        from keytide.spark.read_plans import changes_to_spark

        return changes_to_spark(self, spark)

    def _repr_html_(self) -> str:
        try:
            found = changed_rows(self, self.start_id, _ROWS_SHOWN)
        except (KeytideError, OSError) as error:
            columns = [(f.name, f.type.sql()) for f in self.fields]
            return notebook(problem(error), columns_table(("Column", "Type"), columns))
        return notebook(paragraph(found.found_by, class_="muted"), changes_table(found))
