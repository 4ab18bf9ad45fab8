"""Tables as views in a DuckDB connection of the caller.

DuckDB's own Parquet reader reads files that need no merge. All other rows come through a dataset,
to which DuckDB pushes the columns and conditions of a query. DuckDB does not evaluate conditions
that it pushes down again, so each of them is applied with DuckDB's semantics.

>>> con = duckdb.connect()                                              # doctest: +SKIP
>>> kt.duckdb.register(con, lake)                                       # doctest: +SKIP
>>> con.sql("SELECT status, count(*) FROM shop.orders GROUP BY ALL")    # doctest: +SKIP
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import and_
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RowKind
from keytide.definition.checks import refuse_same_names
from keytide.errors import InvalidError, KeytideError
from keytide.format.data_file import VALUE_KIND
from keytide.format.index_files import dead_positions
from keytide.lake.lake import Lake
from keytide.predicate.arrow_expression import columns_of_arrow, terms_of_arrow
from keytide.predicate.condition import predicate_of
from keytide.predicate.predicate import Predicate, columns_of, conjunction
from keytide.read.fallback import FallbackScan
from keytide.read.plain_files import (
    OtherRows,
    PlainShape,
    PlainSplit,
    has_floats,
    local_file,
    split_plain,
    stored_fields,
)
from keytide.read.scan import RowSource, Scan
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView
from keytide.sources.federated import tables_of
from keytide.sources.scan import ExternalScan
from keytide.types import AtomicType, Field

__all__ = ["register"]

# -- SQL that reads plain files with DuckDB's own Parquet reader -----------------------------------


DEAD_ROWS = pa.schema({"file": pa.uint64(), "row": pa.int64()})
"""The columns that identify a deleted row: the number of the file, and the position in it."""

_PLACES = ("file_index", "file_row_number")
_PATTERNS = frozenset("*?[]\\")


def split_for_duckdb(scan: Scan) -> PlainSplit:
    """The files of a scan for DuckDB's own reader, and all others. Raises as `Scan.tasks`."""
    view = scan.view

    def takes(file: PlannedFile) -> bool:
        path = local_file(view, file)
        names = {name.lower() for name in view.schemas[file.meta.schema_id].names}
        hides_places = file.dead_rows is not None and bool(names & {*_PLACES})
        return path is not None and not hides_places and not _PATTERNS & {*str(path)}

    return split_plain(scan, _reads, takes)


def _reads(type_: AtomicType) -> bool:
    """Whether DuckDB's own reader reads a stored type as Keytide does."""
    # Nanoseconds are stored as INT96, which DuckDB reads as microseconds.
    return not (type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and (type_.precision or 0) > 6)


def plain_query(
    view: TableView,
    shape: PlainShape,
    files: Sequence[PlannedFile],
    columns: Sequence[tuple[Field, str]],
    dead: str,
) -> str:
    """A query of some columns, each with its DuckDB type, in files of one shape.

    `dead` is the name of the relation with the deleted rows, see `DEAD_ROWS`.
    """
    stored = stored_fields(view, shape, [field for field, _ in columns])
    shown = [
        f"CAST({_value(old)} AS {type_}) AS {name(field.name)}"
        for old, (field, type_) in zip(stored, columns, strict=True)
    ]
    paths = ", ".join(text(str(local_file(view, file))) for file in files)
    query = (
        f"SELECT {', '.join(shown)} FROM read_parquet([{paths}], hive_partitioning = false, "
        f"union_by_name = false) AS stored"
    )
    if shape.has_dead_rows:
        places = zip(_PLACES, DEAD_ROWS.names, strict=True)
        same = " AND ".join(f"stored.{place} = dead.{other}" for place, other in places)
        query += f" ANTI JOIN {dead} AS dead ON {same}"
    if shape.has_retracts:
        kinds = f"{RowKind.INSERT:d}, {RowKind.UPDATE_AFTER:d}"
        query += f" WHERE stored.{name(VALUE_KIND)} IN ({kinds})"
    return query


