"""The engine of row-level changes: INSERT, UPDATE, DELETE and MERGE through any connector.

The engine begins a change, passes it to a *host*, and then finishes it once or aborts it. It checks
what the connector returns.

- For DELETE and UPDATE, a host finds the rows and evaluates conditions and new values: threads and
  DuckDB in `keytide.sql`, tasks and Spark SQL in `keytide.spark`.
- For MERGE, a host joins the target with the source and determines which WHEN clause applies to
  each pair. It returns pages for one WHEN clause each. The engine converts these to the pages that
  sinks accept.
- INSERT has no host. Rows are streamed into a sink on the driver, and inserted once all of them
  have arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorMergeSinkProvider,
    ConnectorMetadata,
    ConnectorPageSource,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorTableHandle,
    ConnectorTableSchema,
    Fragment,
    MergeOperation,
    RowChangeParadigm,
    RowChanges,
    Split,
    UpdatablePageSource,
)
from keytide.errors import ConnectorError, InvalidError, KeytideError, UnsupportedError
from keytide.options import TableOptions
from keytide.predicate.predicate import Predicate

# -- checks of pages -------------------------------------------------------------------------------


_ROWS_MIN = 64 << 10


def schema_of(columns: Sequence[ColumnHandle]) -> pa.Schema:
    """Columns as an Arrow schema."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])


def pages_with_columns(
    source: ConnectorPageSource, columns: Sequence[ColumnHandle], connector: str
) -> Iterator[pa.RecordBatch]:
    """The pages of a source. Raises `ConnectorError` for one with other columns than these."""
    expected = schema_of(columns)
    while (page := source.get_next_page()) is not None:
        if page.schema.names != expected.names or page.schema.types != expected.types:
            raise ConnectorError(
                f"connector {connector}: a page has the columns {page.schema.to_string()}; "
                f"expected {expected.to_string()}"
            )
        yield page


