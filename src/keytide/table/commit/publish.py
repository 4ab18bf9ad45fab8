"""Commits: the one place where a snapshot is made.

Files first, then manifests, then the atomic creation of the snapshot where the table commits, which
in a folder is that of `snapshot/snapshot-N`: that creation is the commit. Losing the race for an id
is an expected outcome: the loop re-reads, decides anew and tries the next id.

Rules that protect data, all here and in `decide`:

- Before every attempt the snapshots that appeared since the last look are searched for the
  author's own commit, for a write may have landed although its call failed. None is left out.
- An append fits on top of anything. Its sequence numbers must be above those of its buckets,
  though, so where another commit came between, its files are stamped anew.
- Rows made from stored rows conflict with whatever another commit did to their buckets, unless all
  of these were compactions, which leave rows what they are. Whoever can make them again is asked.
- A commit that deletes files conflicts when one of them is gone. A compaction fits on top of any
  appends, and conflicts where another one changed the levels or deletion vectors of its buckets.
- An overwrite says which partitions it replaces, not which files: every try deletes those that
  are live by then.
- A commit of one kind of table fits on no snapshot of another kind, and a conversion from one to
  the other only on the snapshot of which it was made.
- A commit stands on the snapshot that it was made on. Where that is gone once the commit is there,
  the table was rolled back meanwhile, or others have gone on until what had the commit's id
  expired: the commit is taken back and made anew, or it would bring back what was rolled back, or
  lie behind what is newest.
- Nothing that a snapshot might name is deleted before the outcome is certain; whatever no
  snapshot can name is, after every outcome.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from keytide.errors import DataError, NotFoundError
from keytide.format.cache import METADATA
from keytide.format.entry_columns import is_live
from keytide.format.index_manifest import IndexFile, IndexKey
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.options import keys
from keytide.plural import counted
from keytide.table.commit.change import Change, Conflict, Restamp, decide, made_files
from keytide.table.commit.moved_keys import MovedKeys, moved_keys
from keytide.table.commit.partition_changes import partition_changes
from keytide.table.commit.progress import told_progress
from keytide.table.commit.snapshot_files import NewSnapshot, SnapshotBuilder, wall_clock_ms
from keytide.table.state.commits import UnknownOutcomeError
from keytide.table.state.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.table.state.dynamic_buckets import hash_files
from keytide.table.state.in_force import CONVERTED
from keytide.table.state.live_files import (
    BucketId,
    LiveFiles,
    files_of,
    has_same_rows,
    load_live_files,
)
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.retries import again, is_gone
from keytide.table.state.view import TableView
from keytide.table.write.task import Written
from keytide.telemetry import Step, span

__all__ = ["Committed", "Committer"]

Restamper: TypeAlias = "Callable[[TableView, ManifestEntry, int], ManifestEntry]"
Redo: TypeAlias = "Callable[[LiveFiles], Change]"

_LOG = logging.getLogger("keytide.commit")

# Each further look sees a table that was rolled back since the one before.
_LOOKS_MAX = 5


@dataclass(frozen=True)
class Committed:
    """A change that is part of the table: its snapshot, the files then live, and what it changed.

    `is_new` is false where the author had committed it before. `retries` counts the tries that
    other writers' commits came before.
    """

    snapshot: Snapshot
    live: LiveFiles
    change: Change
    is_new: bool = True
    retries: int = 0


@dataclass(frozen=True)
class Committer:
    """Commits changes to one table; `restamp` writes a file again with higher sequence numbers.

    Safe to share between threads. `clock_ms` and `wait` come in so that a run can be replayed.
    """

    metadata: TableMetadata
    view: TableView
    restamp: Restamper
    clock_ms: Callable[[], int] = wall_clock_ms
    wait: Callable[[float], None] = time.sleep
    settle: Callable[[], None] = lambda: None
    """What waits for files of the change that are still under way, and raises what failed."""
    begin_check: Callable[[Snapshot | None], Future[bool]] | None = None
    """What begins to see whether a snapshot is not the newest any more; None for the metadata's."""

    def publish(
        self, change: Change, known: LiveFiles, redo: Redo | None = None
    ) -> Committed | Conflict | None:
        """Make `change` the next snapshot; atomic, durable on return.

        `known` is an earlier state of the table, up to which the author has made no such commit.
        After a conflict `redo` makes the change again on top of the files that are live by then;
        without it the conflict is the answer. None: made again, there was nothing left to change.
        Whatever the outcome, files of the change that no snapshot names are deleted. Raises
        `DataError` when the store fails for good; then nothing is committed, unless the error says
        that the outcome is unknown.
        """
        attempt = _Attempt(self, change, known)
        with span("commit", self.view.name, kind=change.kind.value) as step:
            try:
                outcome = self._published(attempt, redo)
            except BaseException:
                attempt.abandon()
                raise
            if isinstance(outcome, Committed):
                self._tell(outcome, step)
            return outcome

    def _published(self, attempt: _Attempt, redo: Redo | None) -> Committed | Conflict | None:
        options = self.view.options
        waits = _backoff(options.commit_retry_wait_ms_min, options.commit_retry_wait_ms_max)
        tries = options.commit_retries_max + 1
        # What is known was seen just now, so a look may go beside the first try.
        begin: Callable[[], Committed | Conflict | None] = attempt.run_beside_look
        for tries_left in reversed(range(tries)):
            outcome = begin()
            # Before each other try: an earlier one may have landed although its answer was lost.
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
                wait_ms = next(waits)
                message = "table %s: another commit came first; try %d of %d in %d ms"
                _LOG.info(message, self.view.name, tries - tries_left + 1, tries, wait_ms)
                self.wait(wait_ms / 1000)
        # A store may say that a name is taken where an earlier request of its own took it.
        if (committed := attempt.look()) is not None:
            attempt.tidy_up(committed)
            return replace(committed, retries=tries - 1)
        attempt.discard_all()
        return Conflict(
            f"{counted(tries, 'attempt')} to commit lost the race against other writers; try "
            f"again, or raise '{keys.COMMIT_MAX_RETRIES}'"
        )

    def _tell(self, committed: Committed, step: Step) -> None:
        entries = committed.change.entries
        files, size = len(entries), sum(entry.file.file_size for entry in entries)
        step.facts(snapshot=committed.snapshot.id)
        step.numbers(files=files, bytes=size, retries=committed.retries)
        _LOG.info(
            "table %s: snapshot %d: %s by %s: %d files, %d bytes, %d retries",
            self.view.name, committed.snapshot.id, committed.change.kind.value,
            committed.change.author.user, files, size, committed.retries,
        )  # fmt: skip


