"""The `Scan` class: rows of one snapshot."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide.base.arguments import check_spark_session
from keytide.errors import KeytideError
from keytide.read import scan as core
from keytide.read.plan import read_buckets
from keytide.show.layout import read_buckets_table
from keytide.show.plan import plan_list
from keytide.show.svg import notebook, problem
from keytide.show.tables import columns_table

__all__ = ["Scan"]

_BUCKETS_SHOWN = 8


class Scan(core.Scan):
    """Rows of one snapshot: one merged row per key, in no particular order.

    A scan is lazy and keeps reading its snapshot, whatever is committed later. Methods that return
    everything need memory for the result. `to_batches` needs only as much as 'read.memory' allows.
    Errors in stored files are raised when the files are read, see `to_batches`.
    """

    @classmethod
    def of(cls, scan: core.Scan) -> Scan:
        """Wrap the internal scan object."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame. Files that need no merge are read by Spark's Parquet
        reader.

        The DataFrame keeps reading the scan's snapshot. Raises `SetupError` without the `spark`
        extra, and as `tasks` does. A missing or corrupt file raises when Spark reads it.
        """
        check_spark_session(spark, "Scan.to_spark")
        from keytide.spark.read import scan_to_spark

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
