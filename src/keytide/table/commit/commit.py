"""Commits: the one place where a snapshot is made.

Files first, then manifests, then the atomic creation of `snapshot/snapshot-N`: that creation is
the commit (Paimon format, making a commit atomic). Losing the race for an id is an expected
outcome: the loop re-reads, rebases and tries the next id.

Rules that protect data, all here:

- A write begins with one look (`Start`): the files that were live, and the author's own commit
  among the snapshots up to there. Before every attempt the snapshots that appeared since are
  searched too, for a write may have landed although its call failed. No snapshot is left out.
- An append fits on top of anything. Its sequence numbers must be above those of its buckets,
  though, so where another commit came between, its files are stamped anew.
- Rows made from stored rows conflict with whatever another commit did to their buckets.
- A commit that deletes files fails with a conflict when one of them is gone.
- An overwrite says which partitions it replaces, not which files: every try deletes those that
  are live by then.
- Nothing that a snapshot might name is deleted before the outcome is certain.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from keytide.errors import ConflictError, DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.json_document import INTEGER
from keytide.format.manifest import (
    FileKind,
    ManifestEntry,
    ManifestFileMeta,
    encode_manifest,
    encode_manifest_list,
    merge_entries,
    summarize,
)
from keytide.format.paths import FileNames, MetadataKind
from keytide.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from keytide.options import keys
from keytide.table.state.live_files import NO_FILES, LiveFiles, load_live_files
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.view import TableView

__all__ = ["Author", "Change", "Committed", "Committer", "Start", "begin"]

Restamp: TypeAlias = "Callable[[TableView, ManifestEntry, int], ManifestEntry]"

_WRITER_VERSION = "keytide"


@dataclass(frozen=True)
class Author:
    """Who commits, and which of their commits it is.

    The pair makes a commit idempotent: made twice, it changes nothing the second time. Identifiers
    of one user only grow.
    """

    user: str
    identifier: int = BATCH_COMMIT_IDENTIFIER

    @classmethod
    def given(cls, user: str | None, identifier: int | None) -> Author | None:
        """The author that a caller names, or None; `InvalidError` for what cannot be stored."""
        if user is None:
            if identifier is not None:
                raise InvalidError(
                    f"commit_identifier is {identifier!r} without a commit_user; name the user "
                    f"too, or leave both out"
                )
            return None
        if identifier is None:
            raise InvalidError(
                f"commit_user is {user!r} without a commit_identifier, so that its second write "
                f"would be taken for the first one made again; number the user's writes, or leave "
                f"both out"
            )
        if not isinstance(user, str) or not user or not _is_utf8(user):
            raise InvalidError(f"commit_user is {user!r}; give a text that is not empty")
        if not INTEGER.fits(identifier):
            raise InvalidError(f"commit_identifier is {identifier!r}; give {INTEGER.name}")
        return cls(user, identifier)

    @classmethod
    def fresh(cls) -> Author:
        """An author who has never committed."""
        return cls(str(uuid.uuid4()))

    def own(
        self, metadata: TableMetadata, newest: Snapshot | None, kind: CommitKind, after_id: int = 0
    ) -> Snapshot | None:
        """The author's commit of this or a later identifier, in the snapshots after `after_id`.

        Goes back from `newest` and stops at the user's newest commit, or where snapshots expired.
        """
        for snapshot_id in range(0 if newest is None else newest.id, after_id, -1):
            try:
                snapshot = metadata.snapshot(snapshot_id)
            except NotFoundError:
                return None
            if snapshot.commit_user == self.user and snapshot.commit_kind is kind:
                return snapshot if snapshot.commit_identifier >= self.identifier else None
        return None


@dataclass(frozen=True)
class Start:
    """Where a write begins: one snapshot for the files on which it builds and for the search for
    the author's own commit, `done`, so that none goes unnoticed between the two."""

    author: Author
    live: LiveFiles
    done: Snapshot | None = None


def begin(metadata: TableMetadata, live: LiveFiles, author: Author | None) -> Start:
    """Begin an append on top of some live files, as an author or, for None, as a fresh one."""
    if author is None:
        return Start(Author.fresh(), live)
    return Start(author, live, author.own(metadata, live.snapshot, CommitKind.APPEND))


