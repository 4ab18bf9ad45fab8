"""Tables of Keytide's or Paimon's format as sources of versions.

In an append table, each file is a part. The commit of a part is the snapshot that added its rows,
as far as existing snapshots show it. In a table with a primary key, the versions are its current
rows, one for each of its keys, and their order of arrival is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.errors import InvalidError
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.predicate.predicate import Predicate
from keytide.read.requests import scan_table
from keytide.read.scan import ReadTask, Scan
from keytide.read.sections import Section
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.delta_history import FileCommit, FileHistory, RowOrigin, history_of, places
from keytide.sources.delta_history import Place as FilePlace
from keytide.sources.parquet import column_type
from keytide.sources.source import Place
from keytide.store import Store, store_of_file
from keytide.types import arrow_schema

# -- tables of Keytide's or Paimon's format as sources of versions ---------------------------------


def open_source(place: Place) -> StoredSource:
    """The table in a folder. Nothing is read yet. It has no options."""
    return StoredSource(store_of_file(f"{place.location.rstrip('/')}/x", place.near)[0])


@dataclass(frozen=True)
class StoredSource:
    """A table in a folder. See `Source`."""

    store: Store

    @property
    def location(self) -> str:
        """The folder."""
        return self.store.uri

    def pin(self, version: str | int | None = None) -> PinnedStored:
        """See `Source`. A version is a snapshot id or tag name."""
        table = StoredTable(self.store, self.location)
        if isinstance(version, bool) or version == "":
            raise InvalidError(
                f"table {self.location}: a version is a snapshot id or a tag name; found "
                f"{version!r}"
            )
        if version is None:
            scan = scan_table(table)
        elif isinstance(version, int) or version.isdecimal():
            scan = scan_table(table, snapshot_id=int(version))
        else:
            scan = scan_table(table, tag=version)
        for column in arrow_schema(scan.view.schema.fields):
            column_type(column.name, column.type, f"table {self.location}")
        return PinnedStored(table, scan)


@dataclass(frozen=True)
class PinnedStored:
    """One snapshot of a table. See `PinnedSource`."""

    table: StoredTable
    scan: Scan = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """See `PinnedSource`."""
        return arrow_schema(self.scan.view.schema.fields)

    @property
    def version(self) -> str | None:
        """The snapshot id, None for a table without snapshots."""
        return None if self.scan.snapshot is None else str(self.scan.snapshot.id)

    @property
    def cut_by(self) -> Sequence[str]:
        """See `PinnedSource`. Partitions and buckets."""
        view = self.scan.view
        return (*view.schema.partition_keys, *(field.name for field in view.bucket_fields))

    def parts(self, key_condition: Predicate | None = None) -> list[StoredPart]:
        """See `PinnedSource`."""
        scan = replace(self.scan, predicate=key_condition)
        tasks = scan.tasks()
        if self.scan.view.schema.primary_keys:
            return [_part(task, FilePlace(0, is_in_order=False)) for task in tasks]
        if self.scan.snapshot is None:
            return []
        names, alone = [], []
        for task in tasks:
            for file in (file for section in task.bucket.sections for file in section.files):
                names.append(file.meta.file_name)
                bucket = replace(task.bucket, sections=(Section(((file,),)),))
                alone.append(replace(task, bucket=bucket))
        history = self._history(self.scan.snapshot)
        live = [entry.file.file_name for entry in self.scan.live.files]
        placed = dict(zip(live, places([history.origin(name) for name in live]), strict=True))
        turns = sorted(
            range(len(names)), key=lambda i: (placed[names[i]].commit, history.turn(names[i]))
        )
        return [_part(alone[i], placed[names[i]]) for i in turns]

    def _history(self, newest: Snapshot) -> FileHistory:
        """The origin of files, from the consecutive snapshots up to the one that is read."""
        metadata = self.table.metadata
        there = {snapshot.id: snapshot for snapshot in metadata.snapshots()}
        first = newest.id
        while first - 1 in there:
            first -= 1
        chain = [there.get(number, newest) for number in range(first, newest.id + 1)]
        commits = self.table.store.together([partial(_commit, metadata, s) for s in chain])
        return history_of(commits, newest.id)


@dataclass(frozen=True)
class StoredPart:
    """Rows of a file or a bucket. See `SourcePart`."""

    task: ReadTask = field(repr=False)
    rows: int | None
    stored_bytes: int | None
    commit: int
    is_in_order: bool

    def __str__(self) -> str:
        files = (f for section in self.task.bucket.sections for f in section.files)
        return ", ".join(file.meta.file_name for file in files)

    def batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `SourcePart`."""
        task = replace(self.task, columns=tuple(columns), predicate=key_condition)
        for table in task.tables(self.task.view.options.read_memory_bytes):
            yield from (b for b in table.to_batches(max_chunksize=rows_max) if b.num_rows)


def _commit(metadata: TableMetadata, snapshot: Snapshot) -> FileCommit:
    delta = metadata.entries(metadata.delta_manifests(snapshot))
    added = {e.file.file_name: e for e in delta if e.kind == FileKind.ADD}
    gone = frozenset(e.file.file_name for e in delta if e.kind == FileKind.DELETE)
    kinds = {CommitKind.APPEND: RowOrigin.NEW, CommitKind.COMPACT: RowOrigin.COPIED}
    rows = kinds.get(snapshot.commit_kind, RowOrigin.MIXED)
    by_sequence = sorted(added, key=lambda name: added[name].file.min_sequence_number)
    known = {name: RowOrigin.KNOWN if name in gone else rows for name in by_sequence}
    return FileCommit(snapshot.id, known, gone - added.keys())


def _part(task: ReadTask, place: FilePlace) -> StoredPart:
    files = [file.meta for section in task.bucket.sections for file in section.files]
    return StoredPart(
        task,
        sum(file.row_count for file in files),
        sum(file.file_size for file in files),
        place.commit,
        place.is_in_order,
    )
