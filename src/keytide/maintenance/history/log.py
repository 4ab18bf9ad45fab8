"""The history of a table: what each commit did.

Everything comes from snapshots and manifests. No data is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice

from keytide.base import html
from keytide.base.moments import utc
from keytide.base.record import Record
from keytide.errors import DataError, NotFoundError
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.maintenance.history.guards import restorer
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.retries import is_gone

__all__ = ["History", "HistoryEntry", "entries_before", "entries_of", "history_of"]


@dataclass(frozen=True)
class HistoryEntry(Record):
    """One commit.

    `operation` is 'write', 'delete', 'update', 'merge', 'overwrite', 'truncate', 'restore',
    'compaction' or similar. `rows_written` is the number of rows in added files, and `rows_deleted`
    the number of their tombstones plus the rows of removed files. Rows that a deletion vector marks
    are in neither. How many rows were new and how many replaced others is not stored: read it with
    `Table.changes(snapshot_id - 1, snapshot_id)`.
    """

    snapshot_id: int
    time: datetime
    user: str
    operation: str
    rows_written: int
    rows_deleted: int
    rows_stored: int
    """All rows of the snapshot, including older versions and tombstones."""
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    schema_id: int


class History(list[HistoryEntry]):
    """Commits, latest first. A notebook shows them as a table, and `print` as lines."""

    def __repr__(self) -> str:
        return "\n".join(map(_line, self)) or "no commits"

    def _repr_html_(self) -> str:
        head = ("snapshot", "time", "user", "operation", "written", "deleted", "bytes")
        return html.table(head, map(_cells, self))


def history_of(metadata: TableMetadata, limit: int | None = None) -> History:
    """The commits of the existing snapshots, latest first, at most `limit`.

    Raises `DataError` for damaged metadata.
    """
    return History(islice(entries_of(metadata), limit))


def entries_of(metadata: TableMetadata) -> Iterator[HistoryEntry]:
    """The same one by one, so that a caller that stops reads no further.

    Raises like `history_of`.
    """
    for number in reversed(metadata.snapshot_ids()):
        with suppress(NotFoundError):  # expired in the meantime
            snapshot = metadata.snapshot(number)
            yield _entry(snapshot, list(metadata.entries(metadata.delta_manifests(snapshot))))


def entries_before(metadata: TableMetadata, before: int, count: int) -> History:
    """The commits of the `count` ids below `before`, latest first. No others are read.

    Expired ones are left out. Raises `DataError` for damaged metadata.
    """
    oldest = metadata.earliest_snapshot_id()
    if oldest is None:
        return History()
    ids = range(before - 1, max(oldest, before - count) - 1, -1)
    found = metadata.store.together([partial(_entry_if_there, metadata, each) for each in ids])
    return History(entry for entry in found if entry is not None)


def _entry_if_there(metadata: TableMetadata, snapshot_id: int) -> HistoryEntry | None:
    try:
        snapshot = metadata.remembered(snapshot_id)
        return _entry(snapshot, list(metadata.entries(metadata.delta_manifests(snapshot))))
    except NotFoundError:
        return None
    except DataError as error:
        if is_gone(error):  # expired in the meantime
            return None
        raise


def _entry(snapshot: Snapshot, changed: list[ManifestEntry]) -> HistoryEntry:
    added = [e.file for e in changed if e.kind is FileKind.ADD]
    removed = [e.file for e in changed if e.kind is FileKind.DELETE]
    keeps_rows = snapshot.commit_kind is CommitKind.COMPACT
    tombstones = sum(file.delete_row_count or 0 for file in added)
    written = sum(file.row_count for file in added) - tombstones
    gone = tombstones + sum(file.row_count - (file.delete_row_count or 0) for file in removed)
    return HistoryEntry(
        snapshot_id=snapshot.id,
        time=utc(snapshot.time_millis),
        user=snapshot.commit_user,
        operation=_operation(snapshot),
        rows_written=0 if keeps_rows else written,
        rows_deleted=0 if keeps_rows else gone,
        rows_stored=snapshot.total_record_count,
        files_added=len(added),
        files_removed=len(removed),
        bytes_added=sum(file.file_size for file in added),
        bytes_removed=sum(file.file_size for file in removed),
        schema_id=snapshot.schema_id,
    )


def _operation(snapshot: Snapshot) -> str:
    if snapshot.commit_kind is CommitKind.COMPACT:
        return "compaction"
    if snapshot.commit_kind is CommitKind.OVERWRITE and snapshot.commit_user.startswith(_RESTORER):
        return "restore"
    if snapshot.operation is not None:
        return snapshot.operation.lower().replace("_", " ")
    is_append = snapshot.commit_kind is CommitKind.APPEND
    return "write" if is_append else snapshot.commit_kind.value.lower()


_RESTORER = restorer("")


def _cells(entry: HistoryEntry) -> tuple[object, ...]:
    return (
        entry.snapshot_id,
        f"{entry.time:%Y-%m-%d %H:%M:%S}Z",
        entry.user,
        entry.operation,
        f"{entry.rows_written:,}",
        f"{entry.rows_deleted:,}",
        f"{entry.bytes_added:,}",
    )


def _line(entry: HistoryEntry) -> str:
    number, time, user, operation, written, deleted, size = _cells(entry)
    return (
        f"{number}  {time}  {operation}: {written} rows written, {deleted} deleted, {size} bytes, "
        f"by {user}"
    )
