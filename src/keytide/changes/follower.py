"""Follows the changes of a table, and optionally stores the position under a consumer name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.changes.change_scan import Changes, changes_of, check_mode, full_rows
from keytide.errors import ConflictError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Consumer, Snapshot
from keytide.options.values import check_seconds
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import PinnedTable, StoredTable

# -- followers -------------------------------------------------------------------------------------


SNAPSHOT_ID = b"keytide.snapshot_id"
"""The entry in a batch's schema metadata that contains its snapshot."""


@dataclass(frozen=True)
class Start:
    """Start with the changes after snapshot `after_id`. With `is_full`, emit its rows first.

    `commit` is the identity of that snapshot, None if it is not known. The id alone may belong to
    another snapshot after a rollback, or after the table was dropped and created again.
    """

    after_id: int
    is_full: bool = False
    commit: str | None = None

    @classmethod
    def at(cls, snapshot: Snapshot | None, *, is_full: bool = False) -> Start:
        """After a snapshot. None: before the first one."""
        if snapshot is None:
            return cls(0, is_full)
        return cls(snapshot.id, is_full, snapshot.identity)

    def check(self, table: StoredTable, newest_id: int) -> None:
        """Raise `ConflictError` if the snapshot is not part of the table, of which `newest_id` is
        the latest.

        One that has expired is not found out.
        """
        now = None if self.commit is None else _snapshot(table, self.after_id)
        if newest_id < self.after_id or (now is not None and now.identity != self.commit):
            raise ConflictError(
                f"table {table.name}: changes up to snapshot {self.after_id} were emitted, but "
                "this snapshot is no longer part of the table: the table was rolled back or "
                "recreated. Follow it again from 'full' or from an existing snapshot, without the "
                "stored position: under another consumer, or with another checkpoint"
            )


@dataclass(frozen=True)
class Pace:
    """How often to check for new snapshots, and when to stop if there are none.

    None: never stop.
    """

    poll_seconds: float = 1.0
    timeout_seconds: float | None = None
    stop: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        """Raise `InvalidError` for invalid times."""
        check_seconds(self.poll_seconds, "poll_seconds", is_zero_allowed=False)
        if self.timeout_seconds is not None:
            check_seconds(self.timeout_seconds, "timeout_seconds", is_zero_allowed=True)

    def goes_on(self, quiet_seconds: float) -> bool:
        """Wait until the next check is due. False if it is time to stop."""
        left = float("inf")
        if self.timeout_seconds is not None:
            left = self.timeout_seconds - quiet_seconds
        return left > 0 and not self.stop.wait(min(self.poll_seconds, left))


def start_of(
    table: StoredTable, start: int | str | None = None, moment_ms: int | None = None
) -> Start:
    """Where a reader starts that has no stored position.

    'full', the default, and 'latest' mean the latest snapshot, with or without its rows. A number
    is the snapshot after which changes are emitted. `moment_ms` means the snapshot that was the
    latest at that time. Raises `NotFoundError` if it does not exist, and `InvalidError` for another
    string or for both arguments.
    """
    if moment_ms is not None:
        if start is not None:
            raise InvalidError(
                f"table {table.name}: start is {start!r}, but as_of also selects a snapshot; "
                "give only one of them"
            )
        try:
            return Start.at(table.metadata.snapshot_as_of(moment_ms))
        except NotFoundError:
            if table.metadata.earliest_snapshot_id() in (None, 1):
                return Start.at(None)
            raise
    start = "full" if start is None else start
    if isinstance(start, str):
        if start not in ("latest", "full"):
            raise InvalidError(
                f"table {table.name}: start is {start!r}; expected 'latest', 'full', or a "
                "snapshot id"
            )
        return Start.at(table.metadata.latest_snapshot(), is_full=start == "full")
    if start < 0:
        raise InvalidError(
            f"table {table.name}: start is {start}; give a snapshot id, or 0 for the beginning"
        )
    return Start.at(table.metadata.snapshot_or_changelog(start)) if start > 0 else Start(0)


def follow(
    table: PinnedTable, start: Start, mode: str, pace: Pace, consumer: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The changes snapshot by snapshot, see `Table.follow`.

    `start` is used if no position is stored.
    """
    check_mode(table, mode)
    table.view(table.schema)  # refuses a table that cannot be read, even without snapshots
    position = None if consumer is None else StoredPosition(table.live.metadata, consumer, mode)
    known = None if position is None else position.start()
    return _Follower(table, mode, pace, position).batches(known or start)


@dataclass(frozen=True)
class StoredPosition:
    """The stored position of a named consumer, in the file that protects snapshots from expiry."""

    metadata: TableMetadata
    consumer: str
    mode: str

    def start(self) -> Start | None:
        """The last emitted snapshot. None for a new consumer.

        Raises `DataError` for a damaged file.
        """
        (data,) = self.metadata.store.read_present([self._path])
        if data is None:
            return None
        known = Consumer.from_json(data, self.metadata.store.uri_of(self._path))
        return Start(known.last_snapshot, commit=known.told_commit)

    def keep(self, place: Start) -> None:
        """Store the position, the last emitted snapshot.

        This snapshot is kept, because the next difference needs it.
        """
        after_id = place.after_id
        first_needed = max(after_id, 1) if self.mode == "diff" else after_id + 1
        self.metadata.store.put(
            self._path, Consumer(first_needed, after_id, place.commit).to_json()
        )

    @property
    def _path(self) -> str:
        return paths.consumer_path(self.consumer)


@dataclass(frozen=True)
class _Follower:
    """Emits one snapshot after the other. The next one is read when the caller requests it.

    `table` is pinned to the time when the caller began to follow it, which may be long before the
    first row is requested.
    """

    table: PinnedTable
    mode: str
    pace: Pace
    position: StoredPosition | None

    def batches(self, start: Start) -> Iterator[pa.RecordBatch]:
        """The batches of each snapshot.

        Each is one read, so that it belongs to the same table as the previous one.
        """
        place, table = start, self.table
        place.check(table, max(place.after_id, table.metadata.latest_snapshot_id() or 0))
        if start.is_full:
            yield from self._batches(full_rows(table, place.after_id, self.mode), place.after_id)
        is_stopped = self.pace.stop.is_set
        if not is_stopped():
            self._keep(place)
        quiet_since = time.monotonic()
        while not is_stopped():
            newest = table.metadata.latest_snapshot_id() or 0
            place.check(table, newest)
            if place.after_id < newest:
                number = place.after_id + 1
                emitted = self._batches(changes_of(table, number - 1, number, self.mode), number)
                place = Start.at(table.metadata.snapshot_or_changelog(number))
                yield from emitted
                if is_stopped():
                    return
                self._keep(place)
                quiet_since = time.monotonic()
            elif table is not self.table and not self.pace.goes_on(time.monotonic() - quiet_since):
                return
            table = self.table.live.pinned()

    def _batches(self, changes: Changes, snapshot_id: int) -> Iterator[pa.RecordBatch]:
        metadata = {SNAPSHOT_ID: str(snapshot_id).encode()}
        for batch in changes.to_batches():
            if self.pace.stop.is_set():
                return
            yield batch.replace_schema_metadata(metadata)

    def _keep(self, place: Start) -> None:
        if self.position is not None:
            self.position.keep(place)


def _snapshot(table: StoredTable, snapshot_id: int) -> Snapshot | None:
    try:
        return table.metadata.snapshot(snapshot_id) if snapshot_id else None
    except NotFoundError:
        return None
