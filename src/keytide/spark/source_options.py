"""The parsed options of the data source, and the reads and writes that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.catalog import open_stored
from keytide.catalogs.warehouse import cache_folder
from keytide.changes.change_scan import Changes, changes_of
from keytide.commit.change import Author
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.options import keys
from keytide.predicate.condition import predicate_of
from keytide.read.key_index_rebuild import settled_state
from keytide.read.requests import narrowed_scan, scan_table, which_rows, whole_scan
from keytide.read.scan import Scan
from keytide.snapshot.state import expired_error
from keytide.snapshot.stored_table import StoredTable
from keytide.spark.option_rules import (
    BETWEEN_TIMES,
    COLUMNS_READ,
    COMMIT_IDENTIFIER,
    COMMIT_USER,
    NAME_A_SNAPSHOT,
    NEW_SCHEMA,
    SCAN_MODE,
    STREAM,
    OptionValues,
    Use,
    end_of_changes,
    mode_of,
    snapshot_named,
    start_of_changes,
)
from keytide.store import CacheFolder

_CACHE_NAMES = "cache", "cache-bytes"

_OF_A_CATALOG = {"owner", "provider"}
"""Options that Spark adds for CREATE TABLE."""

_VIEW_INSTEAD = (
    "CREATE TEMPORARY VIEW name USING keytide OPTIONS (path '...'), or create views of all "
    "tables of a lake with kt.spark.register_lake(spark, lake)"
)


@dataclass(frozen=True)
class StateIds:
    """The latest schema and snapshot at one moment. None means that there was none."""

    schema_id: int
    snapshot_id: int | None


@dataclass(frozen=True)
class SourceOptions:
    """The options of one load, save or stream, parsed."""

    path: str
    given: OptionValues
    is_stream: bool = False
    """Whether Spark marked this as a stream. It does so only if the format was registered."""
    cache: CacheFolder | None = None
    store: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    state: StateIds | None = None
    """The latest snapshot when a DataFrame was created, None before that."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options.

        Raises `InvalidError` for a missing path or an invalid option, and `UnsupportedError` for a
        table of Spark's catalog.
        """
        rest = {key.lower(): value for key, value in options.items()}
        if rest.keys() >= _OF_A_CATALOG:
            raise UnsupportedError(
                "CREATE TABLE ... USING keytide is not supported: Spark's catalog does not pass "
                f"the options of a table, not even its path, to reads and writes; {_VIEW_INSTEAD}"
            )
        path = rest.get("path")
        if path is None:
            raise InvalidError(
                "format 'keytide' requires the path of a table: load(path), save(path) or "
                "start(path). Tables created with CREATE TABLE or saveAsTable have none, because "
                f"Spark's catalog does not pass options on: drop the table, and {_VIEW_INSTEAD}"
            )
        is_stream = rest.pop(STREAM, None) is not None
        given, store = OptionValues.parse(path, rest)
        cache = cache_folder(given.value("cache"), given.value("cache-bytes"), _CACHE_NAMES)
        return cls(path, given, is_stream, cache, tuple(store.items()))

    def table(self) -> StoredTable:
        """Open the table, in its branch. Raises `NotFoundError` when there is none at the path."""
        return open_stored(self.path, dict(self.store), self.given.value(keys.BRANCH), self.cache)

    def table_for(self, *uses: Use) -> StoredTable:
        """Open the table for some uses. Raises `InvalidError` for options that fit none of them."""
        table = self.table()
        self.given.check(table.name, *uses)
        return table

    # -- rows of a snapshot ----------------------------------------------------------------------

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """The scan that the options describe, with other columns if given.

        Raises as `Table.scan`.
        """
        return self._scan(self.table_for(Use.SCAN), columns)

    def columns_of_rows(self) -> Scan:
        """A scan that only determines columns. A stream of new rows has the same columns."""
        return self._scan(self.table_for(Use.SCAN, Use.STREAM), None)

    def _scan(self, table: StoredTable, columns: Sequence[str] | None) -> Scan:
        wanted = self.columns if columns is None else columns
        where, skips = self.given.value("where"), bool(self.given.value("skip-upsert"))
        skips_delete = bool(self.given.value("skip-upsert-delete"))
        if self.state is None or self.travels:
            return scan_table(
                table, wanted, where, skip_upsert=skips, skip_upsert_delete=skips_delete,
                **snapshot_named(self.given, table),
            )  # fmt: skip
        schema, seen_id = table.metadata.schema(self.state.schema_id), self.state.snapshot_id
        try:
            snapshot = None if seen_id is None else table.metadata.snapshot(seen_id)
        except NotFoundError as error:
            raise expired_error(table.name, [seen_id or 0], str(error)) from error
        state = settled_state(table.state(schema, snapshot))
        predicate = None if where is None else predicate_of(where, schema.fields, table.name)
        which = which_rows(schema, table.name, skips, skips_delete)
        return narrowed_scan(replace(whole_scan(state), which=which), wanted, predicate)

    def fixed_to(self, scan: Scan) -> SourceOptions:
        """The same options for later reads, fixed to the schema and the snapshot of a scan."""
        snapshot = scan.snapshot
        seen = StateIds(scan.view.schema.id, None if snapshot is None else snapshot.id)
        return replace(self, state=seen)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The selected columns, None for all."""
        columns: tuple[str, ...] | None = self.given.value(COLUMNS_READ)
        return columns

    @property
    def travels(self) -> bool:
        """Whether the options name the snapshot to read."""
        return any(name in self.given for name in NAME_A_SNAPSHOT)

    # -- changes ---------------------------------------------------------------------------------

    @property
    def tells_kinds(self) -> bool:
        """Whether rows have the column with their kind."""
        asked = self.given.value("readChangeFeed")
        if asked is not None:
            return bool(asked)
        between = keys.INCREMENTAL_BETWEEN in self.given or BETWEEN_TIMES in self.given
        return self.is_stream or between or self.given.value(SCAN_MODE) == "incremental"

    def columns_of_changes(self) -> Scan:
        """A scan that has the columns of changes. Raises `NotFoundError` as a scan does."""
        uses = (Use.STREAM,) if self.is_stream else (Use.CHANGES, Use.STREAM)
        return scan_table(self.table_for(*uses), self.columns)

    def changes(self) -> Changes:
        """The changes between two snapshots. Raises as `Table.changes`."""
        table = self.table_for(Use.CHANGES).pinned()
        start = start_of_changes(self.given, table)
        if start is None or start.is_full:
            raise InvalidError(
                f"table {table.name}: say where changes start: 'startingVersion', "
                f"'startingTimestamp', 'start' or '{keys.INCREMENTAL_BETWEEN}'"
            )
        schema, end = None, end_of_changes(self.given, table)
        if self.state is not None:
            schema = table.metadata.schema(self.state.schema_id)
            end = (self.state.snapshot_id or 0) if end is None else end
        return changes_of(
            table, start.after_id, end, mode_of(self.given, table), schema, self.columns
        )

    # -- writes ----------------------------------------------------------------------------------

    @property
    def author(self) -> Author | None:
        """The author that makes a write idempotent.

        Raises `InvalidError` if only one half is given.
        """
        return Author.of(self.given.value(COMMIT_USER), self.given.value(COMMIT_IDENTIFIER))

    def table_to_write(self, use: Use) -> StoredTable:
        """Open the table for a write.

        Raises as `table_for`, and for an option to replace the schema.
        """
        table = self.table_for(use)
        if self.given.value(NEW_SCHEMA):
            raise UnsupportedError(
                f"table {table.name}: '{NEW_SCHEMA}' would replace the columns, which a write "
                "does not support; alter the table with lake.sql('ALTER TABLE ...'), or drop it "
                "and create it again"
            )
        return table
