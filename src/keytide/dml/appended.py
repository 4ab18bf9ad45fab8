"""The connector for tables without a primary key, whose rows are identified by file and position.

A row id is the name of a data file and the position of the row in it, counting deleted rows. For an
UPDATE it also contains the columns that are not set, because whole rows are written. The table
determines how rows are changed:

- With deletion vectors, a removed row is marked as deleted, and an after image is written to a new
  file. A file without remaining rows is removed.
- Without them, the affected files are rewritten with the remaining rows and the after images.

A source writes the new files. A fragment names them and the removed rows. `finish_...` combines the
fragments in one commit. It conflicts if an affected file was removed or other rows of it were
deleted in the meantime, and, with serializable isolation, if anything changed in a partition that
the statement read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pyroaring import BitMap64

from keytide.catalogs.catalog import Catalog
from keytide.commit.transaction import Transaction
from keytide.dml.appended_changes import (
    FILE,
    AppendedPages,
    AppendedSinks,
    AppendedSplit,
    dead_rows,
    place_column,
)
from keytide.dml.fragments import Told
from keytide.dml.handles import AppendedHandle
from keytide.dml.spi import ColumnHandle, Connector, ConnectorSession, ConnectorSplitManager
from keytide.dml.stored import StoredMetadata, asked_by, take_written
from keytide.errors import ConnectorError
from keytide.format.entry_columns import Entries
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.maintenance.upkeep.writing import followed
from keytide.predicate.predicate import Predicate, columns_of, conjuncts
from keytide.read.plan import plan_scan
from keytide.read.pruning import matching_partitions
from keytide.read.sections import PlannedFile
from keytide.snapshot.bucket_index import by_index_key
from keytide.snapshot.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import PinnedTable
from keytide.write.partition_spec import every_partition
from keytide.write.task import Written
from keytide.write.writable import writable_view

__all__ = ["AppendedMetadata", "appended_connector"]


def appended_connector(catalog: Catalog) -> Connector:
    """The connector for the tables of a catalog without a primary key."""
    metadata = AppendedMetadata(catalog)
    return Connector("keytide", metadata, _Splits(), AppendedPages(), AppendedSinks())


@dataclass(frozen=True)
class AppendedMetadata(StoredMetadata[AppendedHandle]):
    """Metadata operations for tables without a primary key."""

    is_changed_by_key: ClassVar[bool] = False

    def handle_of(self, table: PinnedTable) -> AppendedHandle:
        """See `StoredMetadata`."""
        view = writable_view(table)
        return AppendedHandle(table, table.state_on(table.newest_files(), view))

    def commit(
        self, session: ConnectorSession, table: AppendedHandle, told: Sequence[Told]
    ) -> None:
        """See `StoredMetadata`."""
        change = _Change(table.known, session, _watched(table))
        if table.marks_rows:
            _mark_rows(change, table, told)
        _settle(session, table, change, told)

    # -- DELETE

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return place_column(table)

    def apply_delete(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> AppendedHandle | None:
        """See `ConnectorMetadata`. Whole partitions are removed without reading their rows."""
        about = _about_partitions(table)
        return table if len(about) == len(conjuncts(table.predicate)) else None

    def execute_delete(self, session: ConnectorSession, table: AppendedHandle) -> int:
        """See `ConnectorMetadata`. One commit, or none if there are no rows."""
        state = table.known
        live = state.live.files
        there = live.filter(live.column("_BUCKET") >= 0)
        gone = matching_partitions(there, state.view.schema, _about_partitions(table))
        rows = int(gone.column("_ROW_COUNT").sum())
        change = _Change(state, session, _watched(table))
        for bucket, entries in _by_bucket(gone).items():
            names = [entry.file.file_name for entry in entries]
            dead = change.dead_rows(bucket)
            rows -= sum(len(dead.of(name)) for name in names)
            change.take_away(bucket, entries, dead)
        _settle(session, table, change, [])
        return rows

    # -- UPDATE

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        """See `ConnectorMetadata`. The id contains the columns that the UPDATE does not set."""
        names = [n for n in table.view.schema.names if n not in set(updated_columns)]
        return place_column(table, names)

    # -- MERGE

    def get_merge_row_id_column_handle(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> ColumnHandle:
        """See `ConnectorMetadata`."""
        return place_column(table)

    def get_update_layout(self, session: ConnectorSession, table: AppendedHandle) -> Sequence[str]:
        """See `ConnectorMetadata`. Each file is rewritten by one sink."""
        return (FILE,)

    def begin_merge(
        self,
        session: ConnectorSession,
        table: AppendedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> AppendedHandle:
        """See `ConnectorMetadata`."""
        begun = table.begun_merge(updated_columns)
        if table.marks_rows:
            return begun
        plan = plan_scan(table.known, table.predicate)
        files = {file.meta.file_name: file for bucket in plan.buckets for file in bucket.files}
        return replace(begun, files=files)


class _Splits(ConnectorSplitManager):
    def get_splits(
        self, session: ConnectorSession, table: AppendedHandle
    ) -> Sequence[AppendedSplit]:
        target_bytes = table.view.options.target_file_size_bytes
        groups = [
            ((plan.partition, plan.bucket), group)
            for plan in plan_scan(table.known, table.predicate).buckets
            for group in _groups(plan.files, target_bytes)
        ]
        return [
            AppendedSplit(number, *group, table.predicate) for number, group in enumerate(groups)
        ]

    def stored_bytes(self, splits: Sequence[AppendedSplit]) -> int | None:
        return sum(file.meta.file_size for split in splits for file in split.files)


def _groups(files: Iterable[PlannedFile], bytes_max: int) -> Iterator[tuple[PlannedFile, ...]]:
    """The files in order, with small ones grouped."""
    group: list[PlannedFile] = []
    for file in files:
        if group and sum(f.meta.file_size for f in group) + file.meta.file_size > bytes_max:
            yield tuple(group)
            group = []
        group.append(file)
    if group:
        yield tuple(group)


def _about_partitions(table: AppendedHandle) -> list[Predicate]:
    """The terms that are either true for all rows of a partition or for none."""
    view = table.view
    names = set(view.schema.partition_keys) - view.defaults(view.schema.partition_keys).keys()
    terms = conjuncts(table.predicate)
    return [term for term in terms if columns_of(term) and columns_of(term) <= names]


def _watched(table: AppendedHandle) -> Callable[[bytes], bool]:
    """The partitions that a statement reads, including those that are created meanwhile."""
    about, files = _about_partitions(table), table.known.live.entries
    if not about or not files:
        return every_partition

    def is_read(partition: bytes) -> bool:
        entry = Entries.of([replace(files[0], partition=partition)])
        return bool(matching_partitions(entry, table.view.schema, about))

    return is_read


# -- the commit ------------------------------------------------------------------------------------


class _Change:
    """The files that a statement removes, and the rows that it marks as deleted."""

    def __init__(
        self, state: TableState, session: ConnectorSession, is_read: Callable[[bytes], bool]
    ) -> None:
        self._state, self._session = state, session
        self.is_watched = is_read if session.isolation == "serializable" else None
        self._vector_files = vector_files_by_bucket(state.vector_files)
        self._gone: list[ManifestEntry] = []
        self._dead: dict[BucketId, DeadRows] = {}
        self.marked: list[ManifestEntry] = []

    @property
    def written(self) -> Written:
        """The changes to commit, in addition to what tasks wrote."""
        dead = by_index_key({**self._watched_vectors(), **self._dead})
        return Written(tuple(self._gone), indexes=dead)

    def dead_rows(self, bucket: BucketId) -> DeadRows:
        """The rows of a bucket that are already marked as deleted."""
        view, files = self._state.view, self._vector_files.get(bucket, ())
        return load_dead_rows(view.store, files, view.name)

    def take_away(
        self, bucket: BucketId, entries: Iterable[ManifestEntry], dead: DeadRows | None = None
    ) -> None:
        """Remove whole files, with their deletion vectors."""
        gone = [replace(entry, kind=FileKind.DELETE) for entry in entries]
        self._gone += gone
        if self._state.view.options.deletion_vectors_enabled:
            names = [entry.file.file_name for entry in gone]
            before = self.dead_rows(bucket) if dead is None else dead
            self._go_by(bucket, before, names, before.without(names))

    def mark(self, bucket: BucketId, dead: Mapping[str, BitMap64], entries: _ByName) -> None:
        """Mark rows of a bucket's files as deleted, and remove files without remaining rows."""
        before = self.dead_rows(bucket)
        positions = {name: np.asarray(some.to_array(), np.int64) for name, some in dead.items()}
        for name, some in positions.items():
            if np.isin(some, before.of(name)).any():
                raise ConnectorError(f"rows of file {name} that this statement read were deleted")
        wide = self._state.view.options.deletion_vectors_bitmap64
        after = before.marking(positions, wide=wide)
        full = [n for n in dead if len(after.vectors[n]) == entries[n].file.row_count]
        self._gone += [replace(entries[name], kind=FileKind.DELETE) for name in full]
        self.marked += [entries[name] for name in dead if name not in full]
        self._go_by(bucket, before, list(dead), after.without(full))

    def _go_by(
        self, bucket: BucketId, before: DeadRows, names: Iterable[str], after: DeadRows
    ) -> None:
        is_about_all = self.is_watched is not None and self.is_watched(bucket[0])
        went_by = None if is_about_all else before.about(names).went_by
        self._dead[bucket] = replace(after, went_by=went_by)

    def _watched_vectors(self) -> dict[BucketId, DeadRows]:
        """The vectors of the files that were read, which must not have changed."""
        if self.is_watched is None or not self._state.view.options.deletion_vectors_enabled:
            return {}
        return {
            bucket: DeadRows(self._vector_files.get(bucket, ()))
            for bucket in self._state.live.buckets
            if self.is_watched(bucket[0])
        }


