"""The `FallbackScan` class: rows of two branches of a table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide.base.arguments import check_spark_session
from keytide.errors import KeytideError
from keytide.read import fallback as core
from keytide.show.plan import plan_list
from keytide.show.svg import notebook, problem
from keytide.show.tables import columns_table

__all__ = ["FallbackScan"]


class FallbackScan(core.FallbackScan):
    """Rows of a table whose options name a second branch: one merged row per key, in no order.

    `Table.scan` returns it for tables with 'scan.fallback-branch' or 'scan.primary-branch'. It has
    the methods of `Scan` that return rows, `count` and `explain`. It is lazy and keeps reading one
    snapshot of each branch.
    """

    @classmethod
    def wrapping(cls, scan: core.FallbackScan) -> FallbackScan:
        """Wrap the internal scan object."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame. Raises as `Scan.to_spark`."""
        check_spark_session(spark, "FallbackScan.to_spark")
        from keytide.spark.read import fallback_to_spark

        return fallback_to_spark(self, spark)

    def _repr_html_(self) -> str:
        columns = columns_table(("Column", "Type"), [(f.name, f.type.sql()) for f in self.fields])
        try:
            return notebook(plan_list(self.explain().plan()), columns)
        except (KeytideError, OSError) as error:
            return notebook(problem(error), columns)
