"""A scan as users hold it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from keytide import html
from keytide.lazy import load
from keytide.table.read import scan as core

__all__ = ["Scan"]


class Scan(core.Scan):
    """Rows of one snapshot: one merged row per key, in no promised order.

    A scan is lazy and stays with its snapshot, whatever is committed later. Methods that return
    everything need memory for the result; `to_batches` needs only what 'read.memory' allows.
    Raises `DataError` naming the file that is missing or torn, when it is read.
    """

    @classmethod
    def of(cls, scan: core.Scan) -> Scan:
        """The same scan for users."""
        return cls(**{member.name: getattr(scan, member.name) for member in fields(scan)})

    def to_spark(self, spark: Any) -> Any:
        """The rows as a Spark DataFrame: a plan over native Parquet reads where nothing overlaps.

        Needs the `spark` extra. The DataFrame stays with the scan's snapshot.
        """
        return load("keytide.spark.read").scan_to_spark(self, spark)

    def _repr_html_(self) -> str:
        fields = self.view.schema.select(self.columns)
        columns = html.table(("column", "type"), [(f.name, f.type.sql()) for f in fields])
        return columns + html.preformatted(str(self.explain()))
