"""The connector interface, through which an engine without storage can change rows.

The engine finds the rows and computes the new values. The connector identifies its rows and makes
the changes. Between them there are *row ids*: values of a column that the connector adds to the
rows that it returns. The engine does not interpret them, and passes them back with the change of
their rows.

A DELETE or an UPDATE is this sequence of calls. Each one is made once, unless stated otherwise:

    driver    metadata.check_changes(session, table, changes)
    driver    metadata.get_delete_row_id_column_handle(session, table)
    driver    metadata.apply_filter(session, table, terms)      # rows that need not be looked at
    driver    metadata.begin_delete(session, table)             # what it returns is the table now
    driver    splits.get_splits(session, table)
    worker    pages.create_page_source(session, table, split, columns)      # for each split
    worker      source.get_next_page(), source.delete_rows(row_ids), ...    # any number of times
    worker      source.finish()  or  source.abort()
    worker      source.close()
    driver    metadata.finish_delete(session, table, fragments)
          or  metadata.abort_delete(session, table, fragments)

Both sides can rely on these rules:

- **Order.** `begin` is called after all pushdown and before splits are listed. `finish` of a source
  is called once, after its last page and its last change, even if nothing was changed. After
  `finish` or `abort`, only `close` is called. `finish_delete` is called once, when all sources have
  finished.
- **Atomicity.** Changes by sources are not visible before `finish_delete`. That call makes all of
  them visible, or none. It can raise `ConflictError` when another writer came first. Then nothing
  is changed, and the statement can be retried.
- **Failure.** After an error, the engine aborts the sources that have not finished, and then calls
  `abort_delete` with the fragments of those that have. Aborting twice has no further effect.
- **Attempts.** A worker can be restarted for the same split, or two can process it at the same
  time. The engine passes on the fragments of one attempt for each split. The output of other
  attempts is left to `abort`, or to the removal of unreferenced files. So a source must have no
  effect that another attempt could not undo or ignore.
- **Rows return to their origin.** Row ids are passed to a source of the split that returned them.
  If the engine reads in one process and changes in another, that is a second source of the same
  split, from which no page is read.
- **Threads.** A source is never used by two threads at the same time, but not always by the same
  thread. Sources of different splits are used concurrently.
- **Pickling.** Sessions, handles, splits, column handles and page source providers can be pickled.
  Metadata and sources stay in their process.

Pages are Arrow record batches, and blocks are Arrow arrays. Errors are `KeytideError`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.errors import UnsupportedError
from keytide.predicate.predicate import Predicate

__all__ = [
    "ROW_ID",
    "ColumnHandle",
    "Connector",
    "ConnectorInsertSink",
    "ConnectorMergeSink",
    "ConnectorMergeSinkProvider",
    "ConnectorMetadata",
    "ConnectorPageSource",
    "ConnectorPageSourceProvider",
    "ConnectorSession",
    "ConnectorSplitManager",
    "ConnectorTableHandle",
    "ConnectorTableSchema",
    "Fragment",
    "Isolation",
    "MergeOperation",
    "RowChangeParadigm",
    "RowChanges",
    "Split",
    "UpdatablePageSource",
]

ConnectorTableHandle: TypeAlias = Any
"""The connector's own representation of a table. Opaque to the engine. Can be pickled."""

Split: TypeAlias = Any
"""A part of a table's rows. Opaque to the engine. Can be pickled. Each row is in one split."""

Fragment: TypeAlias = bytes
"""The result of a source or a sink for the connector's `finish_...`. Opaque to the engine."""

Isolation: TypeAlias = Literal["snapshot", "serializable"]

ROW_ID = "$row_id"
"""The name of the row id column in the engine's pages."""


@dataclass(frozen=True)
class ConnectorSession:
    """One statement, identified by `query_id`.

    With `snapshot` isolation, a statement conflicts with writers that changed rows that it changes.
    With `serializable`, it also conflicts with those that changed rows that it read.
    """

    query_id: str = field(default_factory=lambda: uuid4().hex)
    isolation: Isolation = "snapshot"
    operation: Literal["DELETE", "UPDATE", "MERGE"] | None = None
    """The kind of statement, for a history of operations. None for any other kind."""