_ByName = Mapping[str, ManifestEntry]


def _by_bucket(entries: Iterable[ManifestEntry]) -> dict[BucketId, list[ManifestEntry]]:
    found: dict[BucketId, list[ManifestEntry]] = {}
    for entry in entries:
        found.setdefault((entry.partition, entry.bucket), []).append(entry)
    return found


def _mark_rows(change: _Change, table: AppendedHandle, told: Sequence[Told]) -> None:
    dead = dead_rows(table, told)
    entries = {
        e.file.file_name: e for e in table.known.live.entries if e.file.file_name in dead
    }  # fmt: skip
    if len(entries) < len(dead):
        raise ConnectorError(f"{table}: a row id refers to a file that is not part of the table")
    for bucket, touched in _by_bucket(entries.values()).items():
        change.mark(bucket, {e.file.file_name: dead[e.file.file_name] for e in touched}, entries)


def _settle(
    session: ConnectorSession, table: AppendedHandle, change: _Change, told: Sequence[Told]
) -> None:
    begun = Transaction.on(table.table, table.known, table.view.statement)
    with followed(table.table, begun) as transaction:
        transaction.asked_for(asked_by(session))
        take_written(transaction, table, told)
        transaction.take(change.written)
        transaction.change_rows(change.marked, change.is_watched)
