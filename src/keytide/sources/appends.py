"""Appends rows to a table of another engine, in one commit of that engine.

Invalid rows, and tables that this release cannot append to, are refused before anything is written:
a missing or unknown column, a value that does not have its column's type, or a NULL in a NOT NULL
or key column. An append depends on nothing but the columns. So if it loses a race with another
writer, it is retried, with the columns of that time.

Appends rows to a SQLite or PostgreSQL table, by one INSERT in its own transaction.

Appends rows to a Delta table, in one commit of `deltalake`.

Before it writes, the library refuses features that it cannot write and rows that violate a
constraint. It handles column mapping and generated columns.

Appends rows to an Iceberg table in a catalog, in one commit of `pyiceberg`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.base.process import library
from keytide.dml.database_changes import Insertion
from keytide.dml.fragments import Spool
from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    SetupError,
    UnsupportedError,
)
from keytide.sources.database import DatabaseSource, open_source
from keytide.sources.delta import delta_columns, delta_errors, open_delta
from keytide.sources.iceberg_catalog import IcebergPlace, iceberg_place
from keytide.sources.source import Place
from keytide.store import Store, store_of_file

# -- appends rows to a table of another engine, in one commit of that engine -----------------------


T = TypeVar("T")
Rows: TypeAlias = pa.Table | Spool
"""Rows with one schema, in memory or on disk, that can be read repeatedly."""

_TRIES = 5


class Appender(Protocol):
    """A table to which rows are appended."""

    def append(self, rows: Rows, key: Sequence[str]) -> str | None:
        """Append rows atomically in one commit. Returns the name of the new version, if any.

        There is at least one row. `rows` have all columns of the table, in any order, and no NULL
        in `key`. Raises:

        - `InvalidError` for other rows, `UnsupportedError` naming what this release cannot write,
          and `NotFoundError` when there is no table. Nothing is written in these cases.
        - `ConflictError` after several attempts that lost a race with other writers. Nothing is
          committed, but files of these attempts may remain until the table's own cleanup.
        - `DataError` when the table does not respond. The rows may or may not have been written.
        """
        ...


@dataclass(frozen=True)
class ConformedRows:
    """Rows with the columns, order and types of a schema."""

    schema: pa.Schema
    parts: Callable[[], Iterator[pa.Table]]
    """Returns all rows. Can be called repeatedly."""

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, with few of them in memory."""
        batches = (batch for part in self.parts() for batch in part.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def conform(rows: Rows, schema: pa.Schema, key: Sequence[str], owner: str) -> ConformedRows:
    """The rows converted to a schema.

    Raises `InvalidError`, naming the column that does not fit, in whichever row it is.
    """
    if isinstance(rows, pa.Table):
        held = _fitted(rows, schema, key, owner)
        return ConformedRows(schema, lambda: iter([held]))
    spool = rows
    conformed = ConformedRows(
        schema, lambda: (_fitted(part, schema, key, owner) for part in spool.tables())
    )
    for _ in conformed.parts():  # all rows are checked before anything is written
        pass
    return conformed


def _fitted(rows: pa.Table, schema: pa.Schema, key: Sequence[str], owner: str) -> pa.Table:
    given = rows.schema.names
    wanted = schema.names
    twice = sorted({name for name in given if given.count(name) > 1})
    unknown = [name for name in (*given, *key) if name not in wanted]
    missing = [name for name in wanted if name not in given]
    for names, what in (
        (twice, "come twice"),
        (unknown, "do not exist in the table"),
        (missing, "are missing"),
    ):
        if names:
            raise InvalidError(
                f"{owner}: columns {', '.join(map(repr, names))} {what}; expected exactly "
                f"{', '.join(wanted)}, because each row is appended completely"
            )
    columns = []
    for field in schema:
        values = rows.column(field.name)
        if not field.nullable:
            _refuse_null(values, field.name, owner, "is NOT NULL there")
        try:
            columns.append(values.cast(field.type))
        except pa.ArrowException as error:
            raise InvalidError(
                f"{owner}: column {field.name!r} is {field.type}, but the rows have {values.type} "
                f"values that do not fit: {error}; cast them first"
            ) from error
    for name in key:
        _refuse_null(columns[schema.names.index(name)], name, owner, "is in the primary key")
    return pa.table(columns, schema=schema)


def again_after_conflicts(attempt: Callable[[], T]) -> T:
    """The result of an attempt, retried several times after conflicts."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except ConflictError:  # noqa: PERF203  # there are few tries
            continue
    return attempt()


def _refuse_null(values: pa.ChunkedArray, name: str, owner: str, why: str) -> None:
    if values.null_count:
        place = pc.index(pc.is_null(values), True).as_py()
        raise InvalidError(
            f"{owner}: column {name!r} {why}, but {values.null_count} rows are NULL, the first "
            f"is row {place}; set a value in every row"
        )


# -- appends rows to a SQLite or PostgreSQL table --------------------------------------------------


def open_database_appender(place: Place) -> DatabaseAppender:
    """A database table, without connecting yet. Raises as `open_source`."""
    return DatabaseAppender(open_source(place))


@dataclass(frozen=True)
class DatabaseAppender:
    """A database table. See `Appender`."""

    source: DatabaseSource

    def append(self, rows: Rows, key: Sequence[str]) -> None:
        """See `Appender`. A duplicate unique key raises `InvalidError`.

        There is one attempt, because the database itself has already waited for others.
        """
        database, location = self.source.database, self.source.location
        with database.session(location) as session:
            table = database.find(session, self.source.table)
        if table is None:
            raise NotFoundError(f"{location} does not exist")
        schema = pa.schema([pa.field(c.name, c.type, c.nullable) for c in table.columns])
        fit = conform(rows, schema, key, str(table))
        insertion = Insertion(database, table, schema.names, None)
        try:
            for batch in fit.reader():
                insertion.store_rows(batch)
            insertion.finish()
        finally:
            insertion.abort()


# -- appends rows to a Delta table, in one commit of `deltalake` -----------------------------------


def open_delta_appender(place: Place) -> DeltaAppender:
    """The Delta table in a folder. Nothing is read yet."""
    return DeltaAppender(store_of_file(f"{place.location.rstrip('/')}/x", place.near)[0].uncached())


@dataclass(frozen=True)
class DeltaAppender:
    """A Delta table. See `Appender`."""

    store: Store

    def append(self, rows: Rows, key: Sequence[str]) -> str:
        """See `Appender`. Returns the version."""
        return again_after_conflicts(lambda: self._appended(rows, key))

    def _appended(self, rows: Rows, key: Sequence[str]) -> str:
        owner = f"Delta table {self.store.uri}"
        with delta_errors(self.store), _append_errors(owner):
            table = open_delta(self.store)
            columns = delta_columns(table.schema().to_json(), owner)
            schema = pa.schema([pa.field(c.name, c.type, c.stored.nullable) for c in columns])
            fit = conform(rows, schema, key, owner)
            # Partition values that readers would interpret as NULL.
            for name in table.metadata().partition_columns:
                parts = fit.parts() if pa.types.is_string(schema.field(name).type) else ()
                if any(pc.any(pc.equal(part.column(name), "")).as_py() for part in parts):
                    raise InvalidError(
                        f"{owner} is partitioned by column {name!r}, in which Delta treats the "
                        "empty string as NULL; use NULL, or another string"
                    )
            write: Any = library("deltalake", "delta", owner).write_deltalake
            write(table, fit.reader(), mode="append")
            return str(table.version())


@contextmanager
def _append_errors(owner: str) -> Iterator[None]:
    """Distinguish errors caused by the rows, by the table, and by other writers."""
    try:
        yield
    except KeytideError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if re.search("failed validation|invariant|constraint", text, re.IGNORECASE):
            raise InvalidError(
                f"{owner}: rows violate a constraint of the table, and nothing was written: {text}"
            ) from None
        if "Unsupported table features" in text:
            raise UnsupportedError(
                f"{owner}: deltalake cannot write a table with these features, and nothing was "
                f"written: {text}; append with the engine that created the table"
            ) from None
        if type(error).__name__ != "CommitFailedError":
            raise
        if _LOST.search(text):
            raise ConflictError(f"{owner}: another writer committed first: {text}") from None
        raise DataError(
            f"{owner}: it is unknown whether the rows were written: read the table before you "
            f"repeat the write ({text})"
        ) from None


_LOST = re.compile(
    "(metadata|protocol) changed|concurrent|conflict|attempts|already exists", re.IGNORECASE
)
"""The library's messages if it is certain that nothing was committed."""


# -- appends rows to an Iceberg table in a catalog, in one commit of `pyiceberg` -------------------


_VERSION_MAX = 2
_YEARS = range(1, 10_000)


def open_iceberg_appender(place: Place) -> IcebergAppender:
    """The Iceberg table with a name in a catalog. Nothing is read yet.

    Raises `UnsupportedError` for a table without a catalog, because nothing coordinates its
    writers.
    """
    found = iceberg_place(place)
    if not found.catalog:
        raise UnsupportedError(
            f"{found.shown}: rows can be appended only through a catalog, which coordinates "
            "writers; give the table's name in the catalog, and catalog.uri"
        )
    return IcebergAppender(found)


@dataclass(frozen=True)
class IcebergAppender:
    """An Iceberg table. See `Appender`."""

    place: IcebergPlace

    def append(self, rows: Rows, key: Sequence[str]) -> str:
        """See `Appender`. Returns the snapshot id."""
        return again_after_conflicts(lambda: self._appended(rows, key))

    def _appended(self, rows: Rows, key: Sequence[str]) -> str:
        shown = self.place.shown
        with self.place.errors():
            table = self.place.open()
            version = table.metadata.format_version
            if version > _VERSION_MAX:
                raise UnsupportedError(
                    f"{shown} has format version {version}, but pyiceberg supports writing up to "
                    f"{_VERSION_MAX}; append with the engine that created the table"
                )
            # For other partition transforms, pyiceberg needs a library that may be missing.
            names = {type(member.transform).__name__ for member in table.spec().fields}
            names -= {"IdentityTransform", "VoidTransform"}
            try:
                if names:
                    library("pyiceberg_core", "iceberg", shown)
            except SetupError as error:
                raise SetupError(
                    f"{shown} is partitioned by {', '.join(sorted(names))}, which requires "
                    "pyiceberg-core: pip install pyiceberg-core"
                ) from error
            arrow = library("pyiceberg.io.pyarrow", "iceberg", shown)
            schema = arrow.schema_to_pyarrow(table.schema(), include_field_ids=False)
            fit = conform(rows, schema, key, shown)
            # pyiceberg computes the bounds of columns with Python's own times.
            kinds = (pa.types.is_timestamp, pa.types.is_date)
            times = [field.name for field in schema if any(is_(field.type) for is_ in kinds)]
            for part in fit.parts() if times else ():
                for name in times:
                    years = pc.min_max(pc.year(part.column(name))).as_py().values()
                    far = [year for year in years if year is not None and year not in _YEARS]
                    if far:
                        raise InvalidError(
                            f"{shown}: column {name!r}: a time is in the year {far[0]}, but "
                            "pyiceberg writes times of the years 1 to 9999; correct it, or set it "
                            "to NULL"
                        )
            # pyiceberg divides rows among partitions only if it has all of them in memory.
            is_partitioned = bool(table.spec().fields)
            table.append(pa.concat_tables(fit.parts()) if is_partitioned else fit.reader())
            return str(table.current_snapshot().snapshot_id)