@dataclass(frozen=True)
class ColumnHandle:
    """A column: its name, its Arrow type, and whether it is nullable.

    `default` is the value that an INSERT stores if it omits the column. None means NULL. If
    `is_generated`, the connector computes the value from the other columns.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    default: pa.Scalar | None = None
    is_generated: bool = False


@dataclass(frozen=True)
class ConnectorTableSchema:
    """The columns of a table in order, and the key columns that identify a row, if any."""

    name: str
    columns: tuple[ColumnHandle, ...]
    primary_key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the columns that rows contain: all except generated ones."""
        return tuple(column.name for column in self.columns if not column.is_generated)

    def column(self, name: str) -> ColumnHandle:
        """The column with a name. Raises `KeyError` if there is none."""
        return {column.name: column for column in self.columns}[name]


class RowChangeParadigm(Enum):
    """The form in which a merge sink receives an update."""

    CHANGE_ONLY_UPDATED_COLUMNS = "change only updated columns"
    """One row with the operation UPDATE."""

    DELETE_ROW_AND_INSERT_ROW = "delete row and insert row"
    """A row UPDATE_DELETE, directly followed by a row UPDATE_INSERT."""


class MergeOperation(IntEnum):
    """The operation of a row in a merge page.

    The numbers are the values of the operation column.
    """

    INSERT = 1
    DELETE = 2
    UPDATE = 3
    UPDATE_INSERT = 4
    UPDATE_DELETE = 5


@dataclass(frozen=True)
class RowChanges:
    """The kinds of changes that a statement can make.

    `updated` lists the columns that are set: by an UPDATE under number 0, and by each updating WHEN
    clause of a MERGE under its number.
    """

    deletes: bool = False
    inserts: bool = False
    updated: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def sets(self) -> frozenset[str]:
        """All columns that are set."""
        return frozenset(name for names in self.updated.values() for name in names)