def dead_rows(view: TableView, files: Sequence[PlannedFile]) -> Iterator[pa.RecordBatch]:
    """The deleted rows of files, in batches with the columns of `DEAD_ROWS`. Raises `DataError`."""
    for number, file in enumerate(files):
        if file.dead_rows is not None:
            rows = dead_positions(view.store, file.dead_rows)
            numbers = np.full(len(rows), number, np.uint64)
            yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(rows)], schema=DEAD_ROWS)


def _value(old: Field | None) -> str:
    """The expression for a stored column in a query."""
    if old is None:
        return "NULL"
    column = f"stored.{name(old.name)}"
    if not has_floats(old.type):
        return column
    # DuckDB also evaluates conditions on row-group bounds. NaN is not included in Parquet's bounds,
    # but DuckDB treats it as the largest number, so it would skip row groups that contain NaN. It
    # infers no bounds for a CASE.
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE {column} END"


def name(value: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + value.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"


# -- pushdown of conditions to a scan and to Arrow -------------------------------------------------


_LOG = logging.getLogger("keytide.plan")


@dataclass(frozen=True)
class FilterPushdown:
    """The conditions of a query on a table, all of which must be true."""

    pushed: Predicate | None = None
    """The condition that a scan applies, also to rows."""
    residual: pc.Expression | None = None
    """The condition that remains to be applied to its rows."""

    @classmethod
    def of(
        cls, filter: pc.Expression | None, fields: Sequence[Field], table: str
    ) -> FilterPushdown:
        """The conditions in an Arrow expression over some columns."""
        by_name = {field.name: field for field in fields}
        pushed, left = [], []
        for term in [] if filter is None else terms_of_arrow(filter):
            predicate = _read(term, by_name, table)
            if predicate is None:
                left.append(term)
            else:
                pushed.append(predicate)
        if left:
            _LOG.debug("%s: only used on rows, for DuckDB: %s", table, left)
        return cls(conjunction(pushed), reduce(and_, left) if left else None)


def _read(term: pc.Expression, fields: Mapping[str, Field], table: str) -> Predicate | None:
    try:
        predicate = predicate_of(term, tuple(fields.values()), table)
    except KeytideError:
        return None
    # DuckDB respects trailing blanks, but a scan ignores them in a CHAR.
    is_padded = any(fields[name].type.root == "CHAR" for name in columns_of(predicate))
    return None if is_padded else predicate


# -- Arrow datasets --------------------------------------------------------------------------------


ScanFactory: TypeAlias = "Callable[[Sequence[str], Predicate | None], RowSource]"
"""Creates the scan of some columns and of the rows that match a predicate."""


class ComputedRows(ds.Dataset):
    """Rows that are computed for each query."""

    # The base class is not initialized. It only tells DuckDB which methods it can call.
    def __init__(self, schema: pa.Schema, compute: Callable[[], Iterable[pa.RecordBatch]]) -> None:
        self._schema = schema
        self._compute = compute

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **hints: Any,
    ) -> QueryRows:
        """The rows of a query. Hints about the batch size are ignored."""
        del hints
        return QueryRows(self._compute, _columns_of(self._schema, columns), filter)


