"""The connector for tables with a primary key: DELETE appends tombstones, UPDATE new versions.

A row id is the primary key of a row and the other columns that a new version needs. These are the
sequence fields, which a new version copies so that it wins as the later one (rule R21 of
docs/semantics.md), and the columns that an UPDATE does not set. Workers append versions, see
`keyed_changes`. A fragment names their files, and `finish_...` commits them together. The commit
conflicts if another one changed a bucket that the statement changed or, with serializable
isolation, any bucket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import polars as pl
import pyarrow as pa

from keytide.base.row_kind import RowKind
from keytide.catalogs.catalog import Catalog
from keytide.commit.transaction import Transaction
from keytide.dml.duplicate_keys import refuse_taken_keys
from keytide.dml.fragments import Told
from keytide.dml.handles import KeyedHandle
from keytide.dml.keyed_changes import KeyedPages, KeyedSinks
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorSession,
    ConnectorSplitManager,
    RowChanges,
)
from keytide.dml.stored import StoredMetadata, asked_by, take_written
from keytide.dml.watermarks import refuse_delete, refuse_unset
from keytide.errors import UnsupportedError
from keytide.maintenance.upkeep.writing import followed, show_rows
from keytide.merge.order import VALUE_KIND
from keytide.options import keys
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.read.key_ranges import TASK_BYTES, by_key_range
from keytide.read.lifetime import Lifetime
from keytide.read.scan import Scan
from keytide.read.settled import settled_state
from keytide.read.task import ReadTask
from keytide.read.which_rows import WhichRows
from keytide.snapshot.stored import PinnedTable
from keytide.snapshot.view import TableView
from keytide.write.writable import writable_view

__all__ = ["KeyedMetadata", "keyed_connector"]


def keyed_connector(catalog: Catalog) -> Connector:
    """The connector for the tables of a catalog with a primary key."""
    return Connector("keytide", KeyedMetadata(catalog), _Splits(), KeyedPages(), KeyedSinks())


@dataclass(frozen=True)
class KeyedMetadata(StoredMetadata[KeyedHandle]):
    """Metadata operations for tables with a primary key."""

    clock_ns: Callable[[], int] = time.time_ns
    is_changed_by_key: ClassVar[bool] = True

    def handle_of(self, table: PinnedTable) -> KeyedHandle:
        """See `StoredMetadata`."""
        table = show_rows(table)
        view = writable_view(table)
        return KeyedHandle(table, table.state_on(table.newest_files(), view))

    def commit(self, session: ConnectorSession, table: KeyedHandle, told: Sequence[Told]) -> None:
        """See `StoredMetadata`. Raises `InvalidError` if two rows would have the same key."""
        refuse_taken_keys(table, told, partial(_outcomes, table))
        begun = Transaction.on(table.table, table.known, table.view.statement)
        with followed(table.table, begun) as transaction:
            transaction.asked_for(asked_by(session))
            take_written(transaction, table, told)
            transaction.build_on(serializable=session.isolation == "serializable")

    def check_changes(
        self, session: ConnectorSession, table: KeyedHandle, changes: RowChanges
    ) -> None:
        """See `ConnectorMetadata`. A row with a new key is deleted under its old key."""
        super().check_changes(session, table, changes)
        for updated in changes.updated.values():
            _check_updatable(table)
            refuse_unset(table, updated)
        if changes.deletes:
            refuse_delete(table)
        if changes.deletes or changes.sets & set(table.view.schema.primary_keys):
            _check_deletable(table)

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return _row_id(table, _version_columns(table.view))

    def begin_delete(self, session: ConnectorSession, table: KeyedHandle) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        return self._timed(_with_splits(table.begun()))

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id contains the columns that the UPDATE does not set."""
        needed = {*table.view.schema.primary_keys, *table.view.options.sequence_field}
        dropped = set(updated_columns) - needed
        return _row_id(table, [n for n in table.view.schema.names if n not in dropped])

    def begin_update(
        self, session: ConnectorSession, table: KeyedHandle, updated_columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        return self._timed(_with_splits(table.begun(updated_columns)))

    # -- MERGE

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return _row_id(table, _version_columns(table.view))

    def begin_merge(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> KeyedHandle:
        """See `ConnectorMetadata`."""
        return replace(self._timed(table.begun_merge(updated_columns)), gives_keys=True)

    def apply_match(
        self, session: ConnectorSession, table: KeyedHandle, columns: Sequence[str]
    ) -> KeyedHandle:
        """See `ConnectorMetadata`. A value that no row has in a key column is in no key."""
        if not set(columns) <= set(table.view.schema.primary_keys):
            return table
        return replace(table, inserts_new_keys=True, gives_keys=table.moves_rows)

    def _timed(self, begun: KeyedHandle) -> KeyedHandle:
        return replace(begun, began_ns=self.clock_ns())


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: KeyedHandle
    ) -> Sequence[tuple[int, ReadTask]]:
        return list(enumerate(_reads(table)))

    def stored_bytes(self, splits: Sequence[tuple[int, ReadTask]]) -> int | None:
        return sum(read.stored_bytes for _, read in splits)


def _check_deletable(table: KeyedHandle) -> None:
    """Raise `UnsupportedError` for a table that does not support deletes, or would ignore them."""
    view = table.view
    if view.options.ignore_delete:
        raise UnsupportedError(
            f"{table}: its option '{keys.IGNORE_DELETE}' drops deletes, so no row can be "
            "deleted; overwrite the table with the rows to keep"
        )
    way_out = view.engine.refuses_delete
    if way_out is not None:
        raise UnsupportedError(
            f"{table}: the merge engine {view.options.merge_engine} does not support DELETE of "
            f"single rows; {way_out}, or overwrite the table with the rows to keep"
        )


def _check_updatable(table: KeyedHandle) -> None:
    """Raise `UnsupportedError` for a table that would not store new values unchanged."""
    view = table.view
    reason = view.engine.refuses_update
    if reason is not None:
        raise UnsupportedError(
            f"{table}: the merge engine {view.options.merge_engine} does not support UPDATE; "
            f"{reason}"
        )


def _scan(table: KeyedHandle) -> Scan:
    """The rows that any reader sees."""
    view = table.known.view
    lifetime = Lifetime.of(view)
    shown = [] if lifetime is None else [lifetime.shown]
    predicate = conjunction([*conjuncts(table.predicate), *shown])
    return Scan(settled_state(table.known), view.schema.names, predicate)


def _outcomes(
    table: KeyedHandle, columns: tuple[str, ...], predicate: Predicate | None
) -> Iterator[pl.DataFrame]:
    view = table.view
    scan = replace(_scan(replace(table, predicate=predicate)), columns=columns)
    for task in scan.tasks():
        yield from task.outcomes(view.options.read_memory_bytes)
    if view.schema.is_indexed:
        # An index excludes deletes from what readers see, but late rows must be compared with them.
        dead = pl.lit(int(RowKind.DELETE), pl.Int8).alias(VALUE_KIND)
        for task in replace(scan, which=WhichRows.DELETES).tasks():
            for frame in task.outcomes(view.options.read_memory_bytes):
                yield frame.with_columns(dead)


def _with_splits(table: KeyedHandle) -> KeyedHandle:
    return replace(table, splits=len(_reads(table)))


def _reads(table: KeyedHandle) -> list[ReadTask]:
    """The rows of each bucket. A large bucket is read by ranges of keys."""
    return [part for task in _scan(table).tasks() for part in by_key_range(task, TASK_BYTES)]


def _version_columns(view: TableView) -> list[str]:
    """The columns that a tombstone needs, besides its kind."""
    schema, options = view.schema, view.options
    if not view.engine.picks_a_version or options.changelog_producer != "none":
        return list(schema.names)  # retractions and changelogs need whole rows
    needed = {*schema.primary_keys, *options.sequence_field, *(options.bucket_key or ())}
    needed |= set(schema.partition_keys)
    return [name for name in schema.names if name in needed]


def _row_id(table: KeyedHandle, names: Sequence[str]) -> ColumnHandle:
    schema = table.view.schema.arrow_schema()
    return ColumnHandle(ROW_ID, pa.struct([schema.field(name) for name in names]), nullable=False)
