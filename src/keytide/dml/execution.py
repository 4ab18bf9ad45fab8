"""DELETE and UPDATE through any connector: the sequence of calls, and checks of the connector.

A *host* finds the rows and evaluates conditions and new values: threads and DuckDB in
`keytide.sql`, tasks and Spark SQL in `keytide.spark`. The engine begins a change, passes it to the
host, and then finishes it once or aborts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from keytide.dml.pages import pages_as_asked
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorMetadata,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorTableHandle,
    Fragment,
    RowChanges,
    Split,
    UpdatablePageSource,
)
from keytide.errors import ConnectorError, KeytideError
from keytide.predicate.predicate import Predicate

__all__ = [
    "Changed",
    "DeleteRows",
    "Host",
    "RowCalls",
    "RowChange",
    "Scanned",
    "SplitResult",
    "UpdateRows",
    "aborted_on_error",
    "change_rows",
    "checked_pages",
    "connector_counted",
]


# -- kinds of changes ------------------------------------------------------------------------------


class RowCalls(NamedTuple):
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
    def calls(self, metadata: ConnectorMetadata) -> RowCalls:
        """The connector calls of this change."""

    @abstractmethod
    def apply(self, source: UpdatablePageSource, page: pa.RecordBatch) -> None:
        """Pass a page of new values and row ids, in that order, to a source."""


@dataclass(frozen=True)
class DeleteRows(RowChange):
    """A DELETE. Pages contain only row ids."""

    what = "DELETE"
    changes = RowChanges(deletes=True)

    def calls(self, metadata: ConnectorMetadata) -> RowCalls:
        """See `RowChange`."""
        return RowCalls(
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

    def calls(self, metadata: ConnectorMetadata) -> RowCalls:
        """See `RowChange`."""
        columns = self.updated_columns
        return RowCalls(
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


# -- running a change ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scanned:
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
    among: Callable[[Mapping[str, pa.Array]], Scanned] | None = None
    """Plans again for rows with given values, see `ConnectorMetadata.apply_values`.

    Only set where a host can use it. It is not sent to workers.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "among": None}


@dataclass(frozen=True)
class SplitResult:
    """The result of one split: the number of rows passed to its source, and its fragments."""

    rows: int
    fragments: Sequence[Fragment]


class Host(Protocol):
    """Reads splits, evaluates the statement, and passes rows to sources of their splits."""

    def explained(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """Lines that say where splits of this size would be processed.

        `Scanned` has both arguments.
        """
        ...

    def change(
        self, scanned: Scanned, change: RowChange, take: Callable[[SplitResult], None]
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

    def abort(fragments: Sequence[Fragment]) -> None:
        calls.abort(session, begun, fragments)

    with aborted_on_error(abort, results):
        splits = connector.splits.get_splits(session, begun)
        wanted = (*columns, ColumnHandle(ROW_ID, row_id.type, nullable=False))
        stored = connector.splits.stored_bytes(splits)
        scanned = Scanned(connector.pages, session, begun, splits, wanted, is_exact, stored)
        host.change(scanned, change, results.append)
        counted = calls.finish(session, begun, _fragments(results))
    rows = sum(result.rows for result in results)
    connector_counted(connector, change.what, rows, counted)
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


# -- connector checks ------------------------------------------------------------------------------


def connector_counted(connector: Connector, what: str, rows: int, counted: int) -> None:
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
    for page in pages_as_asked(source, columns, connector):
        if page.num_columns and page.column(page.num_columns - 1).null_count:
            raise ConnectorError(f"connector {connector}: a page has rows without a row id")
        yield page
