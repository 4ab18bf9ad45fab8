"""Row-level changes with DuckDB in this process.

DELETE and UPDATE work page by page: DuckDB gets a page as a table and returns the positions of the
affected rows and their new values. Row ids stay in Arrow. A MERGE is one join, in which the target
streams past the source. Other tables of a statement are first copied into DuckDB, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from keytide.base.dataclass import dataclass
from keytide.base.row_engine import duckdb_spelling
from keytide.dml.engine import RowChange, Sinks, SplitResult, TargetScan, checked_pages
from keytide.dml.matching_rows import (
    MatchingRows,
    MatchingRowsHost,
    changed_split,
    in_threads,
    split_source,
)
from keytide.dml.spi import ROW_ID
from keytide.errors import KeytideError
from keytide.sql.change_queries import Match, MergeQuery, RowQuery, engine_errors
from keytide.sql.from_clause import duckdb_unnest
from keytide.sql.local_query import first_line, local_database, source_of
from keytide.sql.merged_rows import ROW, MatchedRows, PassThrough

# -- row-level changes with DuckDB in this process -------------------------------------------------


@dataclass(frozen=True)
class LocalRowHost:
    """Runs DELETE and UPDATE in threads of this process. See `Host`."""

    query: RowQuery
    memory_bytes: int
    allows_external_files: bool = False

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`. There is only one place."""
        return ()

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Ctrl-C cancels it."""
        if target_scan.is_exact and not self.query.fields:
            MatchingRowsHost(MatchingRows()).change(target_scan, change, take)
            return
        text = self.query.text_for("duckdb", (ROW,), duckdb_unnest, duckdb_spelling)
        memory = _within(self.memory_bytes)
        with _database(self.query, self.allows_external_files, memory) as connection:
            schema = pa.schema([pa.field(c.name, c.type) for c in target_scan.columns])
            self._computed(
                text, connection, pa.RecordBatch.from_pylist([], schema)
            )  # errors must be raised even if there are no rows
            cursors = [connection.cursor() for _ in target_scan.splits]

            def run(number: int) -> SplitResult:
                compute = partial(self._computed, text, cursors[number])
                return changed_split(target_scan, number, target_scan.columns, change, compute)

            in_threads(run, cursors, take)

    def _computed(
        self, text: str, cursor: duckdb.DuckDBPyConnection, page: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The new values and the row ids of the affected rows of a page."""
        plain = page.select([n for n in page.schema.names if n != ROW_ID])
        places = pa.array(np.arange(page.num_rows), pa.int64())
        given = pa.table([*plain.columns, places], [*plain.schema.names, ROW])
        with engine_errors(self.query.bound, duckdb.Error):
            cursor.register(self.query.view, given)
            found = cursor.sql(text).to_arrow_table()
        values = self.query.stored(found)
        ids = page.column(ROW_ID).take(found.column(ROW).combine_chunks())
        names = [*self.query.updated, ROW_ID]
        return pa.record_batch([*values, ids], names)


