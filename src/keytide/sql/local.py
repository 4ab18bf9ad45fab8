"""Queries by DuckDB in this process: scans stream into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from keytide.errors import KeytideError
from keytide.row_dialect import duckdb_spelling
from keytide.sql.external import WAY_OUT
from keytide.sql.local_database import local_database
from keytide.sql.relation import (
    AttachedRelation,
    GivenRelation,
    Relation,
    StoredRelation,
    SystemRelation,
)
from keytide.sql.relations import BoundQuery
from keytide.sql.unnest import duckdb_unnest

__all__ = [
    "Batches",
    "first_line",
    "run_locally",
    "source_of",
    "stream_locally",
    "streamed",
]

T = TypeVar("T")


class Batches(Protocol):
    """Rows that are read batch by batch, each time anew."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


Source: TypeAlias = "Callable[[Relation], Any]"
"""Gives the rows of a relation, as something that DuckDB reads."""


def run_locally(bound: BoundQuery, *, allows_external_files: bool = False) -> pa.Table:
    """The rows of a query. Tables are streamed, and held only as far as the query needs it.

    A Ctrl-C cancels it and is raised as `KeyboardInterrupt`. Raises `InvalidError` that quotes
    DuckDB where it refuses the query, and what reading the tables raises.
    """
    return _run(bound, _rows, allows_external_files, source_of)


def stream_locally(
    bound: BoundQuery, take: Callable[[pa.RecordBatch], None], *,
    allows_external_files: bool = False, source: Source | None = None,
) -> None:  # fmt: skip
    """Hand the rows of a query on as they come. Raises as `run_locally`, and what `take` raises.

    Another thread takes them. The first page has no rows: it tells the columns. A `source` gives
    the rows of a relation in the place of `source_of`.
    """

    def hand_on(answer: duckdb.DuckDBPyRelation) -> None:
        for page in _pages(answer):
            take(page)

    _run(bound, hand_on, allows_external_files, source or source_of)


def _pages(answer: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
    reader = answer.to_arrow_reader(_PAGE_ROWS)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    while True:
        try:
            page = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:  # what DuckDB raises, in Arrow's words
            raise duckdb.Error(str(error)) from error
        yield page


_PAGE_ROWS = 1 << 17


def _run(
    bound: BoundQuery,
    use: Callable[[duckdb.DuckDBPyRelation], T],
    allows_external_files: bool,
    rows_of: Source,
) -> T:
    streams = []
    with local_database(allows_external_files) as connection:
        try:
            for relation in bound.relations:
                streams.append(source := rows_of(relation))
                connection.register(relation.view, source)
            text = bound.text_for("duckdb", duckdb_unnest, duckdb_spelling)
            return _interruptible(connection, lambda: use(connection.sql(text)))
        except duckdb.PermissionException as error:
            raise bound.refused(f"{first_line(error)}; {WAY_OUT}") from error
        except duckdb.Error as error:
            cause = next((s.error for s in streams if isinstance(s, _Stream) and s.error), None)
            if cause is not None:
                raise cause from None
            raise bound.refused(first_line(error)) from error
        finally:
            for relation in bound.relations[: len(streams)]:
                connection.unregister(relation.view)


def _interruptible(connection: duckdb.DuckDBPyConnection, query: Callable[[], T]) -> T:
    """What comes of a query, which a Ctrl-C cancels wherever it strikes.

    The query has a thread of its own: struck inside of a callback from DuckDB, a Ctrl-C could be
    lost, while this thread does nothing but wait for one.
    """
    running: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(running, query), name="keytide-sql")
    try:
        thread.start()
        return running.result()
    except KeyboardInterrupt:
        # A thread that has not come to its query finds it cancelled; one that is just about to
        # run it would overhear a single interrupt.
        while not (running.cancel() or running.done()):
            connection.interrupt()
            wait([running], timeout=0.05)
        raise


def _settle(running: Future[T], query: Callable[[], T]) -> None:
    if not running.set_running_or_notify_cancel():
        return
    try:
        running.set_result(query())
    except BaseException as error:  # whoever waits for the rows raises it
        running.set_exception(error)


def _rows(answer: duckdb.DuckDBPyRelation) -> pa.Table:
    found, types = answer.to_arrow_table(), [str(t) for t in answer.types]
    return _with_plain_integers(found, types)


class _Stream:
    """A scan that DuckDB may read more than once, each time anew."""

    def __init__(self, scan: Batches) -> None:
        self.scan = scan
        self.error: KeytideError | None = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.scan.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Any:
        try:
            yield from self.scan.to_batches()
        except KeytideError as error:
            self.error = error  # Arrow's streams carry no more than a text
            raise


def source_of(relation: Relation) -> Any:
    """The rows of a relation, as something that DuckDB reads."""
    if isinstance(relation, SystemRelation):
        return relation.rows()
    if isinstance(relation, GivenRelation):
        return relation.rows.select(list(relation.names))
    assert isinstance(relation, StoredRelation | AttachedRelation)
    return streamed(relation.scan())


def streamed(rows: Batches) -> Any:
    """Rows as something that DuckDB reads; their errors are raised as they are."""
    return _Stream(rows)


def _with_plain_integers(rows: pa.Table, types: list[str]) -> pa.Table:
    """Sums of whole numbers, which DuckDB gives in 128 bits, as BIGINT where they fit."""
    for i, type_ in enumerate(types):
        if type_ == "HUGEINT":
            try:
                narrow = rows.column(i).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(i, rows.schema.field(i).name, narrow)
    return rows


def first_line(error: Exception) -> str:
    """What an error of DuckDB says first."""
    return str(error).splitlines()[0]
