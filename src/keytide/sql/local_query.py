"""Queries with DuckDB in this process, into which scans are streamed, and their measurements.

Opening an in-memory DuckDB database takes longer than most queries. So a used database is emptied
and kept in a pool for the next statement with the same settings. No two statements use one at the
same time. A running query can be stopped by a signal.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property
from keytide.base.row_engine import duckdb_spelling
from keytide.dml.attachments import PagesScan
from keytide.errors import KeytideError
from keytide.read.fallback import FallbackScan
from keytide.read.measurement import MeasuredScan, Tally, timed
from keytide.sql.engine_text import WAY_OUT, QueryAnalysis, RelationAnalysis
from keytide.sql.from_clause import duckdb_unnest
from keytide.sql.pushdown import DUCKDB_MACRO
from keytide.sql.relation import (
    AttachedRelation,
    CallerRelation,
    FallbackRelation,
    Relation,
    StoredRelation,
    SystemRelation,
)
from keytide.sql.relations import BoundQuery

# -- the pool of DuckDB databases ------------------------------------------------------------------


_Settings = tuple[tuple[str, str], ...]

_IDLE_MAX = 2


@dataclass(frozen=True)
class _Database:
    settings: _Settings
    connection: duckdb.DuckDBPyConnection
    folder: Path
    """A directory that only this account can use, for data that does not fit in memory."""

    def empty(self) -> None:
        """Drop its tables."""
        found = self.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for (name,) in found:
            self.connection.execute(f'DROP TABLE "{name}"')

    def close(self) -> None:
        """Close it, and delete what it spilled."""
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Idle:
    """The idle databases of one process. DuckDB's threads do not survive a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: list[_Database] = []

    def take(self, settings: _Settings) -> _Database | None:
        """Take a database with these settings out of the pool. None if there is none."""
        with self._lock:
            found = next((each for each in self._databases if each.settings == settings), None)
            if found is not None:
                self._databases.remove(found)
            return found

    def give_back(self, database: _Database) -> None:
        """Return an empty database.

        If there are too many, the one that was idle longest is closed.
        """
        with self._lock:
            self._databases.append(database)
            past = self._databases[:-_IDLE_MAX]
            del self._databases[:-_IDLE_MAX]
        for each in past:
            each.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            databases, self._databases = self._databases, []
        for each in databases:
            each.close()


_idle = _Idle()


def _after_fork() -> None:
    global _idle
    _forgotten.append(_idle)
    _idle = _Idle()


# Databases copied by a fork would wait for threads that do not exist, so they are never closed.
_forgotten: list[_Idle] = []
os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _idle.close())


