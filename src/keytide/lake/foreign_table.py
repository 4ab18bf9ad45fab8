"""Read access to external and federated tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide.base.arguments import check_spark_session, checked
from keytide.errors import KeytideError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.predicate.condition import Condition
from keytide.read.why import Why
from keytide.show.elements import (
    columns_table,
    element,
    named,
    notebook,
    paragraph,
    problem,
    shortened,
)
from keytide.sources import scan as core
from keytide.sources.scan import (
    ExternalChanges,
    get_external,
    get_many_external,
    scan_external,
    why_external,
)
from keytide.sources.source_state import PinnedExternal

__all__ = ["ExternalChanges", "ExternalScan", "ForeignTable"]


class ExternalScan(core.ExternalScan):
    """Rows of one version of an external table: one merged row per key, in no particular order.

    A scan is lazy and keeps reading its version, as long as the source keeps that version. Methods
    that return everything need memory for the result. `to_batches` needs only as much as
    'read.memory' allows.
    """

    def to_spark(self, spark: Any) -> Any:
        """The rows as a lazy Spark DataFrame, which keeps reading the version of this scan.

        The executors merge the rows, and need access to the same paths. Raises `SetupError` without
        the `spark` extra, and what planning raises. Invalid rows raise when Spark reads them.
        """
        check_spark_session(spark, "ExternalScan.to_spark")
        from keytide.spark.dml_tasks import pages_to_spark

        rows = pages_to_spark(self.pages(), spark)
        return rows if self.limit is None else rows.limit(self.limit)


class ForeignTable(ABC):
    """A table whose rows another engine writes, merged by primary, watermark and tombstone key.

    For each key, readers see the row with the largest watermark, or no row when it is a tombstone.
    """

    # -- properties --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the table in SQL."""

    @property
    @abstractmethod
    def table_schema(self) -> TableSchema:
        """Columns, keys and options. Raises `NotFoundError` when the table no longer exists."""

    @property
    @abstractmethod
    def format(self) -> str:
        """The format of the source: `parquet`, `delta` and so on. Raises as `table_schema`."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the rows, without secrets. Raises as `table_schema`."""

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema. Raises as `table_schema`."""
        return self.table_schema.arrow_schema()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns. Raises as `table_schema`."""
        return self.table_schema.primary_keys

    @property
    def stored(self) -> PinnedExternal:
        """The current table as the lower layers use it, read once. Raises as `scan`."""
        return self._pinned()

    def _repr_html_(self) -> str:
        title = element("strong", named(self.name))
        try:
            schema, place = self.table_schema, f"{self.format} at {self.location}"
        except (KeytideError, OSError) as error:
            return notebook(paragraph(title, class_="title"), problem(error))
        options = TableOptions.parse(schema.options)
        roles = {
            **dict.fromkeys(options.watermark_key, "watermark key"),
            **dict.fromkeys(options.tombstone_key, "tombstone key"),
            **dict.fromkeys(schema.primary_keys, "primary key"),
        }
        rows = [(f.name, f.type.sql(), roles.get(f.name, "")) for f in schema.fields]
        head = paragraph(title, " ", element("code", shortened(place, 300)), class_="title")
        return notebook(head, columns_table(("Column", "Type", "Role"), rows))

    # -- reading -----------------------------------------------------------------------------------

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        *,
        version: int | str | None = None,
        limit: int | None = None,
    ) -> ExternalScan:
        """Return a lazy scan of the current rows or, if the format has versions, of another
        `version`.

        `where` is a condition as in `Table.scan`. Its parts on the primary key are applied before
        versions are merged, and all other parts after that (rule R17 of docs/semantics.md). `limit`
        is the maximum number of rows. It returns the rows that are read first.

        Raises:

        - `NotFoundError` for an unknown column or version, and when there is nothing at the
          location.
        - `InvalidError` for a condition that does not parse or match the columns, and for a
          definition whose columns do not exist.
        - `UnsupportedError`, `SetupError` and `DataError` depending on the format.
        """
        scan = scan_external(self._pinned(version), columns, where, limit)
        return ExternalScan(scan.table, scan.columns, scan.predicate, limit=scan.limit)

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """Return the row of one key, or None.

        `key` is what `Table.get` accepts. Raises as `scan`.
        """
        return get_external(self._pinned(), key)

    @checked
    def get_many(self, keys: Sequence[Mapping[str, Any] | Any]) -> pa.Table:
        """Return the existing rows of several keys, in the order of the keys, each row once.

        Raises as `scan`.
        """
        return get_many_external(self._pinned(), keys)

    @checked
    def why(self, key: Mapping[str, Any] | Any, *, version: int | str | None = None) -> Why:
        """List every stored version of a key in merge order, and explain the result.

        This works as `Table.why`. `file` is the location of a version. Raises as `scan`.
        """
        return why_external(self._pinned(version), key)

    @checked
    def changes(self, start: int | str, end: int | str | None = None) -> ExternalChanges:
        """Return what changed after version `start` up to `end`, by default the latest version.

        The rows of both versions are compared by key, which gives '+I', '-D', and pairs of '-U' and
        '+U'. Raises `UnsupportedError` when the format has no versions, and as `scan`.
        """
        return ExternalChanges(*self._pinned_both(start, end))

    @abstractmethod
    def _pinned(self, version: int | str | None = None) -> PinnedExternal:
        """The table now, or at a version, read once."""

    @abstractmethod
    def _pinned_both(
        self, start: int | str, end: int | str | None
    ) -> tuple[PinnedExternal, PinnedExternal]:
        """The table at two versions, with the same definition."""
