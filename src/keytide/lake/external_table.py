"""An external table, as users hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from keytide import html
from keytide.arguments import checked
from keytide.errors import NotFoundError
from keytide.external import scan as core
from keytide.external.changes import ExternalChanges
from keytide.external.creation import refresh_external
from keytide.external.pinned import PinnedExternal, pin_external
from keytide.external.scan import get_external, get_many_external, scan_external
from keytide.external.why import why_external
from keytide.format.schema import TableSchema
from keytide.lake.table import Table
from keytide.options import TableOptions
from keytide.table.conditions.condition import Condition
from keytide.table.definition.external import (
    format_of,
    given_options,
    is_external,
    location_of,
    refuse_external,
)
from keytide.table.read.why import Why
from keytide.table.state.stored import PinnedTable

__all__ = ["ExternalChanges", "ExternalScan", "ExternalTable"]


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

        return pages_to_spark(self.pages(), spark)


class ExternalTable:
    """A table whose rows others keep, merged by its primary, watermark and tombstone key.

    Of the versions of a key that lie there readers see one row, or none where the freshest one is a
    tombstone. The rows are read-only here. Each call looks once at the definition and at what lies
    there. What else tables of the lake can do raises `UnsupportedError`. Safe to share between
    threads.
    """

    def __init__(self, definition: PinnedTable) -> None:
        """The table of a definition; `Lake.table` and `Lake.create_external_table` give it."""
        self._definition = definition.live
        self._as_opened = definition.schema

    # -- what it is --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self._definition.name

    @property
    def table_schema(self) -> TableSchema:
        """The newest definition: columns, keys, options.

        Raises `NotFoundError` after a DROP, also where another kind of table has the name by now.
        """
        return self._entry().schema

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema. Raises as `table_schema`."""
        return self.table_schema.arrow_schema()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns. Raises as `table_schema`."""
        return self.table_schema.primary_keys

    @property
    def options(self) -> dict[str, str]:
        """The options that its maker gave. Raises as `table_schema`."""
        return given_options(self.table_schema)

    @property
    def format(self) -> str:
        """What lies there: `parquet`, `csv` and so on. Raises as `table_schema`."""
        return format_of(self.table_schema)

    @property
    def location(self) -> str:
        """Where the rows lie, without secrets. Raises as `table_schema`."""
        return location_of(self.table_schema)

    def __repr__(self) -> str:
        schema = self._as_opened
        return f"ExternalTable({self.name!r}, {format_of(schema)!r}, {location_of(schema)!r})"

    def _repr_html_(self) -> str:
        schema = self.table_schema
        options = TableOptions.parse(schema.options)
        roles = {
            **dict.fromkeys(options.watermark_key, "watermark key"),
            **dict.fromkeys(options.tombstone_key, "tombstone key"),
            **dict.fromkeys(schema.primary_keys, "primary key"),
        }
        rows = [(f.name, f.type.sql(), roles.get(f.name, "")) for f in schema.fields]
        head = html.heading(self.name, f"{format_of(schema)} at {location_of(schema)}")
        return head + html.table(("column", "type", "role"), rows)

    # -- reading -----------------------------------------------------------------------------------

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        *,
        version: int | str | None = None,
    ) -> ExternalScan:
        """A lazy read of what lies there now or, where the format has them, of another `version`.

        `where` is a condition as in `Table.scan`. What it says of the primary key is asked before
        versions are merged, all else after it (rule R17 of docs/semantics.md).

        Raises `NotFoundError` for an unknown column or version and where nothing lies there,
        `InvalidError` for a condition that does not parse or fit, and for a definition whose
        columns are not there; `UnsupportedError`, `SetupError` and `DataError` as the format has
        it.
        """
        scan = scan_external(self._pinned(version), columns, where)
        return ExternalScan(scan.table, scan.columns, scan.predicate)

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
        entry = self._entry()
        return ExternalChanges(pin_external(entry, start), pin_external(entry, end))

    @checked
    def refresh(self) -> bool:
        """Take the columns anew of what lies there; returns whether they are others than before.

        That is a new version of the definition. Columns that were given when the table was defined
        stay, and are only held against what lies there. Raises `InvalidError` where a column of a
        key is gone, or a given one; `ConflictError` where another refresh came first, and as
        `scan`.
        """
        return refresh_external(self._entry())

    # -- what it does not do -----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Refuse what `Table` does and this does not."""
        if not name.startswith("_") and hasattr(Table, name):
            refuse_external(self._as_opened, self.name)
        raise AttributeError(f"ExternalTable has no {name!r}")

    def _entry(self) -> PinnedTable:
        entry = self._definition.pinned()
        if not is_external(entry.schema):
            raise NotFoundError(
                f"the external table {self.name} was dropped, and there is a table of the lake's "
                f"own by that name now; open it with Lake.table"
            )
        return entry

    def _pinned(self, version: int | str | None = None) -> PinnedExternal:
        return pin_external(self._entry(), version)