@contextmanager
def local_database(
    allows_external_files: bool = False, **config: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to an empty database, which cannot read variables of this process.

    It cannot read files either, unless allowed. Data that does not fit in memory is spilled to a
    directory of its own, because queries can read there. No other account can open it. After the
    block, everything in the database is dropped, including registered rows.
    """
    settings = (("files", str(allows_external_files)), *sorted(config.items()))
    database = _idle.take(settings)
    if database is not None and not database.folder.is_dir():  # cleared as an old temporary file
        database.close()
        database = None
    database = database or _opened(settings, allows_external_files, config)
    try:
        with database.connection.cursor() as connection:
            yield connection
        database.empty()
    except BaseException:
        # The connection itself may have failed.
        database.close()
        raise
    if (database.folder / "spill").exists():
        database.close()
    else:
        _idle.give_back(database)


def _opened(settings: _Settings, allows_external_files: bool, config: dict[str, str]) -> _Database:
    folder = Path(tempfile.mkdtemp(prefix="keytide-sql-"))
    given: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": str(folder / "spill"),
        "python_enable_replacements": "false",
        **config,
    }
    connection = duckdb.connect(config=given)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(DUCKDB_MACRO)
    if not allows_external_files:
        connection.execute(
            "SET enable_external_access = false; SET autoinstall_known_extensions = false; "
            "SET autoload_known_extensions = false"
        )
    connection.execute("SET lock_configuration = true")
    return _Database(settings, connection, folder)


# -- the stop signal of a query --------------------------------------------------------------------


class StoppedError(Exception):
    """The query was stopped, so it has no result."""


class Stop:
    """Ends the queries that received it. Any thread can send it, and it cannot be revoked.

    DuckDB ends within milliseconds. A scan of Keytide ends after the current batch of
    rows, which is limited by 'read.memory'.
    """

    def __init__(self) -> None:
        self._sent = threading.Event()

    @property
    def is_sent(self) -> bool:
        """Whether the queries must end."""
        return self._sent.is_set()

    def send(self) -> None:
        """End the queries."""
        self._sent.set()

    def check(self) -> None:
        """Raise `StoppedError` once the stop was sent."""
        if self.is_sent:
            raise StoppedError


# -- queries ---------------------------------------------------------------------------------------


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
        # Closed also if `take` raises: the connection cannot be used while a result is open.
        with answer.to_arrow_reader(_PAGE_ROWS) as reader:
            take(pa.RecordBatch.from_pylist([], reader.schema))
            while True:
                try:
                    page = reader.read_next_batch()
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:  # DuckDB's error as an Arrow error
                    raise duckdb.Error(str(error)) from error
                take(page)

    _run(bound, hand_on, allows_external_files, source or source_of, stop)


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

    Raises `StoppedError` once the query has ended after a stop.

    The query runs in its own thread. If Ctrl-C arrived inside a callback from DuckDB, it could be
    lost. This thread only waits for it.
    """
    running: Future[T] = Future()
    thread = threading.Thread(target=settle, args=(running, query), name="keytide-sql")
    try:
        thread.start()
        if stop is not None:
            while not running.done():
                wait([running], timeout=_POLL_SECONDS)
                if stop.is_sent:
                    connection.interrupt()
            stop.check()
        return running.result()
    except KeyboardInterrupt:
        # Repeated, because a thread that is about to start its query would miss a single interrupt.
        while not (running.cancel() or running.done()):
            connection.interrupt()
            wait([running], timeout=0.05)
        raise


_POLL_SECONDS = 0.05


def settle(running: Future[T], query: Callable[[], T]) -> None:
    """Run a query, unless it was cancelled before, for those that wait for its result."""
    if not running.set_running_or_notify_cancel():
        return
    try:
        running.set_result(query())
    except BaseException as error:  # the one that waits raises it
        running.set_exception(error)


def _rows(answer: duckdb.DuckDBPyRelation) -> pa.Table:
    found, types = answer.to_arrow_table(), [str(t) for t in answer.types]

    # Sums of integers, which DuckDB returns in 128 bits, as BIGINT if they fit.
    rows = found
    for i, type_ in enumerate(types):
        if type_ == "HUGEINT":
            try:
                narrow = rows.column(i).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(i, rows.schema.field(i).name, narrow)
    return rows


class _Stream:
    """A scan that DuckDB can read several times, each time from the start.

    Its errors are raised as they are.
    """

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
    if isinstance(relation, CallerRelation):
        return relation.rows.select(list(relation.names))
    assert isinstance(relation, StoredRelation | FallbackRelation | AttachedRelation)
    return _Stream(relation.scan())


def first_line(error: Exception) -> str:
    """The first line of a DuckDB error."""
    return str(error).splitlines()[0]


# -- measurements ----------------------------------------------------------------------------------


def analyze_locally(
    bound: BoundQuery, *, allows_external_files: bool = False, stop: Stop | None = None
) -> QueryAnalysis:
    """Run a query to its end, and return measurements. Its rows are counted and discarded.

    Raises as `stream_locally`.
    """
    tables = {relation.view: _MeasuredTable(relation) for relation in bound.relations}
    rows = size = 0

    def count(page: pa.RecordBatch) -> None:
        nonlocal rows, size
        rows += page.num_rows
        size += page.nbytes

    begun = time.perf_counter()
    stream_locally(
        bound, count, allows_external_files=allows_external_files,
        source=lambda relation: tables[relation.view].rows, stop=stop,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    return QueryAnalysis(rows, size, seconds, tuple(table.analysis() for table in tables.values()))


@dataclass(frozen=True)
class _MeasuredTable:
    """A table of a query, with its measurements."""

    relation: Relation
    tally: Tally = field(default_factory=Tally)

    @cached_property
    def _scan(self) -> MeasuredScan | None:
        """The scan of a table of the lake, which is planned before it is read."""
        if not isinstance(self.relation, StoredRelation):
            return None
        scan = MeasuredScan(self.relation.scan())
        scan.plan()
        return scan

    @cached_property
    def rows(self) -> Any:
        """The rows in a form that DuckDB reads. Those of a system table exist already."""
        if self._scan is not None:
            return _Stream(self._scan)
        if isinstance(self.relation, AttachedRelation | FallbackRelation):
            return _Stream(_TimedBatches(self.relation.scan(), self.tally))
        return source_of(self.relation)

    def analysis(self) -> RelationAnalysis:
        """The measurements so far."""
        if self._scan is not None:
            found = self._scan.measure()
            title = f"scan of {found.planned.table}, snapshot {found.planned.snapshot_id}"
            needs = tuple(self.relation.needs())
            return RelationAnalysis(title, needs, found.rows, found.seconds, found.reads, found)
        title, *notes = self.relation.plan_lines()
        if isinstance(self.relation, AttachedRelation | FallbackRelation):
            tally = self.tally
            return RelationAnalysis(title, tuple(notes), tally.rows, tally.seconds, tally.reads)
        return RelationAnalysis(title, tuple(notes), self.rows.num_rows)


@dataclass(frozen=True)
class _TimedBatches(Batches):
    scan: PagesScan | FallbackScan
    tally: Tally

    @property
    def schema(self) -> pa.Schema:
        return self.scan.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return timed(self.scan.to_batches(), self.tally)
