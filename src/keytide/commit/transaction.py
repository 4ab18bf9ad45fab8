"""Transactions: one change of a table, from the first read to the outcome.

The processes of a statement must share the folders that it works in.

Tasks that were killed, or failed with others, leave files that nobody reported. They are found by
the name of the statement, which is part of every file name, by listing the table. So nothing has to
be stored about them while all goes well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import this_host
from keytide.base.record import Record
from keytide.commit.change import Author, Change, Conflict, Progress, RestoredFiles, new_data_files
from keytide.commit.committer import Committed, Committer, Redo
from keytide.errors import ConflictError, DataError, SetupError
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.snapshot import CommitKind, Operation, Snapshot
from keytide.options import keys
from keytide.read.lookup import create_lookup_file
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import Statement, TableState, TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store.local import HOW_TO_SHARE
from keytide.write.bucket_writer import restamp
from keytide.write.partition_spec import PartitionSpec, TouchedPartitions, every_partition
from keytide.write.task import TaskResult, WriteTask
from keytide.write.upsert import joined_upserts, task_anew, task_on

# -- shared folders --------------------------------------------------------------------------------


def check_shared(view: TableView, written: Iterable[TaskResult]) -> None:
    """Raise `SetupError` if files that tasks of other processes wrote are not here.

    Looks for one file of each task, in a folder only: everyone sees the same object store.
    """
    away = view.statement is not None and view.statement.is_away
    if not away or view.store.local_path("schema") is None:
        return
    parts = [part for part in written if new_data_files(part.entries)]
    lasts = [new_data_files(part.entries)[-1] for part in parts]
    are_here = view.store.together([partial(_is_file_here, view, last) for last in lasts])
    lacking = [part for part, is_here in zip(parts, are_here, strict=True) if not is_here]
    if lacking:
        hosts = ", ".join(sorted({part.host for part in lacking}))
        lost = new_data_files(lacking[0].entries)[-1]
        raise SetupError(
            f"table {view.name}: tasks on {hosts} wrote files into {view.store.uri} that do not "
            f"exist for the driver on {this_host()}, such as {view.file_path(lost)}. "
            f"{HOW_TO_SHARE} Nothing was committed"
        )


def _is_file_here(view: TableView, entry: ManifestEntry) -> bool:
    try:
        return view.store.size(view.file_path(entry)) == entry.file.file_size
    except DataError:
        return False


# -- unreported files of a statement ---------------------------------------------------------------


# Spark lets a killed task run on for two seconds before it ends the task's process
# ('spark.python.task.killTimeout'), so it can still finish files.
_QUIET_S = 3.0
_LISTINGS = 4


def remove_strays(view: TableView) -> None:
    """Delete the files of a view's statement.

    Does nothing if only this process worked for the statement. Lists the table until no new file
    has appeared for three seconds, but for at most nine seconds. Files that appear later are
    orphans. A failure of the store ends it. REQUIRES: no snapshot references one of them, and none
    will.
    """
    statement = view.statement
    if statement is None or not statement.is_away:
        return
    with suppress(DataError):
        for listing in range(_LISTINGS):
            time.sleep(_QUIET_S if listing else 0)
            found = [info.path for info in view.store.list() if statement.has_named(info.path)]
            if listing and not found:
                return
            view.store.delete(found)


def has_committed(metadata: TableMetadata, statement: Statement, after_id: int) -> bool:
    """Whether one of the snapshots after an id added a file of a statement.

    Raises `DataError` if the store fails, and `NotFoundError` if a snapshot has expired.
    """
    latest_id = metadata.latest_snapshot_id() or 0
    added = (
        metadata.delta_manifests(metadata.snapshot(n)) for n in range(after_id + 1, latest_id + 1)
    )
    return any(
        statement.has_named(entry.file.file_name)
        for manifests in added
        for entry in metadata.entries(manifests)
    )


# -- the result of a write -------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteResult(Record):
    """What a write did.

    - `snapshot_id` is the new snapshot, None when there was nothing to commit.
    - `rows` is the number of rows given, and `rows_stored` the number left after merging per key.
    - `files` is the number of committed files, and `bytes` their total size.
    - `is_new` is false when the same commit user and identifier had already been committed. Nothing
      was written again.
    - `out_of_order` is the number of rows that were older, by the sequence fields, than a version
      of their key in the snapshot that the write started from, or than an earlier row in the same
      write. It is None for `overwrite`, for SQL's UPDATE and DELETE, and unless the table sets one
      of these options: 'write.count-out-of-order' (which costs a lookup of the keys),
      'upsert.drop-out-of-order-record', 'upsert.out-of-order-record-column', 'upsert.late-rows' =
      'leave-out', 'upsert.metadata-ttl' or 'upsert.deleted-keys-ttl'.
    - `errors` counts the given rows that were skipped because they are invalid, by reason:
      'null-primary-key', 'null-in-not-null-column', 'no-comparison-value',
      'several-comparison-values' or 'unmergeable'. It is None unless the table has
      'upsert.row-errors' = 'count' (other tables refuse such rows), and when nothing was written
      again.
    - `retries` is the number of commit attempts that lost a race with another writer.
    - `milliseconds` is the time from the first request for the table until the commit was durable.

    `bytes`, `retries` and `milliseconds` are ignored when two results are compared.
    """

    snapshot_id: int | None
    rows: int
    rows_stored: int
    files: int
    is_new: bool = True
    out_of_order: int | None = None
    errors: Mapping[str, int] | None = None
    bytes: int = field(default=0, compare=False)
    retries: int = field(default=0, compare=False)
    milliseconds: int = field(default=0, compare=False)


def warn_of_errors(table: str, result: WriteResult) -> None:
    """Warn about rows that were left out, if nobody receives the result."""
    if result.errors:
        counts = ", ".join(f"{count} for {name}" for name, count in result.errors.items())
        left_out = sum(result.errors.values())
        warn_caller(
            f"table {table}: {left_out} of {result.rows} rows were skipped as invalid: {counts}; "
            f"to refuse such rows, set '{keys.UPSERT_ROW_ERRORS}' = 'refuse'"
        )


# -- transactions ----------------------------------------------------------------------------------


def discard(view: TableView, written: Iterable[TaskResult]) -> None:
    """Delete what tasks wrote and no commit references, as far as possible."""
    made = [entry for each in written for entry in (*new_data_files(each.entries), *each.changelog)]
    view.store.discard([path for entry in made for path in view.stored_paths(entry)])


class Transaction:
    """One change of a table. Used in the driver only.

    One read gives the files that the change is based on, and `own_commit`, the author's own commit
    among the snapshots up to there. So none is overlooked between the two. The transaction hands
    out tasks that write, and collects their results. Then `commit` or `abort` decides the outcome.
    As a context manager, it aborts when an error leaves the block. No file remains that a task
    wrote and no snapshot references, unless the outcome of a commit is unknown.
    """

    def __init__(
        self,
        table: StoredTable,
        state: TableState,
        author: Author,
        done: Snapshot | None,
        statement: Statement | None = None,
    ) -> None:
        self._table = table
        self.state = state.in_statement(statement or Statement.new())
        self.author = author
        self.own_commit = done
        self.results: list[TaskResult] = []
        self.progress: Progress | None = None
        """The progress of the feed that the rows come from, to store with the append."""
        self.committed: Committed | None = None
        """The committed change, once it is part of the table."""
        self._begun = time.monotonic()
        self._is_settled = False
        self._uploading, self._uploaded = state.view.store.uploading()

    @classmethod
    def begin(
        cls,
        table: StoredTable,
        view: TableView,
        author: Author | None = None,
        statement: Statement | None = None,
    ) -> Transaction:
        """Read the table once, for an author or, with None, for a new author.

        `view` is the result of `writable_view`: how the rows to write are interpreted. `statement`
        is the statement of tasks that were handed out before.
        """
        state = table.state_to_write(view)
        if author is None:
            return cls(table, state, Author.fresh(), None, statement)
        # In the snapshot just read and earlier ones. `Committer` checks those that come later.
        done = author.own(table.metadata, state.snapshot, CommitKind.APPEND)
        return cls(table, state, author, done, statement)

    @classmethod
    def on(
        cls, table: StoredTable, state: TableState, statement: Statement | None = None
    ) -> Transaction:
        """A change by an unnamed author, based on an already known snapshot. See `begin`."""
        return cls(table, state, Author.fresh(), None, statement)

    def set_operation(self, operation: Operation | None) -> None:
        """Record in the snapshot which statement made it."""
        self.author = replace(self.author, operation=operation)

    @property
    def view(self) -> TableView:
        """How the rows to write are interpreted."""
        return self.state.view

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()

    def task(self) -> WriteTask:
        """The work of each part of an append. Picklable."""
        return task_on(self.state)

    def task_here(self, task: WriteTask) -> WriteTask:
        """A task for this process: its files may still be being written when it has ended.

        The commit waits for them.
        """
        view = replace(task.view, store=self._uploading)
        seen = create_lookup_file if view.creates_lookup_files else None
        return replace(task, view=view, confirm=self._table.confirm, seen=seen)

    def settle(self) -> None:
        """Wait for files that are still being written, and raise their errors."""
        self._uploaded()

    def task_anew(self, partition: PartitionSpec | None = None) -> WriteTask:
        """The same for partitions to replace."""
        return task_anew(self.state, partition)

    def collect(self, written: TaskResult) -> None:
        """Collect the result of a task. From then on, its files are committed or deleted."""
        self.results.append(written)

    def previous_result(self, rows: int = 0) -> WriteResult:
        """The result if the author's commit exists already: nothing is written again."""
        assert self.own_commit is not None
        self.abort()
        return WriteResult(self.own_commit.id, rows, 0, 0, is_new=False)

    def commit(self, again: Callable[[], None] | None = None) -> WriteResult:
        """Append the collected files in one atomic commit.

        Does nothing if there are no files, unless there is progress to store.

        With dynamic buckets, another writer may put a key into another bucket in the meantime. Then
        nothing is committed, and `again` is called, up to 'commit.max-retries' times. It must let
        tasks write on top of the latest snapshot and collect their results. Raises the errors of
        `again`, `ConflictError` if the change does not fit any more or too many races were lost,
        and `DataError` if the store fails permanently. Then nothing is committed, unless the error
        says that the outcome is unknown.
        """
        if not self._joined_result.entries and not (
            self.progress is not None and self.progress.stands_alone
        ):
            return self._result(None)
        goes_by_index = self.view.has_dynamic_buckets or self.view.kind.has_key_index
        redo = self._redoing(again) if again and goes_by_index else None
        return self._publish(self._appending(), redo)

    def replace(self, replaces: Callable[[bytes], bool]) -> WriteResult:
        """Replace all files of some partitions with the collected files, in one atomic commit.

        Every commit attempt replaces what is live at that time. Raises like `commit`.
        """
        stored = self.state.live.partition_buckets
        written = self._joined_result
        if not written.entries and not any(map(replaces, stored)):
            return self._result(None)
        kind = CommitKind.OVERWRITE
        return self._publish(Change(written, self.author, kind, replaces))

    def overwrite(self, partition: PartitionSpec | None = None) -> WriteResult:
        """Replace a partition or, by default, what the table's options say.

        Otherwise like `replace`.
        """
        if partition is not None:
            return self.replace(partition)
        if self.view.schema.partition_keys and self.view.options.dynamic_partition_overwrite:
            return self.replace(self.touched_partitions())
        return self.replace(every_partition)

    def relayout(self, replaces: Callable[[bytes], bool]) -> WriteResult:
        """Replace all files of some partitions with files that were made from exactly these files.

        Raises `ConflictError` if another writer committed to one of the partitions in the meantime,
        and the errors of `commit`.
        """
        kind, source = CommitKind.OVERWRITE, self.state.live
        change = Change(
            self._joined_result,
            self.author,
            kind,
            replaces,
            source,
            watched_partitions=replaces,
            progress=self.progress,
        )
        return self._publish(change)

    def restore(
        self,
        replaces: Callable[[bytes], bool],
        returning: Callable[[LiveFiles], tuple[RestoredFiles, tuple[ManifestEntry, ...]]],
    ) -> Committed:
        """Replace all files of some partitions with files that are stored already.

        `returning` says what comes back for a table with the given live files: stored files, and
        files that it created for this commit only. Every commit attempt replaces what is live at
        that time. Raises like `commit`, and the errors of `returning`.
        """

        def made(live: LiveFiles) -> Change:
            restored, copies = returning(live)
            # A delete entry counts wherever it is, so none may remain for a file that comes back.
            return Change(
                TaskResult(copies),
                self.author,
                CommitKind.OVERWRITE,
                replaces,
                restored=restored,
                merges_manifests=True,
            )

        outcome = self._settle(made(self.state.live), made)
        if not isinstance(outcome, Committed):
            reason = "nothing had to be changed" if outcome is None else outcome.reason
            raise ConflictError(f"table {self._table.name}: {reason}")
        return outcome

    def touched_partitions(self) -> TouchedPartitions:
        """The partitions of the collected files."""
        return TouchedPartitions(
            frozenset(entry.partition for entry in self._joined_result.entries)
        )

    def build_on(self, *, serializable: bool = False) -> WriteResult:
        """Append rows that were made from those of the transaction's snapshot.

        Raises `ConflictError` if another writer committed to one of their buckets in the meantime,
        or to any bucket if serializable. Also raises the errors of `commit`.
        """
        change = replace(self._appending(), source=self.state.live)
        if serializable:
            change = replace(change, watched_partitions=every_partition)
        return self._publish(change) if change.entries else self._result(None)

    def change_rows(
        self,
        marked: Iterable[ManifestEntry] = (),
        watched: Callable[[bytes], bool] | None = None,
    ) -> WriteResult:
        """Commit the collected results: new files, which may replace others, and dead rows.

        `marked` are the files that stay, but get dead rows. The change fits next to the appends of
        others, unless these went to a bucket of a partition that is `watched`. Raises
        `ConflictError` if one of the files is gone, or if its dead rows changed, and the errors of
        `commit`.
        """
        written, stays = self._joined_result, tuple(marked)
        takes_away = any(entry.kind is FileKind.DELETE for entry in written.entries)
        if not written.entries and not stays:
            return self._result(None)
        change = Change(written, self.author, renumbers=self._renumbers, marked_files=stays)
        if takes_away or stays:
            # The format calls everything that is not a plain append an overwrite: readers of
            # appends skip it.
            change = replace(change, kind=CommitKind.OVERWRITE)
        if watched is not None:
            change = replace(change, source=self.state.live, watched_partitions=watched)
        return self._publish(change)

    def compact(self) -> Committed | Conflict | None:
        """Commit the collected results of compactions. None if there are none.

        It fits next to any appends. A conflict, mainly with an earlier compaction, is a result:
        nothing is lost, and the new files are deleted. Raises `DataError` like `commit`.
        """
        written, source = self._joined_result, self.state.live
        if not written.entries:
            return None
        return self._settle(Change(written, self.author, CommitKind.COMPACT, source=source))

    def convert(self) -> Committed | Conflict:
        """Replace all files with files of another kind of table that contain the same rows.

        A conflict with any other commit is a result, as in `compact`. Raises `DataError` like
        `commit`.
        """
        kind, source = CommitKind.COMPACT, self.state.live
        change = Change(
            self._joined_result,
            self.author,
            kind,
            every_partition,
            source,
            renumbers=False,
            converts=True,
        )
        outcome = self._settle(change)
        assert outcome is not None, "only a change that is made again can be none"
        return outcome

    def commit_placed_rows(self) -> Committed | Conflict | None:
        """Commit rows that were in no bucket yet, as an append that replaces their files.

        A conflict, because another process placed them first, is a result, as in `compact`. Raises
        `DataError` like `commit`.
        """
        return self._settle(self._appending()) if self._joined_result.entries else None

    def merge_manifests(self) -> Committed | Conflict | None:
        """Commit the same files with as few manifests as possible.

        It fits next to any other commit. Raises `DataError` like `commit`.
        """
        kind = CommitKind.COMPACT
        return self._settle(Change(TaskResult(()), self.author, kind, merges_manifests=True))

    def abort(self) -> None:
        """Delete the collected files.

        Does nothing after a commit has begun, which cleans up itself.
        """
        if not self._is_settled:
            self._is_settled = True
            with suppress(DataError):
                self._uploaded()
            self._clean_up()

    def _clean_up(self) -> None:
        discard(self.view, self.results)
        remove_strays(self.view)

    def _redoing(self, again: Callable[[], None]) -> Redo:
        def made(live: LiveFiles) -> Change:
            view = self._table.view_on(live, self.view)
            if view.options.merges_rows and any(
                view.schemas[number].fields != view.schema.fields
                for number in view.schemas.keys() - self.view.schemas.keys()
            ):
                raise ConflictError(
                    f"table {self._table.name}: another writer changed its columns and wrote rows "
                    "that this write is merged into; run the operation again"
                )
            # Files of the attempt before this one may be part of a snapshot.
            self.state = self._table.state_on(live, view).in_statement(Statement.new())
            self.results = []
            try:
                again()
                check_shared(self.view, self.results)
            except BaseException:
                self._clean_up()
                raise
            return self._appending()

        return made

    def _appending(self) -> Change:
        change = Change(
            self._joined_result,
            self.author,
            indexed=self.state.hash_files,
            renumbers=self._renumbers,
            progress=self.progress,
        )
        if self.view.kind.has_key_index:
            # Files that were added to the buckets since then may have other rows with the same
            # keys.
            return replace(change, source=self.state.live)
        if not self.view.moves_keys:
            return change
        # Keys were looked up in all partitions, and rows added since then may have one of them.
        return replace(change, source=self.state.live, watched_partitions=every_partition)

    @property
    def _joined_result(self) -> TaskResult:
        if self.view.kind.has_key_index:
            return joined_upserts(self.view, self.results)
        return TaskResult.together(self.results)

    @property
    def _renumbers(self) -> bool:
        # Padded numbers are computed from a column of the rows, and higher ones would contradict
        # it. Rows without a key have no meaningful numbers.
        return self.view.kind.keeps_versions and not self.view.options.sequence_auto_padding

    def _publish(self, change: Change, redo: Redo | None = None) -> WriteResult:
        outcome = self._settle(change, redo)
        if isinstance(outcome, Conflict):
            raise ConflictError(f"table {self._table.name}: {outcome.reason}")
        return self._result(outcome)

    def _settle(self, change: Change, redo: Redo | None = None) -> Committed | Conflict | None:
        check_shared(self.view, self.results)
        self._is_settled = True
        # From here on, the committer deletes files: it knows what a snapshot may reference.
        committer = Committer(
            self._table.live.metadata,
            self.view,
            restamp,
            settle=self._uploaded,
            begin_check=self._table.begin_check,
        )
        outcome = committer.publish(change, self.state.live, redo)
        if isinstance(outcome, Committed):
            self.committed = outcome
            self._table.remember(outcome.live)
        return outcome

    def _result(self, committed: Committed | None) -> WriteResult:
        written = self._joined_result
        late = written.out_of_order if self.view.options.tells_out_of_order else None
        errors = written.errors if self.view.options.counts_row_errors else None
        if committed is None:
            return WriteResult(None, written.rows, 0, 0, out_of_order=late, errors=errors)
        snapshot_id, entries = committed.snapshot.id, committed.change.entries
        if not committed.is_new:
            return WriteResult(snapshot_id, written.rows, 0, 0, is_new=False)
        stored = sum(entry.file.row_count for entry in entries)
        return WriteResult(
            snapshot_id,
            written.rows,
            stored,
            len(entries),
            out_of_order=late,
            errors=errors,
            bytes=sum(entry.file.file_size for entry in entries),
            retries=committed.retries,
            milliseconds=round((time.monotonic() - self._begun) * 1000),
        )