@dataclass(frozen=True)
class LocalMergeHost:
    """Runs a MERGE as one DuckDB query. See `MergeHost`."""

    query: MergeQuery
    memory_bytes: int
    allows_external_files: bool = False

    def plan_lines(self, stored_bytes: int | None) -> Sequence[str]:
        """See `MergeHost.plan_lines`. There is only one place."""
        return ()

    def merge(
        self, target_scan: TargetScan, sinks: Sinks, take: Callable[[SplitResult], None]
    ) -> None:
        """See `MergeHost.merge`. Ctrl-C cancels it."""
        passed = self.query.pass_through(sinks.pages)
        config = {**_within(self.memory_bytes), **_AS_WRITTEN}
        with _database(self.query, self.allows_external_files, config) as connection:
            cursor, query = connection.cursor(), self.query
            if query.match.columns and query.needs_matched_only:
                if query.match.view is None:
                    # The source is computed once, as a table, because it may be random.
                    made, query = query.with_source("keytide_merged")
                    source_text = made.text_for("duckdb", duckdb_unnest, duckdb_spelling)
                    with engine_errors(self.query.bound, duckdb.Error):
                        cursor.execute(f"CREATE TABLE keytide_merged AS {source_text}")
                target_scan = self._matchable(query.match, target_scan, cursor)
            text = query.text_for("duckdb", passed, duckdb_unnest, duckdb_spelling)
            target = _Target(target_scan, passed)
            cursor.register(self.query.view, target)
            sink = sinks.provider.create_merge_sink(sinks.session, sinks.table, 0, 1)

            def run(_: int) -> SplitResult:
                rows, matched = 0, MatchedRows(self.query.made.table)
                try:
                    for found in self._batches(cursor, text, target):
                        matched.take(found)
                        for page in self.query.made.pages(found, passed, sinks.pages):
                            sink.store_merged_rows(page.page)
                            rows += page.rows
                    return SplitResult(rows, sink.finish())
                except BaseException:
                    sink.abort()
                    raise

            in_threads(run, [cursor], take)

    def _matchable(
        self, match: Match, target_scan: TargetScan, cursor: duckdb.DuckDBPyConnection
    ) -> TargetScan:
        """The target without rows that certainly match nothing.

        Not if the source has more values than `memory_bytes` has room for.
        """
        assert match.view is not None
        most = self.memory_bytes // _VALUE_BYTES
        given: dict[str, pa.ChunkedArray] = {}
        for column in match.columns.values():
            # Without DISTINCT, for which DuckDB would hold all values.
            name = exp.column(column, quoted=True)
            listed = exp.select(name).from_(exp.to_table(match.view, quoted=True))
            listed = listed.where(name.is_(exp.null()).not_()).limit(most + 1)
            with engine_errors(self.query.bound, duckdb.Error):
                given[column] = cursor.sql(listed.sql("duckdb")).to_arrow_table().column(0)
        equal = match.comparable(
            {column.name: column.type for column in target_scan.columns},
            {name: some.type for name, some in given.items()},
        )
        known = {
            column: given[source].unique()
            for column, source in equal.items()
            if len(given[source]) <= most
        }
        return (
            target_scan.scan_of_values(known)
            if known and target_scan.scan_of_values is not None
            else target_scan
        )

    def _batches(
        self, cursor: duckdb.DuckDBPyConnection, text: str, target: _Target
    ) -> Iterator[pa.RecordBatch]:
        try:
            answer = cursor.sql(text)
            # DuckDB before 2.0 uses another name.
            read = getattr(answer, "to_arrow_reader", None) or answer.fetch_record_batch
            yield from read(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if target.error is not None:
                raise target.error from None
            raise self.query.bound.refused(first_line(error)) from error


_BATCH_ROWS = 256 << 10

# The join keeps its right side in memory. The source is written there, and must stay there.
_AS_WRITTEN = {"disabled_optimizers": "join_order,build_side_probe_side"}


class _Target:
    """The rows of a target as a stream that DuckDB reads once, and the columns passed through."""

    def __init__(self, target_scan: TargetScan, passed: PassThrough) -> None:
        self._scanned, self._passed = target_scan, passed
        self.error: KeytideError | None = None

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        schema = self._passed.schema(self._scanned.columns)
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        start = 0
        columns = self._passed.read_columns(self._scanned.columns)
        try:
            for number in range(len(self._scanned.splits)):
                with split_source(self._scanned, number, columns) as source:
                    for page in checked_pages(source, columns, type(source).__name__):
                        yield self._passed.engine_page(page, self._scanned.columns, start, schema)
                        start += page.num_rows
        except KeytideError as error:
            self.error = error  # an Arrow stream transports only the message
            raise


def _within(memory_bytes: int) -> dict[str, str]:
    """DuckDB settings that limit memory. The rest is spilled to its directory."""
    known = max(memory_bytes, _MEMORY_MIN)
    threads = max(1, min(os.cpu_count() or 1, known // _THREAD_BYTES))
    return {"memory_limit": f"{known >> 10}KiB", "threads": str(threads)}


_MEMORY_MIN = 64 << 20
_VALUE_BYTES = 64
_THREAD_BYTES = 32 << 20
"""With less memory per thread, DuckDB fails instead of spilling to disk."""


# -- DuckDB ----------------------------------------------------------------------------------------


@contextmanager
def _database(
    query: RowQuery | MergeQuery, allows_external_files: bool, config: Mapping[str, str]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB database with copies of the tables that a statement uses besides its target."""
    with local_database(allows_external_files, **config) as connection:
        for relation in query.bound.relations:
            with engine_errors(query.bound, duckdb.Error):
                connection.register("keytide_source", source := source_of(relation))
                try:
                    connection.execute(
                        f'CREATE TABLE "{relation.view}" AS SELECT * FROM keytide_source'
                    )
                except duckdb.Error:
                    if getattr(source, "error", None) is not None:
                        raise source.error from None
                    raise
                connection.unregister("keytide_source")
        yield connection