class _Attempt:
    """One change on its way to a snapshot, over as many tries as it takes."""

    def __init__(self, committer: Committer, change: Change, known: LiveFiles) -> None:
        self._committer = committer
        self._metadata, self._view = committer.metadata, committer.view
        self._builder = SnapshotBuilder(self._metadata, self._view, committer.clock_ms)
        self._change = change
        self._live = known
        self._latest = known.snapshot
        self._tried: set[str | None] = set()
        self._tried_id: int | None = None
        self._settle = committer.settle
        self._begin_check = committer.begin_check or self._metadata.begin_check
        self._in_doubt = False
        """Whether a snapshot that was tried may be there although the store did not say so."""
        self._superseded: list[str] = []
        self._described: list[str] = []

    def look(self) -> Committed | None:
        """See what is live, and the author's own commit if there is one since the last look."""
        for _ in range(_LOOKS_MAX):
            own = again(self._look)
            if own is not None:
                # One of the snapshots tried here: it landed although its call failed.
                return Committed(own, self._live, self._change, is_new=own.uuid in self._tried)
            if not self._in_doubt or self._has_not_landed():
                self._in_doubt = False
                self._discard_lost()
                return None
        raise self._unknown(self._tried_id, "snapshots go while they are looked at")

    def _look(self) -> Snapshot | None:
        """See what is live; gives the author's own commit."""
        self._latest = self._metadata.latest_snapshot()
        looked_at = 0 if self._live.snapshot is None else self._live.snapshot.id
        author, kind = self._change.author, self._change.kind
        own = author.own(self._metadata, self._latest, kind, looked_at)
        self._live = load_live_files(self._metadata, self._latest, self._live)
        return own

    def _has_not_landed(self) -> bool:
        """Whether the snapshot that was tried last is no part of the table; else look again.

        Raises `DataError` where it expired, whoever made it.
        """
        tried, latest = self._tried_id, self._latest
        if tried is None or latest is None or latest.id < tried:
            return True
        with suppress(NotFoundError):
            return self._metadata.snapshot(tried).uuid not in self._tried
        # Expiry takes the oldest snapshots, a rollback the newest.
        if tried < min(self._metadata.listed_snapshot_ids(), default=0):
            raise self._unknown(tried, "it expired before its maker could be told")
        return False

    def _unknown(self, snapshot_id: int | None, reason: object) -> DataError:
        return DataError(
            f"table {self._view.name}: the outcome of commit {snapshot_id} is unknown: {reason}; "
            f"look for a snapshot of user {self._change.author.user!r}, or write again with the "
            f"same commit user and identifier"
        )

    def _discard_lost(self) -> None:
        """Delete what described a snapshot whose id somebody else was seen to have taken."""
        if not self._described or self._tried_id is None:
            return
        with suppress(NotFoundError):
            if self._metadata.snapshot(self._tried_id).uuid not in self._tried:
                self._metadata.store.discard(self._described)
                self._described = []

    def run_beside_look(self) -> Committed | Conflict | None:
        """Try on top of what is known, which nobody has to have changed; else as `look_and_run`."""
        look = self._begin_check(self._latest)
        if look.done() and look.result():
            return self.look_and_run()
        outcome = self._run(look.result)
        if isinstance(outcome, Committed):
            return outcome
        # What the look says is known before anything is created: it costs none of the tries.
        is_outdated = look.result()
        return self.look_and_run() if outcome is None and is_outdated else outcome

    def look_and_run(self) -> Committed | Conflict | None:
        """Look, and try on top of what was seen; None when another writer came first."""
        return self.look() or self._run(lambda: False)

    def _run(self, is_outdated: Callable[[], bool]) -> Committed | Conflict | None:
        try:
            return self._try(is_outdated)
        except (DataError, NotFoundError) as error:
            if is_gone(error) and self._has_expired():
                return None
            raise

    def _has_expired(self) -> bool:
        """Whether what was seen may be gone because others have made newer snapshots."""
        newest, seen = self._metadata.latest_snapshot_id(), self._latest
        return newest is not None and seen is not None and newest > seen.id

    def _try(self, is_outdated: Callable[[], bool]) -> Committed | Conflict | None:
        if not self._change.converts and not self._metadata.has_kind_of(
            self._view.schema, self._latest
        ):
            return Conflict(CONVERTED)
        overtaken = self._overtaken_progress()
        if overtaken is not None:
            return overtaken
        present = self._dead_rows()
        if self._has_other_indexes():
            return Conflict(
                "another commit changed an index to which this one adds; redo the work on the "
                "newest snapshot"
            )
        decision = decide(self._beyond_compactions(), self._live, self._moved(), present)
        if isinstance(decision, Conflict):
            return decision
        if isinstance(decision, Restamp):
            self._settle()
            self._restamp(decision)
        new = self._builder.build(self._change.onto(present), self._latest, self._live)
        self._described += new.files
        # Stored before the snapshot that names them: whoever finds the snapshot finds all of it.
        self._metadata.store.put_all(new.files)
        self._settle()
        if is_outdated():
            self._metadata.store.discard(self._described)
            self._described = []
            return None
        self._tried.add(new.snapshot.uuid)
        self._tried_id = new.snapshot.id
        self._in_doubt = True
        if not self._create(new):
            return None
        hint = partial(self._metadata.hint_latest, new.snapshot.id)
        hinted = self._metadata.store.begin(hint)
        is_beside = self._is_beside_the_table(new)
        hinted.result()  # or it would come after what this process does next, a rollback perhaps
        if is_beside:
            self._withdraw(new.snapshot)
            return None
        self._metadata.made(new.snapshot)
        METADATA.keep_all(new.documents)
        for remember in new.indexes:
            remember()
        return Committed(new.snapshot, self._live.advance(new.snapshot, new.changed), self._change)

    def _overtaken_progress(self) -> Conflict | None:
        """What stands against a feed whose progress somebody else has told of meanwhile."""
        progress = self._change.progress
        if progress is None:
            return None
        told = told_progress(self._metadata, self._latest, progress.before)
        name = progress.differing(told)
        if name is None:
            return None
        return Conflict(
            f"property '{name}' of the newest snapshot is {told.get(name, 'not there')}, and this "
            f"commit goes on from {progress.before[name] or 'nothing'}: another process has fed "
            f"the table from there. Nothing of this batch was committed; have one process feed it",
            is_final=True,
        )

    def _beyond_compactions(self) -> Change:
        """The change, as one of the rows that are live where compactions alone came since.

        They leave the rows what they are, unless these are hidden until one has seen them. An index
        says in which files rows are, and another compaction is no matter of rows.
        """
        change, view = self._change, self._view
        goes_by_rows = view.kind.keeps_versions and view.options.merges_on_read
        if change.source is None or change.kind is CommitKind.COMPACT or not goes_by_rows:
            return change
        is_same = has_same_rows(self._metadata, change.source, self._live)
        return replace(change, source=self._live) if is_same else change

    def _is_beside_the_table(self, new: NewSnapshot) -> bool:
        """Whether a snapshot that was created stands on one that is no part of the table.

        The table was rolled back meanwhile; or others have gone on so far that what had its id has
        expired.
        """
        seen = self._latest
        try:
            with suppress(NotFoundError):
                if seen is not None:
                    return self._metadata.snapshot(seen.id) != seen
            # Expiry takes the oldest snapshots. A rollback takes the newest, and leaves one. A
            # folder may be changed while it is listed: only a second look shows that it is empty.
            ids = self._metadata.listed_snapshot_ids() or self._metadata.listed_snapshot_ids()
            if seen is not None and min(ids, default=seen.id) < seen.id:
                return True
            # One that expired itself had become part of the table.
            is_there = new.snapshot.id in ids
            return is_there and max(ids) > new.snapshot.id and not self._is_followed(new, ids)
        except (DataError, NotFoundError):
            return False  # the commit is made, and what is unlikely anyway cannot be told

    def _is_followed(self, new: NewSnapshot, ids: Collection[int]) -> bool:
        """Whether the snapshot after a new one was made on top of it, and not of another one."""
        following = new.snapshot.id + 1
        if following not in ids:
            return False
        metadata = self._metadata
        before = metadata.entries(metadata.base_manifests(metadata.snapshot(following)))
        live = files_of(new.snapshot, before.filter(is_live(before)))
        added = {entry.identity for entry in new.changed if entry.kind is FileKind.ADD}
        deleted = {entry.identity for entry in new.changed} - added
        return bool(live.present(added)) or not (added or live.present(deleted))

    def _withdraw(self, snapshot: Snapshot) -> None:
        """Take back a commit that nobody may build upon. Raises `DataError` where it stays."""
        self._metadata.remove([snapshot.id])
        self._tried.discard(snapshot.uuid)
        self._in_doubt = False
        self._metadata.store.discard(self._described)
        self._described = []
        # The hint went out beside the check.
        newest_id = self._metadata.latest_snapshot_id()
        if newest_id is not None:
            self._metadata.hint_latest(newest_id)

    def _moved(self) -> list[MovedKeys]:
        """Partitions whose index of dynamic buckets is not the one that the change went by."""
        change, view = self._change, self._view
        if not view.has_dynamic_buckets or change.kind is not CommitKind.APPEND:
            return []
        files = () if self._latest is None else self._metadata.index_files(self._latest)
        return moved_keys(view, change.made, change.indexed, hash_files(files))

    def _has_other_indexes(self) -> bool:
        """Whether an index that the change adds to is not the one that it knows."""
        change, replaces = self._change, self._change.replaces or (lambda _: False)
        based_on = {key: index.based_on for key, index in change.made.indexes.items()}
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
        """The present dead rows of the buckets by whose deletion vectors the change went.

        They are read where it has to be told whose they are.
        """
        dead = self._change.made.dead
        if not dead:
            return {}
        known = () if self._latest is None else self._metadata.index_files(self._latest)
        files = vector_files_by_bucket(known)
        return {bucket: self._present(rows, files.get(bucket, ())) for bucket, rows in dead.items()}

    def _present(self, before: DeadRows, files: tuple[IndexFile, ...]) -> DeadRows:
        if before.went_by is None or before.stored == files:
            return DeadRows(files)
        return load_dead_rows(self._metadata.store, files, self._view.name)

    def begin_again(self, redo: Redo) -> bool:
        """Make the change anew, which could not be made as it was; False if there is none now."""
        self._superseded, self._described = [], []
        # Those files are gone: should `redo` fail, there is nothing of them left to clean up.
        self._change = replace(self._change, made=Written(()))
        self._change = redo(self._live)
        progress = self._change.progress
        tells = progress is not None and progress.stands_alone
        return tells or bool(self._change.changed(self._live))

    def tidy_up(self, committed: Committed) -> None:
        """Hint at what was committed and delete what it does not name."""
        if committed.is_new:
            self._metadata.store.discard(self._superseded)
        else:
            self.discard_all()

    def abandon(self) -> None:
        """Delete what this change wrote, unless a snapshot may name it."""
        if not self._in_doubt:
            self.discard_all()

    def discard_all(self) -> None:
        """Delete what this change wrote: no snapshot names any of it."""
        with suppress(DataError):
            self._settle()  # or what is still under way would come after its deletion
        change = self._change
        made = [*made_files(change.entries), *change.changelog]
        files = [path for entry in made for path in self._view.stored_paths(entry)]
        self._metadata.store.discard([*self._superseded, *self._described, *files])

    def _restamp(self, decision: Restamp) -> None:
        """Give files higher numbers; those they had before belong to nobody from then on."""
        entries = list(self._change.entries)
        try:
            for place, number in decision.numbers.items():
                old = entries[place]
                entries[place] = self._committer.restamp(self._view, old, number)
                self._superseded += self._view.stored_paths(old)
        finally:
            # After an error too: the files made so far are this change's to clean up.
            self._change = self._change.with_entries(entries)

    def _create(self, new: NewSnapshot) -> bool:
        try:
            return self._metadata.create(
                new.snapshot, partial(partition_changes, self._view, new.changed)
            )
        except UnknownOutcomeError as error:
            raise self._unknown(new.snapshot.id, error) from error.__cause__


def _backoff(wait_ms_min: int, wait_ms_max: int) -> Iterator[float]:
    """Waits in milliseconds that double up to a limit, with jitter so that racers part."""
    # At least a millisecond, or a table with waits of 0 would spin.
    limit = max(1, wait_ms_min)
    while True:
        yield random.uniform(0, limit)
        limit = min(limit * 2, max(1, wait_ms_max))