@dataclass(frozen=True)
class Change:
    """What a commit is to change, and who asks for it."""

    entries: tuple[ManifestEntry, ...]
    author: Author
    kind: CommitKind = CommitKind.APPEND
    operation: str = "WRITE"
    replaces: Callable[[bytes], bool] | None = None
    """Which partitions lose all files that they have when the commit is made; None for none."""
    is_derived: bool = False
    """Whether the rows were made from stored ones: then another commit to one of their buckets is
    a conflict, for they would undo it."""


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit: its snapshot, the files then live, and whether it was new."""

    snapshot: Snapshot
    live: LiveFiles
    is_new: bool = True


class Committer:
    """Commits changes to one table.

    Safe to share between threads. `clock_ms` and `wait` come in so that a run can be replayed.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        view: TableView,
        restamp: Restamp,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._metadata = metadata
        self._view = view
        self._restamp = restamp
        self._clock_ms = clock_ms
        self._wait = wait

    def commit(self, change: Change, known: LiveFiles = NO_FILES) -> Committed:
        """Make `change` the next snapshot; atomic, durable on return.

        `known` is an earlier state of the table, up to which the author has made no such commit.
        When the author's commit is found instead, made by another call, the files of this one are
        deleted. Raises `ConflictError` when a file to delete is gone or too many races were lost,
        `DataError` when the store fails for good. After an error nothing is committed, unless the
        error says that the outcome is unknown.
        """
        attempt = _Attempt(self, change, known)
        options = self._view.options
        waits = _backoff(options.commit_retry_wait_ms_min, options.commit_retry_wait_ms_max)
        for _ in range(options.commit_retries_max + 1):
            try:
                committed = attempt.run()
            except (Exception, KeyboardInterrupt):
                attempt.abandon()
                raise
            if committed is not None:
                attempt.tidy_up(committed)
                return committed
            self._wait(next(waits) / 1000)
        attempt.discard_all()
        raise ConflictError(
            f"table {self._view.name}: {options.commit_retries_max + 1} tries to commit lost the "
            f"race against other writers; try again, or raise '{keys.COMMIT_MAX_RETRIES}'"
        )