class ConnectorMetadata(ABC):
    """Operations on whole tables. Driver only."""

    # -- tables ------------------------------------------------------------------------------------

    @abstractmethod
    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """The names of all tables."""

    @abstractmethod
    def get_table_handle(self, session: ConnectorSession, name: str) -> ConnectorTableHandle | None:
        """The latest state of a table. Everything that is read through the handle belongs to it.

        Names are case-insensitive. None if there is no such table.
        """

    def get_table_version(
        self, session: ConnectorSession, name: str, version: str
    ) -> ConnectorTableHandle | None:
        """An older state of a table, for reading, by the argument of VERSION AS OF.

        Otherwise like `get_table_handle`. Raises `NotFoundError` if there is no such version.
        """
        raise UnsupportedError(f"table {name}: its connector has no versions; remove VERSION AS OF")

    @abstractmethod
    def get_table_schema(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableSchema:
        """The columns of a table."""

    def apply_filter(
        self, session: ConnectorSession, table: ConnectorTableHandle, terms: Sequence[Predicate]
    ) -> tuple[ConnectorTableHandle, Sequence[Predicate]]:
        """A handle for at least all rows that match every term, and the terms that remain.

        A term is a tree of `keytide.predicate.predicate`, with values of the columns' types.
        `keytide.predicate.predicate` defines its meaning. Other rows can still be returned,
        unless no term remains.
        """
        return table, terms

    def end_statement(self, session: ConnectorSession) -> None:  # noqa: B027  # most hold nothing
        """Release what was held for a statement that has ended, however it ended.

        Called once for each attempt of a statement, on every attached connector.
        """

    def check_changes(  # noqa: B027  # most tables take all that their connector offers
        self, session: ConnectorSession, table: ConnectorTableHandle, changes: RowChanges
    ) -> None:
        """Raise `UnsupportedError` or `InvalidError` for changes that a table would not store.

        Called first for every DELETE, UPDATE and MERGE, whether rows are found or not.
        """

    # -- INSERT ------------------------------------------------------------------------------------

    def begin_insert(
        self, session: ConnectorSession, table: ConnectorTableHandle, columns: Sequence[str]
    ) -> ConnectorInsertSink:
        """Begin an INSERT of rows with these columns. The other columns get their defaults.

        Raises `UnsupportedError` for a table that does not support inserts.
        """
        raise _lacks("INSERT", table)

    # -- DELETE ------------------------------------------------------------------------------------

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ColumnHandle:
        """The column of row ids for a DELETE.

        Values are never NULL, and are unique within a split. Raises `UnsupportedError` for a table
        whose rows cannot be deleted individually.
        """
        raise _lacks("DELETE", table)

    def begin_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableHandle:
        """Begin a DELETE. The returned handle is used in all calls that follow."""
        raise _lacks("DELETE", table)

    def finish_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> int:
        """Make a DELETE visible atomically, and return the number of deleted rows.

        `fragments` have no particular order. Raises `ConflictError` when another writer came first.
        """
        raise _lacks("DELETE", table)

    def abort_delete(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove the leftovers of a failed DELETE's sources, on a best-effort basis."""

    def apply_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableHandle | None:
        """A handle with which all rows of `table` can be deleted without reading them.

        Only called if `apply_filter` left no term. None if this is not possible.
        """
        return None

    def execute_delete(self, session: ConnectorSession, table: ConnectorTableHandle) -> int:
        """Delete the rows of an `apply_delete` handle atomically, and return their number."""
        raise _lacks("DELETE without reading", table)

    # -- UPDATE ------------------------------------------------------------------------------------

    def get_update_row_id_column_handle(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        updated_columns: Sequence[str],
    ) -> ColumnHandle:
        """The column of row ids for an UPDATE of these columns, which are in the table's order.

        As for a DELETE. A connector that writes whole rows can include the other columns.
        """
        raise _lacks("UPDATE", table)

    def begin_update(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        updated_columns: Sequence[str],
    ) -> ConnectorTableHandle:
        """Begin an UPDATE of these columns, which are in the table's order."""
        raise _lacks("UPDATE", table)

    def finish_update(
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> int:
        """Make an UPDATE visible atomically, and return the number of changed rows."""
        raise _lacks("UPDATE", table)

    def abort_update(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove the leftovers of a failed UPDATE's sources, on a best-effort basis."""

    # -- MERGE -------------------------------------------------------------------------------------

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> RowChangeParadigm:
        """The form in which merge sinks receive updates."""
        raise _lacks("MERGE", table)

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ColumnHandle:
        """The column of row ids for a MERGE. Values are unique within the table."""
        raise _lacks("MERGE", table)

    def get_update_layout(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> Sequence[str]:
        """The row id fields that determine which rows must go to the same merge sink.

        Empty if any sink accepts any row.
        """
        return ()

    def begin_merge(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> ConnectorTableHandle:
        """Begin a MERGE.

        `updated_columns` lists the columns that each WHEN clause sets, by number.
        """
        raise _lacks("MERGE", table)

    def apply_match(
        self, session: ConnectorSession, table: ConnectorTableHandle, columns: Sequence[str]
    ) -> ConnectorTableHandle:
        """A handle that knows that equality of these columns is the only match condition.

        `table` comes from `begin_merge`. In these columns, inserted rows have values that matched
        no row that was read.
        """
        return table

    def apply_values(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        values: Mapping[str, pa.Array],
    ) -> ConnectorTableHandle:
        """A handle to read at least all rows that a source can match.

        In every column of `values`, these rows have one of its values: integers or strings, without
        duplicates. Other rows can still be returned. The MERGE is finished with the handle of
        `begin_merge`.
        """
        return table

    def finish_merge(
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> int:
        """Make a MERGE visible atomically, and return the number of changed rows.

        This counts inserted, deleted and updated rows.
        """
        raise _lacks("MERGE", table)

    def abort_merge(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove the leftovers of a failed MERGE's sinks, on a best-effort basis."""


class ConnectorSplitManager(ABC):
    """Divides a table's rows into splits. Driver only."""

    @abstractmethod
    def get_splits(self, session: ConnectorSession, table: ConnectorTableHandle) -> Sequence[Split]:
        """The splits of a handle's rows, in any order, possibly none."""

    def stored_bytes(self, splits: Sequence[Split]) -> int | None:
        """The total size of the files of splits, None if it is unknown.

        Determined without reading files. If it is small, a cluster is not used to read them.
        """
        return None


class ConnectorPageSource(ABC):
    """The rows of one split, page by page."""

    @abstractmethod
    def get_next_page(self) -> pa.RecordBatch | None:
        """The next rows. None when there are no more, also in all later calls.

        The columns are those that were requested, in that order.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Can be called repeatedly."""


class UpdatablePageSource(ConnectorPageSource):
    """A page source whose rows can be changed while they are read.

    Legal sequences: `(get_next_page | delete_rows | update_rows)* (finish | abort*) close+`.
    """

    def delete_rows(self, row_ids: pa.Array) -> None:
        """Delete the rows with these ids, which this split returned. Each id occurs once."""
        raise UnsupportedError(f"{type(self).__name__} does not support deleting rows")

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        """Change the rows of a page.

        Entry `i` of the channels is the position in the page of the new values of updated column
        `i`. The last entry is the position of the row ids. Two entries can be the same position,
        and the page can have columns that no entry names.
        """
        raise UnsupportedError(f"{type(self).__name__} does not support updating rows")

    @abstractmethod
    def finish(self) -> Sequence[Fragment]:
        """End the changes of this split. The result is for the connector's `finish_...`."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what was prepared. Can be called repeatedly, and after `finish`."""


class ConnectorPageSourceProvider(ABC):
    """Creates page sources, wherever a split is processed. Can be pickled."""

    @abstractmethod
    def create_page_source(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        split: Split,
        columns: Sequence[ColumnHandle],
    ) -> ConnectorPageSource:
        """The rows of a split with these columns, one of which can be the row id.

        With a handle of `begin_delete` or `begin_update`, this is an `UpdatablePageSource`. No I/O
        before the first page or change.
        """

    def apply_values(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        split: Split,
        values: Mapping[str, pa.Array],
    ) -> Split:
        """A narrower split to read, like `ConnectorMetadata.apply_values` for a handle.

        It is used for values that are not known before splits are read. No I/O.
        """
        return split


class ConnectorInsertSink(ABC):
    """Receives the rows of an INSERT, page by page. Driver only.

    Legal sequences: `store_rows* (finish abort* | abort+)`. Nothing is visible before `finish`.
    """

    @abstractmethod
    def store_rows(self, page: pa.RecordBatch) -> None:
        """Store rows with the columns of `begin_insert`, in that order."""

    @abstractmethod
    def finish(self) -> int:
        """Make all rows visible atomically, or none, and return their number.

        The producer of the rows has ended by then. Raises `InvalidError` if the table refuses a
        row, and `ConflictError` when another writer came first.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the rows. Can be called repeatedly, and after `finish`."""


class ConnectorMergeSink(ABC):
    """Receives the MERGE rows of one worker.

    Legal sequences: `store_merged_rows* (finish | abort*)`.
    """

    @abstractmethod
    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        """Store rows with all columns of the table, in its order, and three more columns.

        These are the operation (`MergeOperation`, int8), the number of the WHEN clause that
        produced the row (int32, -1 for a delete) and the row id. A row that deletes has NULL
        columns, and a row that inserts has no row id. Each half of an update has the id of its row.
        """

    @abstractmethod
    def finish(self) -> Sequence[Fragment]:
        """End the changes of this worker."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what was prepared. Can be called repeatedly, and after `finish`."""


class ConnectorMergeSinkProvider(ABC):
    """Creates merge sinks, wherever rows are. Can be pickled."""

    @abstractmethod
    def create_merge_sink(
        self, session: ConnectorSession, table: ConnectorTableHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        """Sink `number` of `count`, for a handle of `begin_merge`."""


@dataclass(frozen=True)
class Connector:
    """A kind of storage, as its parts. `merge_sinks` is None if MERGE is not supported.

    `isolation` is that of SQL statements that change its tables.
    """

    name: str
    metadata: ConnectorMetadata
    splits: ConnectorSplitManager
    pages: ConnectorPageSourceProvider
    merge_sinks: ConnectorMergeSinkProvider | None = None
    isolation: Isolation = "snapshot"


def _lacks(what: str, table: ConnectorTableHandle) -> UnsupportedError:
    return UnsupportedError(f"{table}: this connector does not support {what}")
