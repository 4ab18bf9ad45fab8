"""A scan as users hold it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide import html
from keytide.table.read import scan as core

__all__ = ["Scan"]


class Scan(core.Scan):
    """Rows of one snapshot: one merged row per key, in no promised order.

    A scan is lazy and stays with its snapshot, whatever is committed later. Methods that return
    everything need memory for the result; `to_batches` needs only what 'read.memory' allows.
    What is wrong with stored files is found when they are read, see `to_batches`.
    """

    @classmethod
    def of(cls, scan: core.Scan) -> Scan:
        """The same scan for users."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame: a plan over native Parquet reads where nothing overlaps.

        The DataFrame stays with the scan's snapshot. Raises `SetupError` without the `spark` extra,
        and as `tasks` does; a file that is missing or torn is found when Spark reads it.
        """
        from keytide.spark.read import scan_to_spark

        return scan_to_spark(self, spark)

    def _repr_html_(self) -> str:
        fields = self.view.schema.select(self.columns)
        columns = html.table(("column", "type"), [(f.name, f.type.sql()) for f in fields])
        return columns + html.preformatted(str(self.explain()))
