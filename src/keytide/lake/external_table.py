"""The `ExternalTable` class: a read-only table whose rows another engine writes."""

from __future__ import annotations

from typing import Any

from keytide.base.arguments import checked
from keytide.definition.external import (
    format_of,
    given_options,
    is_external,
    location_of,
    refuse_external,
)
from keytide.errors import NotFoundError
from keytide.format.schema import TableSchema
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.table import Table
from keytide.snapshot.pinned import PinnedTable
from keytide.sources.definition import refresh_external
from keytide.sources.pinned import PinnedExternal, pin_external

__all__ = ["ExternalTable"]


class ExternalTable(ForeignTable):
    """A table whose rows another engine writes, merged by primary, watermark and tombstone key.

    For each key, readers see the row with the largest watermark, or no row when it is a tombstone.
    The table is read-only. Each call reads the definition and the current state of the source once.
    Any method of `Table` that is missing here raises `UnsupportedError`. Safe to share between
    threads.
    """

    def __init__(self, definition: PinnedTable) -> None:
        """Wrap a definition. `Lake.table` and `Lake.create_external_table` call this."""
        self._definition = definition.live
        self._as_opened = definition.schema

    # -- properties --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self._definition.name

    @property
    def table_schema(self) -> TableSchema:
        """The latest definition: columns, keys, options.

        Raises `NotFoundError` after a DROP, even if another kind of table now has the name.
        """
        return self._entry().schema

    @property
    def options(self) -> dict[str, str]:
        """The options given when the table was created. Raises as `table_schema`."""
        return given_options(self.table_schema)

    @property
    def format(self) -> str:
        """The format of the source: `parquet`, `csv` and so on. Raises as `table_schema`."""
        return format_of(self.table_schema)

    @property
    def location(self) -> str:
        """The location of the rows, without secrets. Raises as `table_schema`."""
        return location_of(self.table_schema)

    def __repr__(self) -> str:
        schema = self._as_opened
        return f"ExternalTable({self.name!r}, {format_of(schema)!r}, {location_of(schema)!r})"

    @checked
    def refresh(self) -> bool:
        """Update the columns from the source. Returns whether they changed.

        A change creates a new version of the definition. Columns that were given when the table was
        defined do not change, and are only checked against the source.

        Raises `InvalidError` when a key column or a given column no longer exists, `ConflictError`
        when another refresh committed first, and as `scan`.
        """
        return refresh_external(self._entry())

    # -- unsupported methods -----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Refuse the methods of `Table` that an external table does not support."""
        if not name.startswith("_") and hasattr(Table, name):
            refuse_external(self._as_opened, self.name)
        raise AttributeError(f"ExternalTable has no {name!r}")

    def _entry(self) -> PinnedTable:
        entry = self._definition.pinned()
        if not is_external(entry.schema):
            raise NotFoundError(
                f"the external table {self.name} was dropped, and this is now the name of a "
                "table of the lake; open it with Lake.table"
            )
        return entry

    def _pinned(self, version: int | str | None = None) -> PinnedExternal:
        return pin_external(self._entry(), version)

    def _pinned_both(
        self, start: int | str, end: int | str | None
    ) -> tuple[PinnedExternal, PinnedExternal]:
        entry = self._entry()
        return pin_external(entry, start), pin_external(entry, end)
