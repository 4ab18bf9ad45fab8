"""Commits: the only place where snapshots are created.

Data files come first, then manifests, then the atomic creation of the snapshot. In a folder, that
is the creation of `snapshot/snapshot-N`. This creation is the commit. Losing the race for an id is
an expected outcome: the loop reads the state again, decides again, and tries the next id.

These rules protect data. They are all here and in `decide`:

- Before every attempt, all snapshots since the last read are searched for the author's own commit,
  because a write may have succeeded although its call failed.
- An append fits on top of anything. But its sequence numbers must be above those of its buckets. So
  if another commit came between, its files are restamped.
- Rows made from stored rows conflict with every other commit to their buckets, unless these were
  only compactions, which do not change rows. The caller may be able to make the rows again.
- A commit that deletes files conflicts if one of them is gone. A compaction fits on top of any
  appends, and conflicts if another one changed the levels or deletion vectors of its buckets.
- An overwrite says which partitions it replaces, not which files: every attempt deletes the files
  that are live at that time.
- A commit to one kind of table fits on no snapshot of another kind. A conversion fits only on the
  snapshot that it was made from.
- A commit is based on one snapshot. If that is gone after the commit was created, the table was
  rolled back in the meantime, or others have continued until the commit's base expired. The commit
  is then removed and made again. Otherwise it would bring back what was rolled back, or be behind
  the latest snapshot.
- A commit belongs to the table that it was written for. If that was dropped in the meantime, and
  perhaps another one created under its name, nothing is committed.
- Nothing that a snapshot might reference is deleted before the outcome is certain. What no snapshot
  can reference is deleted after every outcome.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock
from typing import TypeAlias
from weakref import WeakValueDictionary

from keytide.base.dataclass import dataclass, replace
from keytide.base.text import counted
from keytide.commit.change import (
    Change,
    Conflict,
    Decision,
    MovedKeys,
    Restamp,
    current_progress,
    decide,
    moved_keys,
    new_data_files,
)
from keytide.commit.snapshot_files import (
    NewSnapshot,
    SnapshotBuilder,
    partition_changes,
    wall_clock_ms,
)
from keytide.errors import ConflictError, DataError, NotFoundError
from keytide.format import paths
from keytide.format.cache import METADATA
from keytide.format.index_files import IndexFile, IndexKey
from keytide.format.manifest_entry import FileKind, ManifestEntry, is_live
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Snapshot, is_based_on
from keytide.options import keys
from keytide.snapshot.authority import UnknownOutcomeError
from keytide.snapshot.dynamic_buckets import hash_files
from keytide.snapshot.lineage import CONVERTED
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    LiveFiles,
    files_of,
    has_same_rows,
    is_gone,
    load_dead_rows,
    load_live_files,
    retried,
    vector_files_by_bucket,
)
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.telemetry import span
from keytide.write.task import TaskResult

# -- commits ---------------------------------------------------------------------------------------


Restamper: TypeAlias = "Callable[[TableView, ManifestEntry, int], ManifestEntry]"
Redo: TypeAlias = "Callable[[LiveFiles], Change]"

_LOG = logging.getLogger("keytide.commit")

# Each further read finds a table that was rolled back since the previous one.
_LOOKS_MAX = 5


@dataclass(frozen=True)
class Committed:
    """A change that is part of the table: its snapshot, the live files, and the committed changes.

    `is_new` is false if the author had committed it before. `retries` is the number of attempts
    that lost against commits of other writers.
    """

    snapshot: Snapshot
    live: LiveFiles
    change: Change
    is_new: bool = True
    retries: int = 0


@dataclass(frozen=True)
class Committer:
    """Commits changes to one table. `restamp` rewrites a file with higher sequence numbers.

    Safe to share between threads. `clock_ms` and `wait` are parameters so that a run can be
    replayed.
    """

    metadata: TableMetadata
    view: TableView
    restamp: Restamper
    clock_ms: Callable[[], int] = wall_clock_ms
    wait: Callable[[float], None] = time.sleep
    settle: Callable[[], None] = lambda: None
    """Waits for files of the change that are still being written, and raises their errors."""
    begin_check: Callable[[Snapshot | None], Future[bool]] | None = None
    """Starts to check whether a snapshot is no longer the latest. Default: that of the metadata."""

    def publish(
        self, change: Change, known: LiveFiles, redo: Redo | None = None
    ) -> Committed | Conflict | None:
        """Make `change` the next snapshot: atomic, and durable on return.

        `known` is an earlier state of the table, up to which the author has made no such commit.
        After a conflict, `redo` makes the change again on top of the present live files. Without
        it, the conflict is the result. None: `redo` found nothing left to change. Whatever the
        outcome, files of the change that no snapshot references are deleted. Raises `DataError` if
        the store fails permanently. Then nothing is committed, unless the error says that the
        outcome is unknown.
        """
        attempt = _Attempt(self, change, known)
        with span("commit", self.view.name, kind=change.kind.value) as step:
            try:
                outcome = self._published(attempt, redo)
            except BaseException:
                if not attempt.in_doubt:  # otherwise a snapshot may reference its files
                    attempt.discard_all()
                raise
            if isinstance(outcome, Committed):
                entries = outcome.change.entries
                files, size = len(entries), sum(entry.file.file_size for entry in entries)
                step.facts(snapshot=outcome.snapshot.id)
                step.numbers(files=files, bytes=size, retries=outcome.retries)
                _LOG.info(
                    "table %s: snapshot %d: %s by %s: %d files, %d bytes, %d retries",
                    self.view.name, outcome.snapshot.id, outcome.change.kind.value,
                    outcome.change.author.user, files, size, outcome.retries,
                )  # fmt: skip
            return outcome

    def _published(self, attempt: _Attempt, redo: Redo | None) -> Committed | Conflict | None:
        options = self.view.options
        # At least a millisecond. Otherwise a table with waits of 0 would loop without a pause.
        limit_ms = max(1, options.commit_retry_wait_ms_min)
        tries = options.commit_retries_max + 1
        # The known state was just read, so the next read can run in parallel with the first
        # attempt.
        begin: Callable[[], Committed | Conflict | None] = attempt.run_beside_look
        for tries_left in reversed(range(tries)):
            with _turn(self.metadata.store.uri):
                outcome = begin()
            # Before each further attempt: an earlier one may have succeeded although its response
            # was lost.
            begin = attempt.look_and_run
            if isinstance(outcome, Committed):
                attempt.tidy_up(outcome)
                return replace(outcome, retries=tries - 1 - tries_left)
            if isinstance(outcome, Conflict):
                attempt.discard_all()
                _LOG.info("table %s: conflict: %s", self.view.name, outcome.reason)
                if redo is None or outcome.is_final or not tries_left:
                    return outcome
                if not attempt.begin_again(redo):
                    return None
            elif tries_left:
                # Waits double up to a limit, with jitter to separate competing writers.
                wait_ms = random.uniform(0, limit_ms)
                limit_ms = min(limit_ms * 2, max(1, options.commit_retry_wait_ms_max))
                message = "table %s: another commit came first; try %d of %d in %d ms"
                _LOG.info(message, self.view.name, tries - tries_left + 1, tries, wait_ms)
                self.wait(wait_ms / 1000)
        # A store may report that a name is taken because an earlier attempt of the same request
        # took it.
        if (committed := attempt.look()) is not None:
            attempt.tidy_up(committed)
            return replace(committed, retries=tries - 1)
        attempt.discard_all()
        reason = (
            f"other writers committed first; try again, or increase '{keys.COMMIT_MAX_RETRIES}'"
        )
        newest = self.metadata.latest_snapshot()
        if newest is not None:
            following = next(self.metadata.each_there([newest.id + 1]), newest)
            if following is not newest and not is_based_on(following, newest):
                reason = (
                    f"snapshot {following.id} is not part of the table: its writer died during a "
                    f"rollback. Table.rollback_to({newest.id}) keeps everything else and removes it"
                )
        return Conflict(f"the commit failed after {counted(tries, 'attempt')}, because {reason}")


_TURNS: WeakValueDictionary[str, RLock] = WeakValueDictionary()
# A thread whose store hangs holds up each attempt of the others only for a moment.
_TURN_S = 0.5


@contextmanager
def _turn(uri: str) -> Iterator[None]:
    """Threads of this process try to commit to a table one after the other.

    A lost race is a repetition and a pause. A compaction in the background could lose again and
    again against a writer that does not pause.
    """
    lock = _TURNS.setdefault(uri, RLock())
    is_own = lock.acquire(timeout=_TURN_S)
    try:
        yield
    finally:
        if is_own:
            lock.release()


class _Attempt:
    """One change on its way to a snapshot, over all attempts."""

    def __init__(self, committer: Committer, change: Change, known: LiveFiles) -> None:
        self._committer = committer
        self._metadata, self._view = committer.metadata, committer.view
        self._builder = SnapshotBuilder(self._metadata, self._view, committer.clock_ms)
        self._change = change
        self._live = known
        self._latest = known.snapshot
        self._tried: set[str | None] = set()
        self._tried_last: Snapshot | None = None
        self._settle = committer.settle
        self._begin_check = committer.begin_check or self._metadata.begin_check
        self.in_doubt = False
        """Whether a snapshot may have been created although the store did not confirm it."""
        self._superseded: list[str] = []
        self._described: list[str] = []

    def look(self) -> Committed | None:
        """Read the live files, and the author's own commit if there is one since the last read."""
        for _ in range(_LOOKS_MAX):
            own = retried(self._look)
            if own is not None:
                # One of the snapshots tried here: it was created although its call failed.
                return Committed(own, self._live, self._change, is_new=own.uuid in self._tried)
            if not self.in_doubt or self._has_not_landed():
                self.in_doubt = False
                if self._described and self._tried_last is not None:
                    # Delete the files of a snapshot whose id was taken by another writer.
                    with suppress(NotFoundError):
                        if self._metadata.snapshot(self._tried_last.id).uuid not in self._tried:
                            self._metadata.store.discard(self._described)
                            self._described = []
                return None
        tried_id = None if self._tried_last is None else self._tried_last.id
        raise self._unknown_outcome(tried_id, "snapshots go while they are looked at")

    def _look(self) -> Snapshot | None:
        """Read the live files. Returns the author's own commit."""
        self._latest = self._metadata.latest_snapshot()
        looked_at = 0 if self._live.snapshot is None else self._live.snapshot.id
        author, kind = self._change.author, self._change.kind
        own = author.own(self._metadata, self._latest, kind, looked_at)
        self._live = load_live_files(self._metadata, self._latest, self._live)
        return own

    def _has_not_landed(self) -> bool:
        """Whether the last attempted snapshot is not part of the table. If false, read again.

        Raises `DataError` if it has expired, because then its creator is unknown.
        """
        tried, latest = self._tried_last, self._latest
        if tried is None or latest is None:
            return True
        if latest.id < tried.id:
            if self._metadata.has(tried):
                # A rollback has removed what it was made from, so it is not part of the table.
                self._metadata.remove([tried.id])
            return True
        with suppress(NotFoundError):
            return self._metadata.snapshot(tried.id).uuid not in self._tried
        # Expiry removes the oldest snapshots, a rollback the latest.
        if tried.id < min(self._metadata.listed_snapshot_ids(), default=0):
            raise self._unknown_outcome(tried.id, "it expired before the commit could be confirmed")
        return False

    def _unknown_outcome(self, snapshot_id: int | None, reason: object) -> DataError:
        return DataError(
            f"table {self._view.name}: it is unknown whether commit {snapshot_id} succeeded: "
            f"{reason}; check whether a snapshot of user {self._change.author.user!r} exists, or "
            "repeat the write with the same commit user and identifier"
        )

    def run_beside_look(self) -> Committed | Conflict | None:
        """Try on top of the known state, if nobody has changed it.

        Otherwise like `look_and_run`.
        """
        look = self._begin_check(self._latest)
        if look.done() and look.result():
            return self.look_and_run()
        outcome = self._run(look.result)
        if isinstance(outcome, Committed):
            return outcome
        # The result of the read is known before anything is created, so this costs no attempt.
        is_outdated = look.result()
        return self.look_and_run() if outcome is None and is_outdated else outcome

    def look_and_run(self) -> Committed | Conflict | None:
        """Read the state, and try on top of it. None if another writer came first."""
        committed = self.look()
        if committed is None:
            self._refuse_another_table(partial(self._metadata.schema, self._view.schema.id))
        return committed or self._run(lambda: False)

    def _run(self, is_outdated: Callable[[], bool]) -> Committed | Conflict | None:
        try:
            return self._try(is_outdated)
        except (DataError, NotFoundError) as error:
            if not is_gone(error):
                raise
            # The known state may be gone because others have created newer snapshots.
            newest, seen = self._metadata.latest_snapshot_id(), self._latest
            if newest is not None and seen is not None and newest > seen.id:
                return None
            raise

    def _try(self, is_outdated: Callable[[], bool]) -> Committed | Conflict | None:
        if not self._change.converts and not self._metadata.has_kind_of(
            self._view.schema, self._latest
        ):
            return Conflict(CONVERTED)
        overtaken = self._overtaken_progress()
        if overtaken is not None:
            return overtaken
        present = self._dead_rows()
        decision = self._decide(present)
        if isinstance(decision, Conflict):
            return decision
        if isinstance(decision, Restamp):
            self._settle()
            self._restamp(decision)
        new = self._builder.build(self._change.onto(present), self._latest, self._live)
        self._described += new.files
        # Stored before the snapshot that names them: a reader of the snapshot finds all of them.
        self._metadata.store.put_all(new.files)
        self._settle()
        if is_outdated():
            self._metadata.store.discard(self._described)
            self._described = []
            return None
        self._tried.add(new.snapshot.uuid)
        self._tried_last = new.snapshot
        self.in_doubt = True
        if not self._create(new):
            return None
        hint = partial(self._metadata.hint_latest, new.snapshot.id)
        hinted = self._metadata.store.begin(hint)
        is_beside = self._is_beside_the_table(new)
        # Otherwise it would come after the next action of this process, for example a rollback.
        hinted.result()
        if is_beside:
            self._withdraw(new.snapshot)
            self._refuse_another_table(self._read_schema)
            return None
        self._metadata.cache_created(new.snapshot)
        for key, (value, size) in new.documents.items():
            METADATA.keep(key, value, size)
        for remember in new.indexes:
            remember()
        return Committed(
            new.snapshot, self._live.advance(new.snapshot, new.changed_entries), self._change
        )

    def _decide(self, present: Mapping[BucketId, DeadRows]) -> Decision:
        """Whether the change fits with the present state, in which these rows are dead."""
        if self._has_other_indexes():
            return Conflict(
                "another commit changed an index that this commit extends; run the operation "
                "again on the latest snapshot"
            )
        change, view, moved = self._change, self._view, list[MovedKeys]()
        # The change as one to the present live rows, if only compactions came since. These do not
        # change rows, except for rows that are hidden until they are compacted. An index says in
        # which files rows are. For it, and for another compaction, files matter.
        goes_by_rows = view.kind.keeps_versions and view.options.merges_on_read
        source = None if change.kind is CommitKind.COMPACT or not goes_by_rows else change.source
        if source is not None and has_same_rows(self._metadata, source, self._live):
            change = replace(change, source=self._live)
        # Partitions whose index of dynamic buckets differs from the one that it was based on.
        if view.has_dynamic_buckets and change.kind is CommitKind.APPEND:
            files = () if self._latest is None else self._metadata.index_files(self._latest)
            moved = moved_keys(view, change.result, change.indexed, hash_files(files))
        return decide(change, self._live, moved, present)

    def _refuse_another_table(self, read: Callable[[], TableSchema]) -> None:
        """Raise `ConflictError` if the table was dropped, whether or not another one was created.

        The files of the change may be gone, and its rows are not for another table.
        """
        if self._is_of_another_table(read):
            raise ConflictError(
                f"table {self._view.name}: it was dropped in the meantime, so nothing was "
                "committed; open the table again if another one was created under this name, and "
                "run the operation again"
            )

    def _is_of_another_table(self, read: Callable[[], TableSchema]) -> bool:
        """Whether the schema of the change is no schema of the table."""
        try:
            stored = read()
        except (DataError, NotFoundError) as error:
            return is_gone(error)
        own = self._view.schema
        return (stored.time_millis, stored.fields) != (own.time_millis, own.fields)

    def _read_schema(self) -> TableSchema:
        store, path = self._metadata.store, paths.schema_path(self._view.schema.id)
        return TableSchema.from_json(store.read(path), store.uri_of(path))

    def _overtaken_progress(self) -> Conflict | None:
        """The conflict if another writer has advanced the progress of the feed in the meantime."""
        progress = self._change.progress
        if progress is None:
            return None
        current = current_progress(self._metadata, self._latest, progress.before)
        # The first property that somebody else has set since then.
        changed = (name for name, value in progress.before.items() if current.get(name) != value)
        name = next(changed, None)
        if name is None:
            return None
        return Conflict(
            f"property '{name}' of the latest snapshot is {current.get(name, 'not there')}, but "
            f"this commit continues from {progress.before[name] or 'nothing'}: another process "
            "has loaded the table from the same source. This batch was not committed; run only "
            "one process per table",
            is_final=True,
        )

    def _is_beside_the_table(self, new: NewSnapshot) -> bool:
        """Whether the base of a created snapshot is not part of the table.

        Either the table was rolled back in the meantime, or others have continued so far that the
        snapshot with its id has expired.
        """
        seen = self._latest
        try:
            stays = None if seen is None else self._metadata.keeps(seen)
            if stays is not None:
                return not stays
            # Expiry removes the oldest snapshots. A rollback removes the latest, and leaves at
            # least one. A folder may change while it is listed, so only a second listing shows that
            # it is empty.
            ids = self._metadata.listed_snapshot_ids() or self._metadata.listed_snapshot_ids()
            if seen is not None and min(ids, default=seen.id) < seen.id:
                return True
            # If the snapshot itself is gone, it had become part of the table: it has expired, or
            # was dropped or renamed with the table.
            if new.snapshot.id not in ids:
                return False
            if self._is_of_another_table(self._read_schema):
                return True
            following = new.snapshot.id + 1
            if max(ids) < following:
                return False
            if following not in ids:
                return True
            # Whether the snapshot after this one is based on another one.
            metadata = self._metadata
            before = metadata.entries(metadata.base_manifests(metadata.snapshot(following)))
            live = files_of(new.snapshot, before.filter(is_live(before)))
            added = {entry.identity for entry in new.changed_entries if entry.kind is FileKind.ADD}
            deleted = {entry.identity for entry in new.changed_entries} - added
            return not live.present(added) and bool(added or live.present(deleted))
        except (DataError, NotFoundError):
            return False  # the commit is made, and this unlikely case cannot be checked

    def _withdraw(self, snapshot: Snapshot) -> None:
        """Remove a commit before others build on it. Raises `DataError` if it cannot be removed."""
        # A rollback may have removed it, and others may have committed under its id since then.
        if self._metadata.has(snapshot):
            self._metadata.remove([snapshot.id])
        self._tried.discard(snapshot.uuid)
        self.in_doubt = False
        self._metadata.store.discard(self._described)
        self._described = []
        # The hint was written in parallel with the check.
        newest_id = self._metadata.latest_snapshot_id()
        if newest_id is None:
            hint = paths.snapshot_hint_path(paths.Hint.LATEST)
            self._metadata.store.discard([hint])
        else:
            self._metadata.hint_latest(newest_id)

    def _has_other_indexes(self) -> bool:
        """Whether an index that the change adds to has been replaced."""
        change, replaces = self._change, self._change.replaces or (lambda _: False)
        based_on = {key: index.based_on for key, index in change.result.indexes.items()}
        if all(files is None or replaces(key[1]) for key, files in based_on.items()):
            return False
        known = () if self._latest is None else self._metadata.index_files(self._latest)
        there: dict[IndexKey, tuple[IndexFile, ...]] = {}
        for file in known:
            there[file.key] = (*there.get(file.key, ()), file)
        return any(
            files is not None and not replaces(key[1]) and there.get(key, ()) != files
            for key, files in based_on.items()
        )

    def _dead_rows(self) -> dict[BucketId, DeadRows]:
        """The present dead rows of the buckets whose deletion vectors the change is based on.

        They are read only if they decide about the conflict.
        """
        dead = self._change.result.dead
        if not dead:
            return {}
        known = () if self._latest is None else self._metadata.index_files(self._latest)
        by_bucket, present = vector_files_by_bucket(known), dict[BucketId, DeadRows]()
        for bucket, before in dead.items():
            files = by_bucket.get(bucket, ())
            if before.observed is None or before.stored == files:
                present[bucket] = DeadRows(files)
            else:
                present[bucket] = load_dead_rows(self._metadata.store, files, self._view.name)
        return present

    def begin_again(self, redo: Redo) -> bool:
        """Make the change again, because it did not fit.

        False if there is nothing left to change.
        """
        self._superseded, self._described = [], []
        # Those files are deleted. If `redo` fails, there is nothing of them left to clean up.
        self._change = replace(self._change, result=TaskResult(()))
        self._change = redo(self._live)
        progress = self._change.progress
        tells = progress is not None and progress.stands_alone
        return tells or bool(self._change.changed(self._live))

    def tidy_up(self, committed: Committed) -> None:
        """Write the hint, and delete what the commit does not reference."""
        if committed.is_new:
            self._metadata.store.discard(self._superseded)
        else:
            self.discard_all()

    def discard_all(self) -> None:
        """Delete the files of this change. No snapshot references any of them."""
        with suppress(DataError):
            # Otherwise files that are still being written would appear after the deletion.
            self._settle()
        change = self._change
        made = [*new_data_files(change.entries), *change.changelog]
        files = [path for entry in made for path in self._view.stored_paths(entry)]
        self._metadata.store.discard([*self._superseded, *self._described, *files])

    def _restamp(self, decision: Restamp) -> None:
        """Give files higher numbers. The previous files belong to nobody from then on."""
        entries = list(self._change.entries)
        try:
            for place, number in decision.numbers.items():
                old = entries[place]
                entries[place] = self._committer.restamp(self._view, old, number)
                self._superseded += self._view.stored_paths(old)
        finally:
            # After an error too: this change must clean up the files that were created.
            result = replace(self._change.result, entries=tuple(entries))
            self._change = replace(self._change, result=result)

    def _create(self, new: NewSnapshot) -> bool:
        try:
            return self._metadata.create(
                new.snapshot, partial(partition_changes, self._view, new.changed_entries)
            )
        except UnknownOutcomeError as error:
            raise self._unknown_outcome(new.snapshot.id, error) from error.__cause__