def pages_of(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows as pages. Small chunks are combined, because each page costs the engine a query."""
    chunks = rows.column(0).num_chunks if rows.num_columns else 1
    is_scattered = chunks > 1 and rows.num_rows < chunks * _ROWS_MIN
    yield from (rows.combine_chunks() if is_scattered else rows).to_batches()


def channel_columns(
    table: ConnectorTableHandle,
    updated: Sequence[str],
    page: pa.RecordBatch,
    channels: Sequence[int],
) -> list[pa.Array]:
    """The new values of a page's updated columns, and its row ids.

    Raises `InvalidError` unless there is one channel for each of them, within the page.
    """
    channels = list(channels)
    if len(channels) != len(updated) + 1 or not all(0 <= c < page.num_columns for c in channels):
        raise InvalidError(
            f"{table}: update_rows was called with the channels {channels} for a page of "
            f"{page.num_columns} columns; expected one for each of "
            f"{', '.join((*updated, 'row id'))}"
        )
    return [page.column(channel) for channel in channels]


# -- kinds of changes ------------------------------------------------------------------------------


class MetadataCalls(NamedTuple):
    """The metadata methods that a change calls, each with the session and a handle."""

    row_id: Callable[[ConnectorSession, ConnectorTableHandle], ColumnHandle]
    begin: Callable[[ConnectorSession, ConnectorTableHandle], ConnectorTableHandle]
    finish: Callable[[ConnectorSession, ConnectorTableHandle, Sequence[Fragment]], int]
    abort: Callable[[ConnectorSession, ConnectorTableHandle, Sequence[Fragment]], None]


class RowChange(ABC):
    """What differs between DELETE and UPDATE. Can be pickled."""

    what: str

    @property
    @abstractmethod
    def changes(self) -> RowChanges:
        """The changes to rows."""

    @abstractmethod
    def calls(self, metadata: ConnectorMetadata) -> MetadataCalls:
        """The connector calls of this change."""

    @abstractmethod
    def apply(self, source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        """Pass a page of new values and row ids, in that order, to a source."""


@dataclass(frozen=True)
class DeleteRows(RowChange):
    """A DELETE. Pages contain only row ids."""

    what = "DELETE"
    changes = RowChanges(deletes=True)

    def calls(self, metadata: ConnectorMetadata) -> MetadataCalls:
        """See `RowChange`."""
        return MetadataCalls(
            metadata.get_delete_row_id_column_handle,
            metadata.begin_delete,
            metadata.finish_delete,
            metadata.abort_delete,
        )

    def apply(self, source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        """See `RowChange`."""
        source.delete_rows(page.column(page.num_columns - 1))


@dataclass(frozen=True)
class UpdateRows(RowChange):
    """An UPDATE. Pages contain the new values, in the table's column order, and the row ids."""

    updated_columns: tuple[str, ...]
    what = "UPDATE"

    @property
    def changes(self) -> RowChanges:
        """See `RowChange`."""
        return RowChanges(updated={0: self.updated_columns})

    def calls(self, metadata: ConnectorMetadata) -> MetadataCalls:
        """See `RowChange`."""
        columns = self.updated_columns
        return MetadataCalls(
            lambda session, table: metadata.get_update_row_id_column_handle(
                session, table, columns
            ),
            lambda session, table: metadata.begin_update(session, table, columns),
            metadata.finish_update,
            metadata.abort_update,
        )

    def apply(self, source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        """See `RowChange`."""
        source.update_rows(page, range(page.num_columns))


# -- DELETE and UPDATE -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetScan:
    """The rows that a change reads: splits, and the columns to read, with the row ids last.

    `is_exact` says that the splits contain exactly the affected rows.
    """

    pages: ConnectorPageSourceProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    splits: Sequence[Split]
    columns: tuple[ColumnHandle, ...]
    is_exact: bool = False
    stored_bytes: int | None = None
    """The total size of the files of the splits, None if it is unknown."""
    scan_of_values: Callable[[Mapping[str, pa.Array]], TargetScan] | None = None
    """Plans again for rows with given values, see `ConnectorMetadata.apply_values`.

    Only set where a host can use it. It is not sent to workers.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "scan_of_values": None}


@dataclass(frozen=True)
class SplitResult:
    """The result of one split: the number of rows passed to its source, and its fragments."""

    rows: int
    fragments: Sequence[Fragment]


class Host(Protocol):
    """Reads splits, evaluates the statement, and passes rows to sources of their splits."""

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """Lines that say where splits of this size would be processed.

        `TargetScan` has both arguments.
        """
        ...

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """Apply a change to every split, and pass on each result.

        Raises the first error after passing on the results of the other splits. Sources that did
        not finish have been aborted by then.
        """
        ...


@dataclass(frozen=True)
class Changed:
    """The number of changed rows, and the number of splits that were searched for them."""

    rows: int
    splits: int
    read_nothing: bool = field(default=False)
    """Whether the connector made the change without reading rows."""


def change_rows(
    connector: Connector,
    session: ConnectorSession,
    table: ConnectorTableHandle,
    change: RowChange,
    columns: Sequence[ColumnHandle],
    terms: Sequence[Predicate],
    host: Host,
    *,
    is_all_terms: bool = False,
) -> Changed:
    """Change the rows that a host finds among those that match `terms`. Runs on the driver.

    `columns` are those that the host needs. `is_all_terms` means that the terms alone determine the
    affected rows, so the connector can do a DELETE by itself. Atomic. Raises `ConnectorError` if
    the connector violates its contract, and what the connector raises.
    """
    metadata = connector.metadata
    calls = change.calls(metadata)
    metadata.check_changes(session, table, change.changes)
    row_id = calls.row_id(session, table)
    narrowed, left = metadata.apply_filter(session, table, tuple(terms))
    is_exact = is_all_terms and not left
    if isinstance(change, DeleteRows) and is_exact:
        whole = metadata.apply_delete(session, narrowed)
        if whole is not None:
            return Changed(metadata.execute_delete(session, whole), 0, read_nothing=True)
    begun = calls.begin(session, narrowed)
    results: list[SplitResult] = []

    with aborted_on_error(partial(calls.abort, session, begun), results):
        splits = connector.splits.get_splits(session, begun)
        wanted = (*columns, ColumnHandle(ROW_ID, row_id.type, nullable=False))
        stored = connector.splits.stored_bytes(splits)
        target_scan = TargetScan(connector.pages, session, begun, splits, wanted, is_exact, stored)
        host.change(target_scan, change, results.append)
        counted = calls.finish(session, begun, _fragments(results))
    rows = sum(result.rows for result in results)
    check_counted_rows(connector, change.what, rows, counted)
    return Changed(rows, len(splits))


@contextmanager
def aborted_on_error(
    abort: Callable[[Sequence[Fragment]], None], results: Sequence[SplitResult]
) -> Iterator[None]:
    """A context that aborts a change if the block raises an error."""
    try:
        yield
    except BaseException:
        with suppress(KeytideError):  # the original error is more useful
            abort(_fragments(results))
        raise


def _fragments(results: Sequence[SplitResult]) -> list[Fragment]:
    return [fragment for result in results for fragment in result.fragments]


# -- checks of the connector -----------------------------------------------------------------------


def check_counted_rows(connector: Connector, what: str, rows: int, counted: int) -> None:
    """Raise `ConnectorError` if a connector counted other rows than it received."""
    if counted != rows:
        raise ConnectorError(
            f"connector {connector.name}: it was given {rows} rows for {what}, but its finish "
            f"counted {counted!r}; the change is committed"
        )


def checked_pages(
    source: Any, columns: Sequence[ColumnHandle], connector: str
) -> Iterator[pa.RecordBatch]:
    """The pages of a source. Raises `ConnectorError` for wrong columns or row ids."""
    for page in pages_with_columns(source, columns, connector):
        if page.num_columns and page.column(page.num_columns - 1).null_count:
            raise ConnectorError(f"connector {connector}: a page has rows without a row id")
        yield page


# -- MERGE -----------------------------------------------------------------------------------------


OPERATION, CASE = "$operation", "$case"


@dataclass(frozen=True)
class SinkPages:
    """Creates the pages for sinks from rows of one WHEN clause. Can be pickled."""

    columns: tuple[ColumnHandle, ...]
    row_id: ColumnHandle
    paradigm: RowChangeParadigm

    @property
    def schema(self) -> pa.Schema:
        """The columns of a page."""
        fields = [pa.field(c.name, c.type) for c in self.columns]
        last = pa.field(ROW_ID, self.row_id.type)
        return pa.schema([*fields, (OPERATION, pa.int8()), (CASE, pa.int32()), last])

    def deleted(self, row_ids: pa.Array) -> pa.RecordBatch:
        """Deleted rows."""
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        return self._page(nulls, MergeOperation.DELETE, -1, row_ids)

    def inserted(self, values: Sequence[pa.Array], case: int) -> pa.RecordBatch:
        """Inserted rows, with the values of all columns."""
        ids = pa.nulls(len(values[0]), self.row_id.type)
        return self._page(values, MergeOperation.INSERT, case, ids)

    def updated(self, values: Sequence[pa.Array], row_ids: pa.Array, case: int) -> pa.RecordBatch:
        """Updated rows, with the values of all columns, in the connector's paradigm."""
        if self.paradigm is RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS:
            return self._page(values, MergeOperation.UPDATE, case, row_ids)
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        gone = self._page(nulls, MergeOperation.UPDATE_DELETE, -1, row_ids)
        come = self._page(values, MergeOperation.UPDATE_INSERT, case, row_ids)
        both = pa.Table.from_batches([gone, come]).combine_chunks()
        # Each deleted row directly precedes the inserted row that replaces it.
        turns = np.arange(2 * len(row_ids)).reshape(2, -1).T.ravel()
        return both.take(pa.array(turns)).combine_chunks().to_batches()[0]

    def _page(
        self, values: Sequence[pa.Array], operation: MergeOperation, case: int, row_ids: pa.Array
    ) -> pa.RecordBatch:
        count = len(row_ids)
        operations = pa.repeat(pa.scalar(operation.value, pa.int8()), count)
        cases = pa.repeat(pa.scalar(case, pa.int32()), count)
        return pa.record_batch([*values, operations, cases, row_ids], schema=self.schema)


@dataclass(frozen=True)
class Sinks:
    """The destination of merged rows: a provider of sinks, and its arguments. Can be pickled."""

    provider: ConnectorMergeSinkProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    pages: SinkPages
    layout: tuple[str, ...] = ()
    """The row id fields whose equal values must go to the same sink."""


class MergeHost(Protocol):
    """Joins the rows of a target with a source, and passes the results to sinks."""

    def plan_lines(self, stored_bytes: int | None) -> Sequence[str]:
        """Lines that say where a target of this size would be merged."""
        ...

    def merge(
        self, target_scan: TargetScan, sinks: Sinks, take: Callable[[SplitResult], None]
    ) -> None:
        """Run a MERGE, and pass on the result of each sink.

        Raises `InvalidError` if a target row is matched twice, and the first error after passing on
        the results of the other sinks.
        """
        ...


def merge_rows(
    connector: Connector,
    session: ConnectorSession,
    table: ConnectorTableHandle,
    changes: RowChanges,
    columns: Sequence[ColumnHandle],
    matched_by: Sequence[str],
    host: MergeHost,
) -> Changed:
    """Merge a source into a table. Atomic. Runs on the driver.

    `changes` are the possible changes of all WHEN clauses. `columns` are the target columns that
    the host needs. `matched_by` has columns if their equality is the only condition and inserted
    rows keep the values that matched nothing. Raises `UnsupportedError` if the connector has no
    MERGE, and what the connector and the host raise.
    """
    if connector.merge_sinks is None:
        raise UnsupportedError(f"{table}: connector {connector.name} does not support MERGE")
    metadata = connector.metadata
    metadata.check_changes(session, table, changes)
    row_id = metadata.get_merge_row_id_column_handle(session, table)
    paradigm = metadata.get_row_change_paradigm(session, table)
    schema: ConnectorTableSchema = metadata.get_table_schema(session, table)
    layout = tuple(metadata.get_update_layout(session, table))
    begun = metadata.begin_merge(session, table, changes.updated)
    results: list[SplitResult] = []
    wanted = (*columns, ColumnHandle(ROW_ID, row_id.type, nullable=False))

    def target_scan(table: ConnectorTableHandle) -> TargetScan:
        splits = connector.splits.get_splits(session, table)
        stored = connector.splits.stored_bytes(splits)
        return TargetScan(connector.pages, session, table, splits, wanted, stored_bytes=stored)

    with aborted_on_error(
        lambda fragments: metadata.abort_merge(session, begun, fragments), results
    ):
        if matched_by:
            begun = metadata.apply_match(session, begun, matched_by)
        whole = target_scan(begun)
        pages = SinkPages(schema.columns, row_id, paradigm)
        sinks = Sinks(connector.merge_sinks, session, begun, pages, layout)
        among = replace(
            whole,
            scan_of_values=lambda values: target_scan(
                metadata.apply_values(session, begun, values)
            ),
        )
        host.merge(among, sinks, results.append)
        fragments = [fragment for result in results for fragment in result.fragments]
        counted = metadata.finish_merge(session, begun, fragments)
    rows = sum(result.rows for result in results)
    check_counted_rows(connector, "MERGE", rows, counted)
    return Changed(rows, len(whole.splits))


# -- INSERT ----------------------------------------------------------------------------------------


def insert_rows(
    connector: Connector,
    session: ConnectorSession,
    table: ConnectorTableHandle,
    columns: Sequence[str],
    feed: Callable[[Callable[[pa.RecordBatch], None]], None],
) -> Changed:
    """Insert the rows that `feed` passes to its argument. Atomic. Runs on the driver.

    Raises `UnsupportedError` if the connector has no INSERT, and what the connector and `feed`
    raise, with nothing inserted.
    """
    sink = connector.metadata.begin_insert(session, table, columns)
    try:
        feed(sink.store_rows)
        return Changed(sink.finish(), 0)
    except BaseException:
        with suppress(KeytideError):  # the original error is more useful
            sink.abort()
        raise


@dataclass(frozen=True)
class EngineLimits:
    """The resources of this process that an engine can use for the rows of a table.

    It can hold `memory_bytes`. If a statement reads at most `driver_bytes_max`, a cluster leaves
    the work to this process.
    """

    memory_bytes: int = TableOptions().read_memory_bytes
    driver_bytes_max: int = TableOptions().driver_work_bytes_max