class TableRows(ds.Dataset):
    """The rows of a table, restricted to what a query needs before they are read."""

    def __init__(self, table: str, fields: Sequence[Field], narrowed: ScanFactory) -> None:
        self._table = table
        self._fields = fields
        self._narrowed = narrowed

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable."""
        return pa.schema([pa.field(f.name, f.type.to_arrow()) for f in self._fields])

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **hints: Any,
    ) -> QueryRows:
        """See `ComputedRows.scanner`. Raises as planning a scan, and for an altered table."""
        del hints
        asked = FilterPushdown.of(filter, self._fields, self._table)
        shown = _columns_of(self.schema, columns)
        left = () if asked.residual is None else columns_of_arrow(asked.residual)
        read = [name for name in self.schema.names if name in {*shown.names, *left}]
        rows = self._narrowed(read or self.schema.names[:1], asked.pushed)

        for column in rows.schema:
            known = self.schema.field(column.name).type
            if column.type != known:
                raise InvalidError(
                    f"table {self._table}: column {column.name} is now {column.type}, but was "
                    f"{known} when it was registered; register the lake again"
                )
        return QueryRows(rows.to_batches, shown, asked.residual)


@dataclass(frozen=True)
class QueryRows:
    """The rows of a query, to which the condition `residual` must still be applied."""

    compute: Callable[[], Iterable[pa.RecordBatch]]
    schema: pa.Schema
    residual: pc.Expression | None

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, read lazily."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.compute():
            kept = batch if self.residual is None else batch.filter(self.residual)
            columns = [kept.column(name) for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _columns_of(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


# -- registration of views -------------------------------------------------------------------------


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
    names = list(dict.fromkeys(tables or ()))
    if tables is None:
        names += lake.tables() if lake.exists else []
        for attached in lake.attached:
            known = tables_of(lake.catalog.attached[attached])
            names += [f"{attached}.{table}" for table in sorted(known.tables if known else ())]
    scans = {each: lake.table(each).scan() for each in names}
    for each, scan in scans.items():
        _check_names(each, scan)
    views = _Views(con, lake)
    for each, scan in scans.items():
        views.make(each, scan, fresh)
    if tables is None:
        views.drop_others(names)
    return names


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
        split = None
        # A condition that belongs to the table, on the age of rows, can only be applied by a scan.
        if not fresh and isinstance(scan, Scan) and scan.predicate is None:
            split = split_for_duckdb(scan)
        lake = self.lake  # a view that held the connection would keep it open
        look = (lambda: lake.table(table).scan()) if fresh else (lambda: scan)
        try:
            # In an in-memory database.
            database, _, view_name = table.partition(".")
            taken = self.con.execute(_NAMES_IN_USE, [database, database]).fetchall()
            if taken:
                raise _refused(table, f"{database} is already {taken[0][0]} of this connection")
            self.con.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {name(database)} (READ_WRITE)")
            view = f"{name(database)}.main.{name(view_name)}"
            if isinstance(scan, Scan) and split is not None and split.plain:
                query = self._union_query(table, scan, split)
            else:
                query = self._dataset_query(table, scan, look)
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

    def _dataset_query(self, table: str, scan: _AnyScan, look: Callable[[], _AnyScan]) -> str:
        """A query of all rows of the scan that `look` returns, through a dataset."""

        def narrowed(columns: Sequence[str], where: Predicate | None) -> _AnyScan:
            scan = look()
            terms = [term for term in (scan.predicate, where) if term is not None]
            return replace(scan, columns=tuple(columns), predicate=conjunction(terms))

        rows = TableRows(table, scan.fields, narrowed)
        source = self._source(f"keytide {table}", rows)
        columns = ", ".join(name(field.name) for field in scan.fields)
        return f"SELECT {columns} FROM {source}"

    def _union_query(self, table: str, scan: Scan, split: PlainSplit) -> str:
        """A query of plain files and, if there are any, of the other rows."""
        others = OtherRows.of(scan, split)
        streamed = self._dataset_query(table, scan, lambda: others)
        types = [row[1] for row in self.con.execute(f"DESCRIBE {streamed}").fetchall()]
        columns = list(zip(scan.fields, types, strict=True))
        parts = [streamed] if split.tasks else []
        for number, (shape, files) in enumerate(split.plain.items()):
            dead = ""
            if shape.has_dead_rows:
                rows = ComputedRows(DEAD_ROWS, partial(dead_rows, scan.view, files))
                dead = self._source(f"keytide {table} dead {number}", rows)
            parts.append(plain_query(scan.view, shape, files, columns, dead))
        return " UNION ALL ".join(parts)

    def _source(self, source: str, rows: Any) -> str:
        self.con.register(source, rows)
        return f"temp.main.{name(source)}"


def _refused(table: str, reason: str) -> InvalidError:
    return InvalidError(
        f"table {table} cannot become a view of this connection: {reason}. Exclude it with "
        "tables=[...], or use a connection that does not use this name"
    )


_NAMES_IN_USE = """
SELECT 'a database' FROM duckdb_databases()
WHERE lower(database_name) = lower(?) AND (internal OR path IS NOT NULL)
UNION ALL SELECT 'a schema' FROM duckdb_schemas() WHERE lower(schema_name) = lower(?)
"""
