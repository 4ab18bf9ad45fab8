"""Registers the tables of a lake as views in a DuckDB connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import duckdb

from keytide.base.arguments import checked
from keytide.definition.checks import refuse_same_names
from keytide.duckdb.dataset import MadeRows, TableRows
from keytide.duckdb.plain import DEAD_ROWS, dead_rows, name, plain_query, split_for_duckdb, text
from keytide.errors import InvalidError
from keytide.lake.lake import Lake
from keytide.predicate.predicate import Predicate, conjunction
from keytide.read.fallback import FallbackScan
from keytide.read.plain_files import OtherRows, PlainSplit
from keytide.read.scan import Scan
from keytide.sources.federated_changes import tables_of
from keytide.sources.scan import ExternalScan

__all__ = ["register"]

_AnyScan: TypeAlias = Scan | ExternalScan | FallbackScan


@checked
def register(
    con: duckdb.DuckDBPyConnection,
    lake: Lake,
    tables: Sequence[str] | None = None,
    *,
    fresh: bool = False,
) -> list[str]:
    """Register tables of a lake as views `database.table`. Returns the names of the views.

    - `tables` are the tables to register. By default these are all tables of the lake, including
      external ones, and those of attachments with a format whose keys were given to `Lake.attach`.
    - `fresh` makes each query read the current state of the table. All rows are then streamed. A
      query that mentions a table twice can see two snapshots of it. The columns stay those at the
      time of the registration.

    By default, every query reads the state of the table when it was registered, until you register
    the lake again. Registering again also removes views of tables that no longer exist. DuckDB's
    own Parquet reader reads files that need no merge, without verifying checksums. A query reads
    only the columns that it needs, and its conditions skip files and rows before they are merged.

    The views of a database are in an in-memory database that is attached under its name, so nothing
    is stored in a DuckDB file. They exist only in this connection. A cursor of it must register
    them again.

    Raises `InvalidError` for columns that SQL cannot distinguish, and when the connection already
    uses such a name for something else. Raises `NotFoundError` for a table that does not exist, and
    what `scan` raises. A query raises DuckDB errors, which contain the message of errors in
    reading.
    """
    names = _names(lake) if tables is None else list(dict.fromkeys(tables))
    scans = {each: lake.table(each).scan() for each in names}
    for each, scan in scans.items():
        _check_names(each, scan)
    views = _Views(con, lake)
    for each, scan in scans.items():
        views.make(each, scan, fresh)
    if tables is None:
        views.drop_others(names)
    return names


def _names(lake: Lake) -> list[str]:
    found = lake.tables() if lake.exists else []
    for attached in lake.attached:
        known = tables_of(lake.catalog.attached[attached])
        found += [f"{attached}.{table}" for table in sorted(known.tables if known else ())]
    return found


def _check_names(table: str, scan: _AnyScan) -> None:
    try:
        refuse_same_names(scan.fields)
    except InvalidError as error:
        raise InvalidError(f"table {table}: {error}; exclude it with tables=[...]") from error


@dataclass(frozen=True)
class _Views:
    con: duckdb.DuckDBPyConnection
    lake: Lake

    def make(self, table: str, scan: _AnyScan, fresh: bool) -> None:
        """Create or replace the view of a table. Raises `InvalidError`."""
        split = None if fresh else _split(scan)
        look = partial(_look, self.lake, table) if fresh else lambda: scan
        try:
            view = self._place(table)
            if isinstance(scan, Scan) and split is not None:
                query = self._divided(table, scan, split)
            else:
                query = self._streamed(table, scan, look)
            self.con.execute(f"CREATE OR REPLACE VIEW {view} AS {query}")
            self.con.execute(f"COMMENT ON VIEW {view} IS {text(self._comment)}")
        except duckdb.Error as error:
            raise _refused(table, f"DuckDB says: {error}") from error

    def drop_others(self, names: Sequence[str]) -> None:
        """Remove the views of this lake, except some."""
        made = self.con.execute(
            "SELECT database_name, schema_name, view_name FROM duckdb_views() WHERE comment = ?",
            [self._comment],
        ).fetchall()
        for database, schema, view in made:
            if f"{database}.{view}" not in names:
                self.con.execute(f"DROP VIEW {name(database)}.{name(schema)}.{name(view)}")

    @property
    def _comment(self) -> str:
        return f"a table of {self.lake.uri}, by keytide"

    def _place(self, table: str) -> str:
        """The name of a table's view, in an in-memory database. Raises `InvalidError`."""
        database, _, view = table.partition(".")
        taken = self.con.execute(_TAKEN, [database, database]).fetchall()
        if taken:
            raise _refused(table, f"{database} is already {taken[0][0]} of this connection")
        self.con.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {name(database)} (READ_WRITE)")
        return f"{name(database)}.main.{name(view)}"

    def _streamed(self, table: str, scan: _AnyScan, look: Callable[[], _AnyScan]) -> str:
        """A query of all rows of the scan that `look` returns, through a dataset."""

        def narrowed(columns: Sequence[str], where: Predicate | None) -> _AnyScan:
            return _narrowed(look(), columns, where)

        rows = TableRows(table, scan.fields, narrowed)
        source = self._source(f"keytide {table}", rows)
        columns = ", ".join(name(field.name) for field in scan.fields)
        return f"SELECT {columns} FROM {source}"

    def _divided(self, table: str, scan: Scan, split: PlainSplit) -> str:
        """A query of plain files and, if there are any, of the other rows."""
        others = OtherRows.of(scan, split)
        streamed = self._streamed(table, scan, lambda: others)
        types = [row[1] for row in self.con.execute(f"DESCRIBE {streamed}").fetchall()]
        columns = list(zip(scan.fields, types, strict=True))
        parts = [streamed] if split.tasks else []
        for number, (shape, files) in enumerate(split.plain.items()):
            dead = ""
            if shape.has_dead_rows:
                rows = MadeRows(DEAD_ROWS, partial(dead_rows, scan.view, files))
                dead = self._source(f"keytide {table} dead {number}", rows)
            parts.append(plain_query(scan.view, shape, files, columns, dead))
        return " UNION ALL ".join(parts)

    def _source(self, source: str, rows: Any) -> str:
        self.con.register(source, rows)
        return f"temp.main.{name(source)}"


def _look(lake: Lake, table: str) -> _AnyScan:
    return lake.table(table).scan()


def _narrowed(scan: _AnyScan, columns: Sequence[str], where: Predicate | None) -> _AnyScan:
    terms = [term for term in (scan.predicate, where) if term is not None]
    return replace(scan, columns=tuple(columns), predicate=conjunction(terms))


def _split(scan: _AnyScan) -> PlainSplit | None:
    """The plain files of a scan and the others. None if all rows must be streamed."""
    # A condition that belongs to the table, on the age of rows, can only be applied by a scan.
    if not isinstance(scan, Scan) or scan.predicate is not None:
        return None
    split = split_for_duckdb(scan)
    return split if split.plain else None


def _refused(table: str, reason: str) -> InvalidError:
    return InvalidError(
        f"table {table} cannot become a view of this connection: {reason}. Exclude it with "
        "tables=[...], or use a connection that does not use this name"
    )


_TAKEN = """
SELECT 'a database' FROM duckdb_databases()
WHERE lower(database_name) = lower(?) AND (internal OR path IS NOT NULL)
UNION ALL SELECT 'a schema' FROM duckdb_schemas() WHERE lower(schema_name) = lower(?)
"""
