"""Queries with DuckDB in this process. Scans are streamed into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from keytide.base.row_engine import duckdb_spelling
from keytide.errors import KeytideError
from keytide.sql.external import WAY_OUT
from keytide.sql.local_database import local_database
from keytide.sql.relation import (
    AttachedRelation,
    FallbackRelation,
    GivenRelation,
    Relation,
    StoredRelation,
    SystemRelation,
)
from keytide.sql.relations import BoundQuery
from keytide.sql.stopping import Stop
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
    """Rows that can be read in batches, several times."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


Source: TypeAlias = "Callable[[Relation], Any]"
"""Returns the rows of a relation in a form that DuckDB reads."""


def run_locally(
    bound: BoundQuery, *, allows_external_files: bool = False, stop: Stop | None = None
) -> pa.Table:
    """The rows of a query. Tables are streamed, and held in memory only if the query needs it.

    Ctrl-C cancels it and is raised as `KeyboardInterrupt`. Raises `InvalidError`, which quotes
    DuckDB, if DuckDB refuses the query, and what reading the tables raises.
    """
    return _run(bound, _rows, allows_external_files, source_of, stop)


def stream_locally(
    bound: BoundQuery, take: Callable[[pa.RecordBatch], None], *,
    allows_external_files: bool = False, source: Source | None = None,
    stop: Stop | None = None,
) -> None:  # fmt: skip
    """Pass on the rows of a query as they arrive.

    Another thread calls `take`. The first batch has no rows and only defines the columns. `source`
    replaces `source_of`, which returns the rows of a relation. Raises as `run_locally`, and what
    `take` raises.
    """

    def hand_on(answer: duckdb.DuckDBPyRelation) -> None:
        for page in _pages(answer):
            take(page)

    _run(bound, hand_on, allows_external_files, source or source_of, stop)


def _pages(answer: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
    reader = answer.to_arrow_reader(_PAGE_ROWS)
    yield pa.RecordBatch.from_pylist([], reader.schema)
    while True:
        try:
            page = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:  # DuckDB's error as an Arrow error
            raise duckdb.Error(str(error)) from error
        yield page


_PAGE_ROWS = 1 << 17


def _run(
    bound: BoundQuery,
    use: Callable[[duckdb.DuckDBPyRelation], T],
    allows_external_files: bool,
    rows_of: Source,
    stop: Stop | None,
) -> T:
    streams = []
    with local_database(allows_external_files) as connection:
        try:
            for relation in bound.relations:
                streams.append(source := rows_of(relation))
                if isinstance(source, _Stream):
                    source.stop = stop
                connection.register(relation.view, source)
            text = bound.text_for("duckdb", duckdb_unnest, duckdb_spelling)
            return _interruptible(connection, lambda: use(connection.sql(text)), stop)
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


def _interruptible(
    connection: duckdb.DuckDBPyConnection, query: Callable[[], T], stop: Stop | None
) -> T:
    """Run a query that Ctrl-C or a stop can cancel at any point.

    The query runs in its own thread. If Ctrl-C arrived inside a callback from DuckDB, it could be
    lost. This thread only waits for it.
    """
    running: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(running, query), name="keytide-sql")
    try:
        thread.start()
        return _result(running, connection, stop)
    except KeyboardInterrupt:
        # Repeated, because a thread that is about to start its query would miss a single interrupt.
        while not (running.cancel() or running.done()):
            connection.interrupt()
            wait([running], timeout=0.05)
        raise


def _result(running: Future[T], connection: duckdb.DuckDBPyConnection, stop: Stop | None) -> T:
    """The result of a query. Raises `StoppedError` once the query has ended after a stop."""
    if stop is None:
        return running.result()
    while not running.done():
        wait([running], timeout=_POLL_SECONDS)
        if stop.is_sent:
            connection.interrupt()
    stop.check()
    return running.result()


_POLL_SECONDS = 0.05


def _settle(running: Future[T], query: Callable[[], T]) -> None:
    if not running.set_running_or_notify_cancel():
        return
    try:
        running.set_result(query())
    except BaseException as error:  # the consumer of the rows raises it
        running.set_exception(error)


def _rows(answer: duckdb.DuckDBPyRelation) -> pa.Table:
    found, types = answer.to_arrow_table(), [str(t) for t in answer.types]
    return _with_plain_integers(found, types)


class _Stream:
    """A scan that DuckDB can read several times, each time from the start."""

    def __init__(self, scan: Batches) -> None:
        self.scan = scan
        self.error: KeytideError | None = None
        self.stop: Stop | None = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self.scan.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Any:
        try:
            for batch in self.scan.to_batches():
                if self.stop is not None:
                    self.stop.check()
                yield batch
        except KeytideError as error:
            self.error = error  # an Arrow stream transports only the message
            raise


def source_of(relation: Relation) -> Any:
    """The rows of a relation in a form that DuckDB reads."""
    if isinstance(relation, SystemRelation):
        return relation.rows()
    if isinstance(relation, GivenRelation):
        return relation.rows.select(list(relation.names))
    assert isinstance(relation, StoredRelation | FallbackRelation | AttachedRelation)
    return streamed(relation.scan())


def streamed(rows: Batches) -> Any:
    """Rows as something that DuckDB reads; their errors are raised as they are."""
    return _Stream(rows)


def _with_plain_integers(rows: pa.Table, types: list[str]) -> pa.Table:
    """Sums of integers, which DuckDB returns in 128 bits, as BIGINT if they fit."""
    for i, type_ in enumerate(types):
        if type_ == "HUGEINT":
            try:
                narrow = rows.column(i).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(i, rows.schema.field(i).name, narrow)
    return rows


def first_line(error: Exception) -> str:
    """The first line of a DuckDB error."""
    return str(error).splitlines()[0]
