"""The history of a table: what each commit did, how the table grew, and who consumes it.

Everything comes from snapshots and manifests. No data is read.

Consumers are named readers, whose position in the table protects snapshots from expiry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms, utc
from keytide.commit.change import new_data_files
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind, Consumer, Snapshot
from keytide.maintenance.references import restorer
from keytide.snapshot.live_files import is_gone
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable

# -- commits ---------------------------------------------------------------------------------------


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
        return record.table(head, map(_cells, self))


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
            yield _entry(metadata, snapshot)


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
        return _entry(metadata, metadata.cached_snapshot(snapshot_id))
    except NotFoundError:
        return None
    except DataError as error:
        if is_gone(error):  # expired in the meantime
            return None
        raise


def _entry(metadata: TableMetadata, snapshot: Snapshot) -> HistoryEntry:
    changed = list(metadata.entries(metadata.delta_manifests(snapshot)))
    added = [e.file for e in changed if e.kind is FileKind.ADD]
    removed = [e.file for e in changed if e.kind is FileKind.DELETE]
    kind = snapshot.commit_kind
    keeps_rows = kind is CommitKind.COMPACT
    if keeps_rows:
        operation = "compaction"
    elif kind is CommitKind.OVERWRITE and snapshot.commit_user.startswith(_RESTORER):
        operation = "restore"
    elif snapshot.operation is not None:
        operation = snapshot.operation.lower().replace("_", " ")
    else:
        operation = "write" if kind is CommitKind.APPEND else kind.value.lower()
    tombstones = sum(file.delete_row_count or 0 for file in added)
    written = sum(file.row_count for file in added) - tombstones
    gone = tombstones + sum(file.row_count - (file.delete_row_count or 0) for file in removed)
    return HistoryEntry(
        snapshot_id=snapshot.id,
        time=utc(snapshot.time_millis),
        user=snapshot.commit_user,
        operation=operation,
        rows_written=0 if keeps_rows else written,
        rows_deleted=0 if keeps_rows else gone,
        rows_stored=snapshot.total_record_count,
        files_added=len(added),
        files_removed=len(removed),
        bytes_added=sum(file.file_size for file in added),
        bytes_removed=sum(file.file_size for file in removed),
        schema_id=snapshot.schema_id,
    )


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


# -- growth ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A snapshot: its files with their size in bytes, and the bytes that its commit wrote.

    `bytes_appended` are those of new rows. `bytes_written` also include rows that compactions and
    overwrites wrote again.
    """

    snapshot: Snapshot
    files: int
    bytes: int
    bytes_written: int
    bytes_appended: int


def growth_of(table: StoredTable) -> Iterator[Step]:
    """The existing snapshots, oldest first. Raises `DataError` for damaged metadata."""
    metadata, files, size = table.metadata, 0, 0
    for snapshot in metadata.snapshots():
        changes = metadata.entries(metadata.delta_manifests(snapshot))
        if not files:
            # For the oldest one, only the total is known. What it wrote is what its manifests say.
            live = table.live_files(snapshot).entries
            files, size = len(live), sum(entry.file.file_size for entry in live)
        else:
            for entry in changes:
                sign = 1 if entry.kind is FileKind.ADD else -1
                files, size = files + sign, size + sign * entry.file.file_size
        written = sum(entry.file.file_size for entry in new_data_files(changes))
        appended = written if snapshot.commit_kind is CommitKind.APPEND else 0
        yield Step(snapshot, files, size, written, appended)


# -- consumers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedConsumer:
    """A named consumer: the next snapshot that it will read, and when it last stored its
    position.
    """

    name: str
    next_snapshot: int
    time: datetime


def consumers_of(metadata: TableMetadata) -> list[NamedConsumer]:
    """The consumers by name. Raises `DataError` for a damaged one."""
    found = []
    for name, time_ms in sorted(_times_ms(metadata).items()):
        path = paths.consumer_path(name)
        try:
            consumer = Consumer.from_json(metadata.store.read(path), metadata.store.uri_of(path))
        except DataError as error:
            if is_gone(error):
                continue
            raise
        time = utc(time_ms)
        found.append(NamedConsumer(name, consumer.next_snapshot, time))
    return found


def reset_consumer(
    table: StoredTable, name: str, next_snapshot: int | None = None
) -> NamedConsumer | None:
    """Let a consumer continue at another snapshot, or delete the consumer (None).

    A consumer that is running stores its own position again. Raises `NotFoundError` for an unknown
    consumer or a snapshot that no longer exists, `InvalidError` for a future snapshot, and
    `DataError` if the store fails.
    """
    metadata = table.metadata
    path = paths.consumer_path(name)
    if not metadata.store.exists(path):
        there = ", ".join(sorted(_times_ms(metadata))) or "none"
        raise NotFoundError(
            f"table {metadata.name} has no consumer {name!r}; existing consumers: {there}. A "
            f"reader creates one with follow(consumer={name!r})"
        )
    if next_snapshot is None:
        metadata.store.delete([path])
        return None
    newest = metadata.latest_snapshot_id() or 0
    if not 0 < next_snapshot <= newest + 1:
        raise InvalidError(
            f"table {metadata.name}: next_snapshot is {next_snapshot}, but the latest snapshot "
            f"is {newest}: give this one, an earlier one, or {newest + 1} for new changes only"
        )
    if next_snapshot <= newest:
        metadata.snapshot_or_changelog(next_snapshot)
    metadata.store.put(path, Consumer(next_snapshot).to_json())
    return next(found for found in consumers_of(metadata) if found.name == name)


def clear_consumers(
    table: StoredTable, including: str | None = None, excluding: str | None = None
) -> list[str]:
    """Delete consumers: all of them, or those whose full names match `including` and not
    `excluding`, which are regular expressions. Returns their names.

    Raises `InvalidError` for an invalid regular expression, and `DataError` if the store fails.
    """
    metadata = table.metadata
    wanted, unwanted = (
        _pattern(metadata, argument, text)
        for argument, text in (("including", including), ("excluding", excluding))
    )
    names = [
        name
        for name in sorted(_times_ms(metadata))
        if (wanted is None or wanted.fullmatch(name))
        and (unwanted is None or not unwanted.fullmatch(name))
    ]
    metadata.store.delete(map(paths.consumer_path, names))
    return names


def expire_consumers(table: StoredTable, older_than: Moment) -> list[str]:
    """Delete consumers that have not stored their position since a time. Returns their names.

    This also happens whenever snapshots expire, according to the option 'consumer.expiration-time'.
    Raises `InvalidError` for an invalid time, and `DataError` if the store fails.
    """
    before_ms = epoch_ms(older_than, table.name, "older_than")
    times_ms = _times_ms(table.metadata)
    names = sorted(name for name, time_ms in times_ms.items() if time_ms < before_ms)
    table.store.delete(map(paths.consumer_path, names))
    return names


def _times_ms(metadata: TableMetadata) -> dict[str, int]:
    """When each consumer last stored its position."""
    infos = metadata.store.list(paths.consumer_dir())
    times = {paths.parse_consumer_name(info.path.rpartition("/")[2]): info.modified_ms
             for info in infos}  # fmt: skip
    return {name: time_ms for name, time_ms in times.items() if name is not None}


def _pattern(metadata: TableMetadata, argument: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidError(
            f"table {metadata.name}: {argument} is {text!r}, which is not a valid regular "
            f"expression: {error}"
        ) from None
