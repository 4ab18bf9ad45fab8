"""The `Scan` class: rows of one snapshot."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide import html
from keytide.table.read import scan as core

__all__ = ["Scan"]


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
        from keytide.spark.read import scan_to_spark

        return scan_to_spark(self, spark)

    def _repr_html_(self) -> str:
        fields = self.view.schema.select(self.columns)
        columns = html.table(("column", "type"), [(f.name, f.type.sql()) for f in fields])
        return columns + html.preformatted(str(self.explain()))
