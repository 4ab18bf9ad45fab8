"""What a connector offers so that an engine which knows nothing of storage can change its rows.

The engine finds the rows and computes the new values; the connector says how its rows are named
and makes the changes. In between are *row ids*: values of a column that the connector adds to the
rows it gives, opaque to the engine, which hands them back with what is to become of their rows.

A DELETE or an UPDATE is this sequence of calls, every one of them made once unless it says else:

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

The rules that both sides may rely on:

- **Order.** `begin` comes after everything that was pushed down and before splits are listed.
  `finish` of a source comes after its last page and its last change, once, also where nothing was
  changed; after `finish` or `abort` comes nothing but `close`. `finish_delete` comes once, when all
  sources have finished.
- **Atomicity.** Nothing that a source does can be seen by anybody before `finish_delete`; that
  call makes all of it visible, or none of it. It may raise `ConflictError` when another writer came
  first; nothing is changed then, and the statement may be carried out anew.
- **Failure.** After an error the engine aborts the sources that have not finished, and then calls
  `abort_delete` with the fragments of those that have. Aborting twice is harmless.
- **Attempts.** A worker may be started again for the same split, or two may work on it at once. The
  engine passes on the fragments of one attempt for each split; what the others made is left to
  `abort` or to whoever removes what nothing refers to. So a source must have no effect that another
  attempt could not undo or ignore.
- **Rows go back to where they came from.** Row ids are handed to a source of the split that gave
  them. Where the engine reads in another process than it changes, that is a second source of the
  same split, from which no page is taken.
- **Threads.** A source is never used by two threads at once, but not always by the same one.
  Sources of different splits are used at the same time.
- **Pickling.** Sessions, handles, splits, column handles and page source providers pickle; metadata
  and sources stay where they are.

Pages are Arrow record batches, blocks Arrow arrays. Errors are `KeytideError`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import pyarrow as pa

from keytide.errors import UnsupportedError
from keytide.table.conditions.predicate import Predicate

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
"""A table as the connector wants to be told of it again. Opaque to the engine; pickles."""

Split: TypeAlias = Any
"""A part of a table's rows. Opaque to the engine; pickles. Each row is in exactly one split."""

Fragment: TypeAlias = bytes
"""What a source or a sink tells its connector's `finish_...`. Opaque to the engine."""

Isolation: TypeAlias = Literal["snapshot", "serializable"]

ROW_ID = "$row_id"
"""The name that the engine gives to the column of row ids in its pages."""


@dataclass(frozen=True)
class ConnectorSession:
    """One statement. `query_id` tells it from all others.

    With `snapshot` isolation a statement conflicts with writers that changed rows which it changes.
    With `serializable` it also conflicts with those that changed what it has read.
    """

    query_id: str = field(default_factory=lambda: uuid4().hex)
    isolation: Isolation = "snapshot"
    operation: Literal["DELETE", "UPDATE", "MERGE"] | None = None
    """What the statement is, for whoever keeps a history of what was done; None where it is none
    of these."""


@dataclass(frozen=True)
class ColumnHandle:
    """A column: its name, its Arrow type, and whether it takes NULL.

    `default` is the value that an INSERT stores which leaves the column out; None stands for NULL.
    Where `is_generated`, the connector computes the value of the columns beside it.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    default: pa.Scalar | None = None
    is_generated: bool = False


@dataclass(frozen=True)
class ConnectorTableSchema:
    """The columns of a table in their order, and those by whose values a row is known, if any."""

    name: str
    columns: tuple[ColumnHandle, ...]
    primary_key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of those that rows bring: all but generated ones."""
        return tuple(column.name for column in self.columns if not column.is_generated)

    def column(self, name: str) -> ColumnHandle:
        """The column of a name. Raises `KeyError` where there is none."""
        return {column.name: column for column in self.columns}[name]


