"""Tables of a lake as views in somebody's connection of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import duckdb

from keytide.arguments import checked
from keytide.duckdb.dataset import MadeRows, TableRows
from keytide.duckdb.plain import DEAD_ROWS, dead_rows, name, plain_query, split_for_duckdb, text
from keytide.errors import InvalidError
from keytide.external.federated_changes import tables_of
from keytide.external.scan import ExternalScan
from keytide.lake.lake import Lake
from keytide.table.conditions.predicate import Predicate, conjunction
from keytide.table.definition.checks import refuse_same_names
from keytide.table.read.plain_files import OtherRows, PlainSplit
from keytide.table.read.scan import Scan

__all__ = ["register"]

_AnyScan: TypeAlias = Scan | ExternalScan


@checked
def register(
    con: duckdb.DuckDBPyConnection,
    lake: Lake,
    tables: Sequence[str] | None = None,
    *,
    fresh: bool = False,
) -> list[str]:
    """Make tables of a lake views `database.table` of a connection; the names of the views.

    All tables of the lake, external ones too, and those of what is attached with a format whose
    keys were given to `Lake.attach`; or the `tables` that are named. The views of a database are in
    one in memory that is attached under its name, so nothing of them is stored in a file of
    DuckDB's, and they are for this connection: cursors of it register again. A query reads the
    columns that it needs, and its conditions leave out files and rows before they are merged.

    Every query reads what the table was when it was registered, until the lake is registered again,
    which also takes away views of tables that are gone. Files that need no merge are read by
    DuckDB's own Parquet reader, which looks at no checksums. With `fresh` each query reads the
    table as it is by then, and everything comes through a stream; a query that names a table twice
    may see two snapshots of it, and columns stay those of the registration.

    Raises `InvalidError` for columns that SQL cannot tell apart, and where the connection has
    something else under such a name; `NotFoundError` for a table that is not there, and what
    `scan` raises. A query raises errors of DuckDB, with the text of what reading raises.
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
        raise InvalidError(f"table {table}: {error}; leave it out by tables=[...]") from error


@dataclass(frozen=True)
class _Views:
    con: duckdb.DuckDBPyConnection
    lake: Lake

    def make(self, table: str, scan: _AnyScan, fresh: bool) -> None:
        """Make the view of a table, or make it anew. Raises `InvalidError`."""
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
        """Take away the views that were made of this lake, but some."""
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
        """The name of a table's view, in a database in memory. Raises `InvalidError`."""
        database, _, view = table.partition(".")
        taken = self.con.execute(_TAKEN, [database, database]).fetchall()
        if taken:
            raise _refused(table, f"{database} is {taken[0][0]} of it already")
        self.con.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {name(database)} (READ_WRITE)")
        return f"{name(database)}.main.{name(view)}"

    def _streamed(self, table: str, scan: _AnyScan, look: Callable[[], _AnyScan]) -> str:
        """A query of all rows of the scan that a look gives, through a dataset."""

        def narrowed(columns: Sequence[str], where: Predicate | None) -> _AnyScan:
            return _narrowed(look(), columns, where)

        rows = TableRows(table, scan.fields, narrowed)
        source = self._source(f"keytide {table}", rows)
        columns = ", ".join(name(field.name) for field in scan.fields)
        return f"SELECT {columns} FROM {source}"

    def _divided(self, table: str, scan: Scan, split: PlainSplit) -> str:
        """A query of plain files, and of the other rows where there are some."""
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
    """The plain files of a scan and the others; None where all rows are to be streamed."""
    # A condition that a table has by itself, on the age of rows, is one that scans know to ask.
    if not isinstance(scan, Scan) or scan.predicate is not None:
        return None
    split = split_for_duckdb(scan)
    return split if split.plain else None


def _refused(table: str, reason: str) -> InvalidError:
    return InvalidError(
        f"table {table} cannot become a view of this connection: {reason}. Leave it out by "
        f"tables=[...], or take a connection that has nothing else under that name"
    )


_TAKEN = """
SELECT 'a database' FROM duckdb_databases()
WHERE lower(database_name) = lower(?) AND (internal OR path IS NOT NULL)
UNION ALL SELECT 'a schema' FROM duckdb_schemas() WHERE lower(schema_name) = lower(?)
"""
