"""The classes `ExternalTable` and `FederatedTable`: tables whose rows another engine stores.

Another engine writes the rows of an external table, which is read-only. To a federated table,
Keytide appends versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass
from keytide.definition.kind import is_external, refuse_external
from keytide.dml.attachments import AttachedCatalog
from keytide.dml.engine import Changed
from keytide.errors import NotFoundError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.placement import change_rows, engine_of
from keytide.lake.table import Table, is_spark_dataframe
from keytide.lake.table_methods import MergeBuilder
from keytide.predicate.condition import Condition
from keytide.snapshot.stored_table import PinnedTable
from keytide.sources.external_definitions import refresh_external
from keytide.sources.federated import FederatedTables
from keytide.sources.source import format_of, given_options, location_of
from keytide.sources.source_state import PinnedExternal, pin_external
from keytide.write.input_rows import to_arrow_table

__all__ = ["AppendResult", "ExternalTable", "FederatedTable"]

# -- the `ExternalTable` class ---------------------------------------------------------------------


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


# -- the `FederatedTable` class --------------------------------------------------------------------


if TYPE_CHECKING:
    from keytide.dml.row_statements import FederatedCallTarget


@dataclass(frozen=True)
class AppendResult:
    """What a write appended: the number of rows, and the engine's own version of the commit.

    `version` is None when the engine has no versions, or when there was nothing to append.
    """

    rows: int
    version: str | None


class FederatedTable(ForeignTable):
    """A table attached with a format: reads merge its rows, and changes append new versions.

    The columns are those that the table has at the time of the call. Reads, deletes and updates
    look up the table once. `write`, and `merge` with in-memory rows, look up its columns before
    that. Existing rows are never changed or deleted. Any method of `Table` that is missing here
    raises `UnsupportedError`. Safe to share between threads.
    """

    def __init__(
        self, catalog: AttachedCatalog, spark: Any, name: str, tables: FederatedTables
    ) -> None:
        """Wrap a table of an attached source. `Lake.table` calls this."""
        self._catalog, self._spark = catalog, spark
        self._name, self._tables = name, tables
        self._inner = name.partition(".")[2]  # without the name of the attachment

    # -- properties --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `attached.table`."""
        return self._name

    @property
    def table_schema(self) -> TableSchema:
        """Columns, keys and options. Raises `NotFoundError` when the table no longer exists."""
        return self._pinned().view.schema

    @property
    def format(self) -> str:
        """The format of the source: `delta`, `iceberg`, `sqlite` or `postgresql`."""
        return self._tables.format

    @property
    def location(self) -> str:
        """The location of the rows, without secrets."""
        return self._tables.place(self._inner).location

    def __repr__(self) -> str:
        return f"FederatedTable({self.name!r}, {self.format!r}, {self.location!r})"

    # -- writing -----------------------------------------------------------------------------------

    @checked
    def write(self, data: Any) -> AppendResult:
        """Append rows unchanged, each as a version of its key, in one commit of the table's engine.

        `data` is what `Table.write` accepts, without a column `_row_kind`: a delete is a row whose
        tombstone key marks it. It must have all columns of the table, and is held in memory. The
        rows of a Spark DataFrame are collected to this process.

        Raises:

        - `InvalidError` for rows that do not fit, `UnsupportedError` naming what cannot be written,
          and `NotFoundError` when there is no table. Nothing is written in these cases.
        - `ConflictError` after several attempts that lost a race with other writers, with nothing
          committed.
        - `DataError` when the table does not respond. The rows may or may not have been written.
        """
        schema = self.table_schema
        given = data.toArrow() if is_spark_dataframe(data) else data
        rows = to_arrow_table(given, schema, self.name)
        if not rows.num_rows:
            return AppendResult(0, None)
        version = self._tables.appender(self._inner).append(rows, schema.primary_keys)
        return AppendResult(rows.num_rows, version)

    @checked
    def delete(self, where: Condition | None = None) -> Changed:
        """Append tombstones for the rows that match a condition, or for all rows. See
        `Table.delete`.

        Raises as `write`, `InvalidError` for a condition that does not parse or cannot run, and
        `UnsupportedError` when the table has no tombstone key.
        """
        return change_rows(self._form(), None, where, "snapshot", self._spark)

    @checked
    def update(self, set: Mapping[str, Any], where: Condition | None = None) -> Changed:
        """Append new versions of the rows that match a condition, or of all rows. See
        `Table.update`.

        Raises as `delete`, and `InvalidError` for values that do not fit.
        """
        return change_rows(self._form(), set, where, "snapshot", self._spark)

    @checked
    def merge(self, source: Any, on: str) -> MergeBuilder:
        """Start a merge of rows into this table, which `execute` appends. See `Table.merge`.

        Raises `InvalidError` as `Table.merge` does. `execute` raises as `update`.
        """
        from keytide.sql.python_calls import WhenCall, merge_source, source_of_rows

        spark = source.sparkSession if is_spark_dataframe(source) else self._spark
        engine = engine_of(spark, self._catalog.allows_external_files)
        given = source
        if not isinstance(source, str):
            schema_of = engine.schema if is_spark_dataframe(source) else None
            rows = source.stored if isinstance(source, Table | ForeignTable) else source
            given = source_of_rows(rows, self._form(), schema_of)

        def carry_out(whens: Sequence[WhenCall]) -> Changed:
            return merge_source(self._form(), engine, given, on, whens, "snapshot")

        return MergeBuilder(carry_out)

    # -- unsupported methods -----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Refuse the methods of `Table` that a federated table does not support."""
        if not name.startswith("_") and hasattr(Table, name):
            raise UnsupportedError(
                f"table {self.name} is a federated table and has no {name!r}; supported are "
                "scan, get, get_many, why, changes, write, delete, update and merge"
            )
        raise AttributeError(f"FederatedTable has no {name!r}")

    def _form(self) -> FederatedCallTarget:
        from keytide.dml.row_statements import FederatedCallTarget

        return FederatedCallTarget(self._catalog, self.name, lambda: self.table_schema)

    def _pinned(self, version: int | str | None = None) -> PinnedExternal:
        return self._tables.pinned(self._inner, version).table

    def _pinned_both(
        self, start: int | str, end: int | str | None
    ) -> tuple[PinnedExternal, PinnedExternal]:
        return self._pinned(start), self._pinned(end)