class RowChangeParadigm(Enum):
    """In what form a merge sink takes an update."""

    CHANGE_ONLY_UPDATED_COLUMNS = "change only updated columns"
    """One row with the operation UPDATE."""

    DELETE_ROW_AND_INSERT_ROW = "delete row and insert row"
    """A row UPDATE_DELETE, right behind it a row UPDATE_INSERT."""


class MergeOperation(IntEnum):
    """What becomes of a row of a merge page; the numbers are those of the field."""

    INSERT = 1
    DELETE = 2
    UPDATE = 3
    UPDATE_INSERT = 4
    UPDATE_DELETE = 5


@dataclass(frozen=True)
class RowChanges:
    """What a statement may do to rows of a table, by all that it says.

    `updated` tells what is set: by an UPDATE under number 0, by each WHEN of a MERGE that updates
    under its own number.
    """

    deletes: bool = False
    inserts: bool = False
    updated: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def sets(self) -> frozenset[str]:
        """The columns that something sets."""
        return frozenset(name for names in self.updated.values() for name in names)


class ConnectorMetadata(ABC):
    """What is said and decided of tables as wholes. Driver only."""

    # -- tables ------------------------------------------------------------------------------------

    @abstractmethod
    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """The names of all tables."""

    @abstractmethod
    def get_table_handle(self, session: ConnectorSession, name: str) -> ConnectorTableHandle | None:
        """The newest state of a table, to which all that is read by the handle belongs.

        Names ignore letter case. None where there is no such table.
        """

    def get_table_version(
        self, session: ConnectorSession, name: str, version: str
    ) -> ConnectorTableHandle | None:
        """An older state of a table, for reading, by what VERSION AS OF says. As the newest one.

        Raises `NotFoundError` where there is no such version.
        """
        raise UnsupportedError(
            f"table {name}: its connector has no versions, so leave VERSION AS OF out"
        )

    @abstractmethod
    def get_table_schema(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableSchema:
        """The columns of a table."""

    def apply_filter(
        self, session: ConnectorSession, table: ConnectorTableHandle, terms: Sequence[Predicate]
    ) -> tuple[ConnectorTableHandle, Sequence[Predicate]]:
        """A handle of rows among which are all that meet every term, and the terms it leaves open.

        A term is a tree of `keytide.table.conditions.predicate`, with values of the columns' types;
        `keytide.table.conditions.matching` says what it means. Rows that do not meet them may still
        be given, unless the connector says that it leaves no term open.
        """
        return table, terms

    def end_statement(self, session: ConnectorSession) -> None:  # noqa: B027  # most hold nothing
        """Let go of what was held for a statement that is over, however it ended.

        Called once for each try of a statement, of every connector that is attached.
        """

    def check_changes(  # noqa: B027  # most tables take all that their connector offers
        self, session: ConnectorSession, table: ConnectorTableHandle, changes: RowChanges
    ) -> None:
        """Raise `UnsupportedError` or `InvalidError` for changes that a table would not store.

        Asked of every DELETE, UPDATE and MERGE before anything else, whether rows are found or not.
        """

    # -- INSERT ------------------------------------------------------------------------------------

    def begin_insert(
        self, session: ConnectorSession, table: ConnectorTableHandle, columns: Sequence[str]
    ) -> ConnectorInsertSink:
        """Begin an INSERT of rows that have these columns; the others get their defaults.

        Raises `UnsupportedError` for a table that takes no rows.
        """
        raise _lacks("INSERT", table)

    # -- DELETE ------------------------------------------------------------------------------------

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ColumnHandle:
        """The column of row ids for a DELETE.

        Values are never NULL, and no two rows of a split have the same. Raises `UnsupportedError`
        for a table whose rows cannot be deleted one by one.
        """
        raise _lacks("DELETE", table)

    def begin_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableHandle:
        """Begin a DELETE; the handle that is returned is that of all calls which follow."""
        raise _lacks("DELETE", table)

    def finish_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> int:
        """Make a DELETE visible, atomically; returns how many rows are gone.

        `fragments` come in no order. Raises `ConflictError` when another writer came first.
        """
        raise _lacks("DELETE", table)

    def abort_delete(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove what the sources of a failed DELETE have left, as far as that can be done."""

    def apply_delete(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ConnectorTableHandle | None:
        """A handle by which all rows of `table` can be deleted without their being read.

        Asked only where `apply_filter` left no term open. None where that cannot be done.
        """
        return None

    def execute_delete(self, session: ConnectorSession, table: ConnectorTableHandle) -> int:
        """Delete what `apply_delete` agreed to, atomically; returns how many rows are gone."""
        raise _lacks("DELETE without reading", table)

    # -- UPDATE ------------------------------------------------------------------------------------

    def get_update_row_id_column_handle(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        updated_columns: Sequence[str],
    ) -> ColumnHandle:
        """The column of row ids for an UPDATE of these columns, which are in the table's order.

        As for a DELETE; a connector that writes whole rows lets it carry the other columns.
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
        """Make an UPDATE visible, atomically; returns how many rows were changed."""
        raise _lacks("UPDATE", table)

    def abort_update(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove what the sources of a failed UPDATE have left, as far as that can be done."""

    # -- MERGE -------------------------------------------------------------------------------------

    def get_row_change_paradigm(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> RowChangeParadigm:
        """In what form merge sinks take updates."""
        raise _lacks("MERGE", table)

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> ColumnHandle:
        """The column of row ids for a MERGE, of which no two rows of the table have the same."""
        raise _lacks("MERGE", table)

    def get_update_layout(
        self, session: ConnectorSession, table: ConnectorTableHandle
    ) -> Sequence[str]:
        """The members of row ids that decide which rows must come to one merge sink.

        Empty where any sink takes any row.
        """
        return ()

    def begin_merge(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> ConnectorTableHandle:
        """Begin a MERGE; `updated_columns` tells for each WHEN, by its number, what it sets."""
        raise _lacks("MERGE", table)

    def apply_match(
        self, session: ConnectorSession, table: ConnectorTableHandle, columns: Sequence[str]
    ) -> ConnectorTableHandle:
        """Know, of a handle of `begin_merge`, that equality of these columns is all that matches.

        Rows that are inserted have the values there with which they matched no row that was read.
        """
        return table

    def apply_values(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        values: Mapping[str, pa.Array],
    ) -> ConnectorTableHandle:
        """A handle to read by, of rows among which are all that a source can match.

        Those have in every column of `values` one of them: whole numbers or texts, each once. Other
        rows may still be given. What was begun is finished by the handle of `begin_merge`.
        """
        return table

    def finish_merge(
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> int:
        """Make a MERGE visible, atomically; returns how many rows came, went or were changed."""
        raise _lacks("MERGE", table)

    def abort_merge(  # noqa: B027  # not every connector leaves something
        self, session: ConnectorSession, table: ConnectorTableHandle, fragments: Sequence[Fragment]
    ) -> None:
        """Remove what the sinks of a failed MERGE have left, as far as that can be done."""


class ConnectorSplitManager(ABC):
    """Which parts a table's rows come in. Driver only."""

    @abstractmethod
    def get_splits(self, session: ConnectorSession, table: ConnectorTableHandle) -> Sequence[Split]:
        """The parts of the rows that a handle stands for, in any order, perhaps none."""

    def stored_bytes(self, splits: Sequence[Split]) -> int | None:
        """The size of the files that are read for splits; None where nobody knows.

        Told without reading any. Where it is small, a cluster is not asked to read them.
        """
        return None


class ConnectorPageSource(ABC):
    """The rows of one split, page by page."""

    @abstractmethod
    def get_next_page(self) -> pa.RecordBatch | None:
        """The next rows; None when there are no more, then and ever after.

        Columns are those that were asked for, in that order.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held. More than one call is harmless."""


class UpdatablePageSource(ConnectorPageSource):
    """A page source whose rows can be changed while they are read.

    Legal sequences: `(get_next_page | delete_rows | update_rows)* (finish | abort*) close+`.
    """

    def delete_rows(self, row_ids: pa.Array) -> None:
        """Delete the rows of these ids, which this split has given; none of them twice."""
        raise UnsupportedError(f"{type(self).__name__} deletes no rows")

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        """Change the rows of a page.

        Entry `i` of the channels is the place in the page of the new values of updated column
        `i`; the last entry is the place of the row ids. Two entries may be the same place, and the
        page may have columns that no entry names.
        """
        raise UnsupportedError(f"{type(self).__name__} updates no rows")

    @abstractmethod
    def finish(self) -> Sequence[Fragment]:
        """End the changes of this split; what is told goes to the connector's `finish_...`."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what was prepared. More than one call is harmless, and so is one after `finish`."""


class ConnectorPageSourceProvider(ABC):
    """Makes page sources, wherever a split is worked on. Pickles."""

    @abstractmethod
    def create_page_source(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        split: Split,
        columns: Sequence[ColumnHandle],
    ) -> ConnectorPageSource:
        """The rows of a split with these columns, one of which may be that of the row ids.

        Under a handle of `begin_delete` or `begin_update` it is an `UpdatablePageSource`. No I/O
        before the first page or change.
        """

    def apply_values(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        split: Split,
        values: Mapping[str, pa.Array],
    ) -> Split:
        """A split to read instead of one: the same as `ConnectorMetadata.apply_values` of a handle.

        For values that are not known before splits are read. No I/O.
        """
        return split


class ConnectorInsertSink(ABC):
    """Takes the rows of an INSERT, page by page. Driver only.

    Legal sequences: `store_rows* (finish abort* | abort+)`. Nothing can be seen before `finish`.
    """

    @abstractmethod
    def store_rows(self, page: pa.RecordBatch) -> None:
        """Take rows with the columns that `begin_insert` was told, in that order."""

    @abstractmethod
    def finish(self) -> int:
        """Make all rows visible, atomically, or none of them; returns how many came.

        What gave the rows has ended by then. Raises `InvalidError` where the table refuses a row,
        `ConflictError` when another writer came first.
        """

    @abstractmethod
    def abort(self) -> None:
        """Forget the rows. More than one call is harmless, and so is one after `finish`."""


class ConnectorMergeSink(ABC):
    """Takes the rows of a MERGE that came to one worker.

    Legal sequences: `store_merged_rows* (finish | abort*)`.
    """

    @abstractmethod
    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        """Take rows with all columns of the table, in its order, and three more.

        Those are the operation (`MergeOperation`, int8), the number of the WHEN that made the row
        (int32, -1 where a row deletes) and the row id. Rows that delete have NULL columns, rows
        that insert have no row id; half an update has the id of its row.
        """

    @abstractmethod
    def finish(self) -> Sequence[Fragment]:
        """End the changes of this worker."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what was prepared. More than one call is harmless, and so is one after `finish`."""


class ConnectorMergeSinkProvider(ABC):
    """Makes merge sinks, wherever rows are. Pickles."""

    @abstractmethod
    def create_merge_sink(
        self, session: ConnectorSession, table: ConnectorTableHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        """Sink `number` of `count`, under a handle of `begin_merge`."""


@dataclass(frozen=True)
class Connector:
    """A kind of storage, as its parts. `merge_sinks` is None where MERGE is not supported.

    `isolation` is that of SQL statements which change its tables.
    """

    name: str
    metadata: ConnectorMetadata
    splits: ConnectorSplitManager
    pages: ConnectorPageSourceProvider
    merge_sinks: ConnectorMergeSinkProvider | None = None
    isolation: Isolation = "snapshot"


def _lacks(what: str, table: ConnectorTableHandle) -> UnsupportedError:
    return UnsupportedError(f"{table}: this connector does not support {what}")
