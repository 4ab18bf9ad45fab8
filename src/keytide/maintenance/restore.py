"""Restore: returns partitions, or a whole table, to an earlier state, in one more commit.

Nothing is rewritten and no history is lost. The files of an older snapshot become live again, a few
of them as copies (see below), and the present ones are no longer live. A tag protects
the older files during the restore and afterwards, see `guards`.

By a rule of the format, an identity that one manifest of a snapshot deletes is gone for readers, in
whatever order it is named. The level is part of the identity. So a file that is still live, but on
another level or with another index than before, does not come back under its old identity.
Otherwise the next compaction of any engine would name its move to the present level a second time,
and the file would be lost. It comes back as a copy with a new name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import side_by_side
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.commit.change import Author, RestoredFiles, moved_files
from keytide.commit.transaction import Transaction
from keytide.definition.kind import kind_of
from keytide.definition.option_changes import refuse_changes
from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format import paths
from keytide.format.index_files import DELETION_VECTORS, IndexFile
from keytide.format.manifest_entry import Identity, ManifestEntry
from keytide.format.paths import FileNames
from keytide.format.snapshot import Snapshot
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.references import guard_of, restorer, settled_guard
from keytide.maintenance.rollback import numbered
from keytide.maintenance.tags import TagSource, create_tag_of
from keytide.maintenance.writes import with_follow_ups
from keytide.options import keys
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    LiveFiles,
    by_index_key,
    load_dead_rows,
    load_live_files,
    vector_files_by_bucket,
)
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.write.partition_spec import Place, fitting
from keytide.write.refusals import writable_view

# -- returned files --------------------------------------------------------------------------------


_Renamed: TypeAlias = "dict[BucketId, dict[str, str]]"
"""The new names of files by their old ones, for each bucket."""

# A copy in an object store is one request, which only waits for the store.
_COPIES_AT_ONCE = 16


@dataclass(frozen=True)
class FileRestore:
    """The files and index files of some partitions, to be brought back."""

    view: TableView
    files: Sequence[ManifestEntry]
    indexes: Sequence[IndexFile]

    def onto(self, live: LiveFiles) -> tuple[RestoredFiles, tuple[ManifestEntry, ...]]:
        """What comes back to a table with these live files: unchanged files, and copies.

        The copies are stored on return. Raises `DataError`, and `UnsupportedError` if a file to
        copy is outside the table.
        """
        view, names = self.view, FileNames()
        moved = moved_files(self.files, live)
        copies: dict[Identity, ManifestEntry] = {}
        for entry in moved:
            old = entry.file.file_name
            new = names.data_file(old.rpartition(".")[2], view.options.data_file_prefix)
            # Files that belong to a data file are named after it. If one is not, its name is
            # appended.
            extra = tuple(
                f"{new}{name.removeprefix(old)}" if name.startswith(old) else f"{new}-{name}"
                for name in entry.file.extra_files
            )
            file = replace(entry.file, file_name=new, extra_files=extra)
            copies[entry.identity] = replace(entry, file=file)
        pairs = [
            pair
            for entry, copy in zip(moved, copies.values(), strict=True)
            for pair in zip(view.stored_paths(entry), view.stored_paths(copy), strict=True)
        ]
        try:
            side_by_side([partial(view.store.copy, *pair) for pair in pairs], _COPIES_AT_ONCE)
        except BaseException:
            view.store.discard([p for copy in copies.values() for p in view.stored_paths(copy)])
            raise
        renamed: _Renamed = {}
        for entry in moved:
            bucket = renamed.setdefault((entry.partition, entry.bucket), {})
            bucket[entry.file.file_name] = copies[entry.identity].file.file_name
        kept = tuple(entry for entry in self.files if entry.identity not in copies)
        return self._restored(kept, renamed), tuple(copies.values())

    def _restored(self, kept: tuple[ManifestEntry, ...], renamed: _Renamed) -> RestoredFiles:
        """The index files too: deletion vectors name the files that they belong to."""
        dead: dict[BucketId, DeadRows] = {}
        for bucket, files in vector_files_by_bucket(self.indexes).items():
            if bucket in renamed:
                before = load_dead_rows(self.view.store, files, self.view.name)
                names = renamed[bucket]
                vectors = {names.get(name, name): each for name, each in before.vectors.items()}
                dead[bucket] = DeadRows(vectors=vectors, has_changed=True)
        indexes = tuple(
            index
            for index in self.indexes
            if index.index_type != DELETION_VECTORS or (index.partition, index.bucket) not in dead
        )
        return RestoredFiles(kept, indexes, by_index_key(dead))


# -- the restore -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestoreResult(Record):
    """What a restore did or, in a dry run, what it would do.

    `partitions` is the number of partitions that differed from snapshot `restored_snapshot_id`.
    `files_removed` of their files are no longer live, and `files_restored` are live again.
    `snapshot_id` is None when nothing was committed.
    """

    snapshot_id: int | None
    restored_snapshot_id: int
    partitions: int
    files_removed: int
    files_restored: int


def restore(
    table: StoredTable,
    to: int | str | None = None,
    partitions: Sequence[Place] = (),
    *,
    as_of: Moment | None = None,
    dry_run: bool = False,
) -> RestoreResult:
    """Restore partitions, by default all, see `Table.restore`."""
    BACKGROUND.cancel(table.uri)
    moment = None if as_of is None else epoch_ms(as_of, table.name)
    view = writable_view(table)
    source = _source(table.metadata, to, moment)
    _refuse_other_rules(table.metadata, view, source.snapshot)
    if partitions and view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: its primary key does not contain the partition columns, so keys "
            "can have moved to other partitions; restore the whole table"
        )
    mark = uuid.uuid4().hex[:12]
    begun = Transaction.begin(table, view, Author(restorer(mark)))
    with with_follow_ups(table, begun, done="the table is restored") as transaction:
        default_name = view.options.partition_default_name
        wanted = fitting(partitions, view.schema, view.name, default_name)
        before = _PartitionFiles.of(table.metadata, source.snapshot, wanted)
        now = _PartitionFiles.of(table.metadata, transaction.state.snapshot, wanted)
        back, gone = before.without(now), now.without(before)
        files, indexes = (*back.files, *gone.files), (*back.indexes, *gone.indexes)
        touched = {entry.partition for entry in files} | {index.partition for index in indexes}
        counts = len(touched), len(gone.files), len(back.files)
        if dry_run or not (files or indexes):
            transaction.abort()
            return RestoreResult(None, source.snapshot.id, *counts)
        guard = _Guard(table.metadata, source, guard_of(source.snapshot, mark))
        # Always created: another commit may drop the present files in the meantime.
        guard.set()
        try:
            returning = FileRestore(view, before.files, before.indexes)
            done = transaction.restore(wanted, returning.onto)
        except ConflictError:  # nothing is committed; after other errors, something may be
            guard.drop()
            raise
        # Needed if dropped files came back, or if a commit in between may have dropped them.
        seen, restored = transaction.state.snapshot, done.change.restored
        was_alone = done.snapshot.id == (0 if seen is None else seen.id) + 1
        dropped = _PartitionFiles(restored.files, restored.indexes).without(now)
        if was_alone and not (dropped.files or dropped.indexes):
            guard.drop()
        else:
            guard.settle(done.snapshot.id)
    return RestoreResult(done.snapshot.id, source.snapshot.id, *counts)


# -- source ----------------------------------------------------------------------------------------


def _source(metadata: TableMetadata, to: int | str | None, as_of_ms: int | None) -> TagSource:
    if (to is None) == (as_of_ms is None):
        raise InvalidError(
            f"table {metadata.name}: give exactly one of a snapshot, a tag and a time to restore"
        )
    if isinstance(to, str):
        return TagSource(paths.tag_path(to), metadata.tag(to))
    if as_of_ms is not None:
        found = metadata.snapshot_as_of(as_of_ms)
    else:
        found = numbered(metadata, int(to or 0))
    if metadata.has_snapshot(found.id):
        return TagSource(paths.snapshot_path(found.id), found)
    names = [name for name, tag in metadata.tags().items() if tag.snapshot == found]
    if not names:
        raise NotFoundError(
            f"table {metadata.name}: snapshot {found.id} has expired in the meantime, and no tag "
            "keeps it; restore a later one"
        )
    return TagSource(paths.tag_path(names[0]), found)


def _refuse_other_rules(metadata: TableMetadata, view: TableView, snapshot: Snapshot) -> None:
    """Raise `UnsupportedError` if the present options would give other rows for files of that
    time.
    """
    schema = metadata.schema(snapshot.schema_id)
    if kind_of(schema) is not view.kind:
        raise UnsupportedError(
            f"table {view.name}: it was converted after snapshot {snapshot.id}, when it had "
            f"'{keys.UPSERT_MODE}' = '{schema.upsert_mode}'; convert it to "
            f"'{schema.upsert_mode}' first, and back afterwards"
        )
    try:
        refuse_changes(schema, view.schema, has_rows=True)
    except InvalidError as error:
        raise UnsupportedError(
            f"table {view.name}: options have changed since snapshot {snapshot.id}, so its files "
            f"would be read differently: {error}. Write the rows instead: INSERT OVERWRITE the "
            f"table with a SELECT ... VERSION AS OF {snapshot.id}"
        ) from error


# -- changes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PartitionFiles:
    """The files that some partitions have in a snapshot, and their index files."""

    files: tuple[ManifestEntry, ...]
    indexes: tuple[IndexFile, ...]

    @classmethod
    def of(
        cls, metadata: TableMetadata, snapshot: Snapshot | None, wanted: Callable[[bytes], bool]
    ) -> _PartitionFiles:
        """Raises `DataError` for damaged metadata."""
        if snapshot is None:
            return cls((), ())
        files = load_live_files(metadata, snapshot).files
        column = files.column("_PARTITION")
        chosen = [partition for partition in column.unique() if wanted(partition)]
        indexes = metadata.index_files(snapshot)
        return cls(
            tuple(files.filter(column.is_in(chosen))),
            tuple(index for index in indexes if wanted(index.partition)),
        )

    def without(self, other: _PartitionFiles) -> _PartitionFiles:
        """The files that the other one does not have."""
        files = {entry.identity for entry in other.files}
        indexes = {index.file_name for index in other.indexes}
        return _PartitionFiles(
            tuple(entry for entry in self.files if entry.identity not in files),
            tuple(index for index in self.indexes if index.file_name not in indexes),
        )


@dataclass(frozen=True)
class _Guard:
    """The tag of the snapshot that files come back from."""

    metadata: TableMetadata
    source: TagSource
    name: str

    def set(self) -> None:
        """Create the tag. From then on, no expiry deletes the files. Raises like `create_tag`."""
        create_tag_of(self.metadata, self.name, self.source, "forever")

    def settle(self, restored_by: int) -> None:
        """Rename the tag so that its name says how long it is needed.

        A failure here is harmless.
        """
        snapshot = self.source.snapshot
        with suppress(KeytideError):
            source = TagSource(paths.tag_path(self.name), snapshot)
            create_tag_of(self.metadata, settled_guard(snapshot, restored_by), source, "forever")
            self.drop()

    def drop(self) -> None:
        """Delete the tag under its first name."""
        with suppress(DataError):
            self.metadata.delete_tag(self.name)