class _Attempt:
    """One change on its way to a snapshot, over as many tries as it takes."""

    def __init__(self, committer: Committer, change: Change, known: LiveFiles) -> None:
        self._metadata = committer._metadata
        self._view = committer._view
        self._restamp = committer._restamp
        self._clock_ms = committer._clock_ms
        self._change = change
        self._known = known
        self._names = FileNames()
        self._start = known
        self._checked_id = known.snapshot.id if known.snapshot is not None else 0
        self._tried: set[str | None] = set()
        self._superseded: list[str] = []
        self._metadata_files: list[str] = []

    def run(self) -> Committed | None:
        """Try once; None when another writer took the snapshot id."""
        latest = self._metadata.latest_snapshot()
        own = self._own_commit(latest)
        live = load_live_files(self._metadata, latest, self._known)
        self._known = live
        if own is not None:
            return Committed(own, live, is_new=own.uuid in self._tried)
        self._tried.clear()  # they lost: no snapshot names what they wrote
        self._check(live)
        if self._change.is_derived:
            self._check_sources(live)
        self._rebase(live)
        snapshot, files, changed = self._build(latest, live)
        self._metadata_files += files
        self._metadata.store.put_all(files)
        self._tried.add(snapshot.uuid)
        if not self._create(snapshot):
            return None
        return Committed(snapshot, live.advance(snapshot, changed))

    def tidy_up(self, committed: Committed) -> None:
        """Hint at what was committed and delete what it does not name."""
        if committed.is_new:
            self._metadata.hint_latest(committed.snapshot.id)
            self._delete(self._superseded)
        else:
            self.discard_all()

    def abandon(self) -> None:
        """Delete what this change wrote, unless a snapshot that was tried may name it.

        A full disk gets its room back.
        """
        if not self._tried:
            self.discard_all()

    def discard_all(self) -> None:
        """Delete what this change wrote: no snapshot names any of it."""
        entries = [e for e in self._change.entries if e.kind is FileKind.ADD]
        self._delete([*self._superseded, *self._metadata_files, *map(self._path, entries)])

    def _delete(self, files: Sequence[str]) -> None:
        try:
            self._metadata.store.delete(files)
        except DataError:
            return  # left over, harmless: orphan cleaning finds them

    def _path(self, entry: ManifestEntry) -> str:
        return self._view.file_path(entry)

    def _own_commit(self, latest: Snapshot | None) -> Snapshot | None:
        """Our own commit among the snapshots that appeared since the last look."""
        author, kind = self._change.author, self._change.kind
        own = author.own(self._metadata, latest, kind, self._checked_id)
        self._checked_id = 0 if latest is None else latest.id
        return own

    def _check(self, live: LiveFiles) -> None:
        for entry in self._change.entries:
            if entry.kind is FileKind.DELETE and entry.identity not in live.by_identity:
                raise ConflictError(
                    f"table {self._view.name}: file {entry.file.file_name} of bucket "
                    f"{entry.bucket}, which this commit replaces, was replaced by another commit; "
                    f"redo the work on the newest snapshot"
                )
            found = live.partition_buckets.get(entry.partition, entry.total_buckets)
            if self._is_replaced(entry.partition):
                continue  # laid out anew
            if entry.kind is FileKind.ADD and found != entry.total_buckets:
                raise ConflictError(
                    f"table {self._view.name}: Try to write partition/table with a new bucket num "
                    f"{entry.total_buckets}, but the previous bucket num is {found}; another "
                    f"writer laid the partition out meanwhile. Redo the write"
                )

    def _check_sources(self, live: LiveFiles) -> None:
        """Rows are made from stored rows of the same keys, so from those of the same buckets."""
        sources = {(entry.partition, entry.bucket) for entry in self._change.entries}
        before, now = self._start.by_identity, live.by_identity
        changed = [(before.get(one) or now[one]) for one in before.keys() ^ now.keys()]
        if any((entry.partition, entry.bucket) in sources for entry in changed):
            raise ConflictError(
                f"table {self._view.name}: another writer changed rows of a bucket from which this "
                f"commit's rows were made; read them again and redo the work"
            )

    def _is_replaced(self, partition: bytes) -> bool:
        return self._change.replaces is not None and self._change.replaces(partition)

    def _replaced(self, live: LiveFiles) -> tuple[ManifestEntry, ...]:
        """Entries that delete what is live in the partitions to replace."""
        if self._change.replaces is None:
            return ()
        partitions = {entry.partition for entry in live.entries}
        gone = {partition for partition in partitions if self._is_replaced(partition)}
        return tuple(
            replace(entry, kind=FileKind.DELETE)
            for entry in live.entries
            if entry.partition in gone
        )

    def _rebase(self, live: LiveFiles) -> None:
        """Stamp appended files anew whose buckets other commits reached meanwhile."""
        if self._change.kind is not CommitKind.APPEND or self._view.options.sequence_auto_padding:
            return
        shifts = self._shifts(live)
        if not shifts:
            return
        entries = []
        for entry in self._change.entries:
            shift = shifts.get((entry.partition, entry.bucket), 0)
            if shift:
                self._superseded.append(self._path(entry))
                number = entry.file.min_sequence_number + shift
                entry = self._restamp(self._view, entry, number)
            entries.append(entry)
        self._change = replace(self._change, entries=tuple(entries))

    def _shifts(self, live: LiveFiles) -> dict[tuple[bytes, int], int]:
        lowest: dict[tuple[bytes, int], int] = {}
        for entry in self._change.entries:
            key = (entry.partition, entry.bucket)
            number = entry.file.min_sequence_number
            lowest[key] = min(lowest.get(key, number), number)
        needed = {key: live.bucket(key).max_sequence_number + 1 for key in lowest}
        return {key: needed[key] - low for key, low in lowest.items() if needed[key] > low}

    # -- building the snapshot's files ----------------------------------------------------------

    def _build(
        self, latest: Snapshot | None, live: LiveFiles
    ) -> tuple[Snapshot, dict[str, bytes], tuple[ManifestEntry, ...]]:
        files: dict[str, bytes] = {}
        entries = (*self._replaced(live), *self._change.entries)
        delta = [self._manifest(entries, files)] if entries else []
        base = self._base(latest, files)
        base_name, base_size = self._manifest_list(base, files)
        delta_name, delta_size = self._manifest_list(delta, files)
        added = sum(e.file.row_count for e in entries if e.kind is FileKind.ADD)
        removed = sum(e.file.row_count for e in entries if e.kind is FileKind.DELETE)
        snapshot = Snapshot(
            uuid=paths.new_uuid(),
            id=1 if latest is None else latest.id + 1,
            schema_id=self._view.schema.id
            if latest is None
            else max(latest.schema_id, self._view.schema.id),
            base_manifest_list=base_name,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_name,
            delta_manifest_list_size=delta_size,
            index_manifest=None if latest is None else latest.index_manifest,
            commit_user=self._change.author.user,
            writer_version=_WRITER_VERSION,
            commit_identifier=self._change.author.identifier,
            commit_kind=self._change.kind,
            time_millis=self._time_millis(latest),
            total_record_count=(latest.total_record_count if latest else 0) + added - removed,
            delta_record_count=added - removed,
            watermark=None if latest is None else latest.watermark,
            statistics=self._carried_statistics(latest),
            properties=None if latest is None else latest.properties,
            next_row_id=0 if latest is None else latest.next_row_id or 0,
            operation=self._change.operation,
        )
        return snapshot, files, entries

    def _time_millis(self, latest: Snapshot | None) -> int:
        # Time travel searches by time, so times must not fall even where clocks do.
        now = self._clock_ms()
        return now if latest is None else max(now, latest.time_millis)

    def _carried_statistics(self, latest: Snapshot | None) -> str | None:
        if latest is None or latest.schema_id != self._view.schema.id:
            return None
        return latest.statistics

    def _base(self, latest: Snapshot | None, files: dict[str, bytes]) -> list[ManifestFileMeta]:
        if latest is None:
            return []
        manifests = [
            *self._metadata.base_manifests(latest),
            *self._metadata.delta_manifests(latest),
        ]
        for start, stop in _merges(manifests, self._view.options.manifest_merge_min_count):
            merged = merge_entries(self._metadata.entries(manifests[start:stop]))
            manifests[start:stop] = [self._manifest(merged, files)] if merged else []
        return manifests

    def _manifest(
        self, entries: Sequence[ManifestEntry], files: dict[str, bytes]
    ) -> ManifestFileMeta:
        name = self._names.metadata(MetadataKind.MANIFEST)
        data = encode_manifest(entries)
        files[paths.manifest_path(name)] = data
        types = [f.type for f in self._view.schema.partition_fields()]
        return summarize(entries, name, len(data), self._view.schema.id, types)

    def _manifest_list(
        self, manifests: Sequence[ManifestFileMeta], files: dict[str, bytes]
    ) -> tuple[str, int]:
        name = self._names.metadata(MetadataKind.MANIFEST_LIST)
        data = encode_manifest_list(manifests)
        files[paths.manifest_path(name)] = data
        return name, len(data)

    def _create(self, snapshot: Snapshot) -> bool:
        """Create the snapshot file; after an error, read it back to learn the outcome."""
        path = paths.snapshot_path(snapshot.id)
        data = snapshot.to_json()
        store = self._metadata.store
        try:
            return store.create(path, data)
        except DataError as error:
            try:
                return store.read(path) == data
            except DataError as unread:
                if isinstance(unread.__cause__, FileNotFoundError):
                    raise error from error.__cause__
                raise DataError(
                    f"table {self._view.name}: the outcome of commit {snapshot.id} is unknown: "
                    f"{error}; look for a snapshot of user {snapshot.commit_user!r}, or write "
                    f"again with the same commit user and identifier"
                ) from error


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _merges(manifests: Sequence[ManifestFileMeta], count_min: int) -> list[tuple[int, int]]:
    """Which trailing manifests to merge into one: `count_min` or more of one size class.

    Classes grow by the factor `count_min`: a merge gathers the newest manifests that are smaller
    than their class's limit, and may make the next class full in turn. So an entry is rewritten
    only logarithmically often, and the list of manifests stays short.
    """
    sizes = [m.num_added_files + m.num_deleted_files for m in manifests]
    start, limit = len(manifests), count_min
    while start > 0:
        newer = start
        while start > 0 and sizes[start - 1] < limit:
            start -= 1
        if newer - start >= count_min:
            return [(start, len(manifests))]
        limit *= count_min
    return []


def _backoff(wait_ms_min: int, wait_ms_max: int) -> Iterator[float]:
    """Waits in milliseconds that double up to a limit, with jitter so that racers part."""
    limit = max(1, wait_ms_min)
    while True:
        yield random.uniform(0, limit)
        limit = min(limit * 2, max(1, wait_ms_max))
