"""A table whose rows others keep, as users read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide import html
from keytide.arguments import checked
from keytide.external import scan as core
from keytide.external.changes import ExternalChanges
from keytide.external.pinned import PinnedExternal
from keytide.external.scan import get_external, get_many_external, scan_external
from keytide.external.why import why_external
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.table.conditions.condition import Condition
from keytide.table.read.why import Why

__all__ = ["ExternalChanges", "ExternalScan", "ForeignTable"]


class ExternalScan(core.ExternalScan):
    """Rows of one version of an external table: one merged row per key, in no promised order.

    A scan is lazy and stays with its version, as far as whoever keeps the rows keeps that. Methods
    that return everything need memory for the result; `to_batches` needs only what 'read.memory'
    allows.
    """

    def to_spark(self, spark: Any) -> Any:
        """The rows as a lazy Spark DataFrame, which stays with the version of this scan.

        Executors merge, and see the same paths. Raises `SetupError` without the `spark` extra, and
        what planning raises; what is wrong with the rows is found when Spark reads them.
        """
        from keytide.spark.pages import pages_to_spark

        rows = pages_to_spark(self.pages(), spark)
        return rows if self.limit is None else rows.limit(self.limit)


class ForeignTable(ABC):
    """A table whose rows others keep, merged by its primary, watermark and tombstone key.

    Of the versions of a key that lie there readers see one row, or none where the freshest one is a
    tombstone.
    """

    # -- what it is --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which SQL finds it."""

    @property
    @abstractmethod
    def table_schema(self) -> TableSchema:
        """Columns, keys and options. Raises `NotFoundError` where there is no table by now."""

    @property
    @abstractmethod
    def format(self) -> str:
        """What lies there: `parquet`, `delta` and so on. Raises as `table_schema`."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the rows lie, without secrets. Raises as `table_schema`."""

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
        """The table as the layers below know it, as it is now: one look. Raises as `scan`."""
        return self._pinned()

    def _repr_html_(self) -> str:
        schema = self.table_schema
        options = TableOptions.parse(schema.options)
        roles = {
            **dict.fromkeys(options.watermark_key, "watermark key"),
            **dict.fromkeys(options.tombstone_key, "tombstone key"),
            **dict.fromkeys(schema.primary_keys, "primary key"),
        }
        rows = [(f.name, f.type.sql(), roles.get(f.name, "")) for f in schema.fields]
        head = html.heading(self.name, f"{self.format} at {self.location}")
        return head + html.table(("column", "type", "role"), rows)

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
        """A lazy read of what lies there now or, where the format has them, of another `version`.

        `where` is a condition as in `Table.scan`. What it says of the primary key is asked before
        versions are merged, all else after it (rule R17 of docs/semantics.md). With a `limit` no
        more than so many rows are given, whichever are read first.

        Raises `NotFoundError` for an unknown column or version and where nothing lies there,
        `InvalidError` for a condition that does not parse or fit, and for a definition whose
        columns are not there; `UnsupportedError`, `SetupError` and `DataError` as the format has
        it.
        """
        scan = scan_external(self._pinned(version), columns, where, limit)
        return ExternalScan(scan.table, scan.columns, scan.predicate, limit=scan.limit)

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """The row of one key, or None. `key` is what `Table.get` takes. Raises as `scan`."""
        return get_external(self._pinned(), key)

    @checked
    def get_many(self, keys: Sequence[Mapping[str, Any] | Any]) -> pa.Table:
        """The rows of those of some keys that there are, in the order of the keys, each once.

        Raises as `scan`.
        """
        return get_many_external(self._pinned(), keys)

    @checked
    def why(self, key: Mapping[str, Any] | Any, *, version: int | str | None = None) -> Why:
        """Every version of a key that lies there, in merge order, and what became of each.

        As `Table.why`; `file` says where a version lies. Raises as `scan`.
        """
        return why_external(self._pinned(version), key)

    @checked
    def changes(self, start: int | str, end: int | str | None = None) -> ExternalChanges:
        """What happened after version `start` up to `end`, the newest one without it.

        The rows of both are compared by key: '+I', '-D', and pairs of '-U' and '+U'. Raises
        `UnsupportedError` where the format has no versions, and as `scan`.
        """
        return ExternalChanges(*self._pinned_both(start, end))

    @abstractmethod
    def _pinned(self, version: int | str | None = None) -> PinnedExternal:
        """The table now, or at a version: one look."""

    @abstractmethod
    def _pinned_both(
        self, start: int | str, end: int | str | None
    ) -> tuple[PinnedExternal, PinnedExternal]:
        """The table at two versions, by one definition."""
