"""An external table, as users hold it."""

from __future__ import annotations

from typing import Any

from keytide.arguments import checked
from keytide.errors import NotFoundError
from keytide.external.creation import refresh_external
from keytide.external.pinned import PinnedExternal, pin_external
from keytide.format.schema import TableSchema
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.table import Table
from keytide.table.definition.external import (
    format_of,
    given_options,
    is_external,
    location_of,
    refuse_external,
)
from keytide.table.state.stored import PinnedTable

__all__ = ["ExternalTable"]


class ExternalTable(ForeignTable):
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

    def _pinned_both(
        self, start: int | str, end: int | str | None
    ) -> tuple[PinnedExternal, PinnedExternal]:
        entry = self._entry()
        return pin_external(entry, start), pin_external(entry, end)
