"""Bulk loads: the first rows of a table, written to where a full compaction would put them.

Each bucket gets sorted files on its highest level without common keys, so nothing is left to merge
or compact. In a table with a key index, whose files have no levels, rows are written as usual, and
the index checks that each key occurs once.

Files that no commit references yet can also be raised to the highest level, where all readers see
them. Most readers of deletion vectors do not read level 0, which later compactions raise. What
replaces the rows of whole buckets must be visible with its own commit. Otherwise readers would see
neither the old rows nor the new ones until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import begin
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import local_runner, memory_of
from keytide.compaction.deletion_vectors import Marks, retracts_of
from keytide.compaction.rewrite import CompactedBucket, CompactTask
from keytide.compaction.row_buffer import FileSize, Pile, piled
from keytide.compaction.strategy import Rules, pick_all, sorted_runs
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest_entry import FileKind, FileSource, ManifestEntry
from keytide.merge.order import IS_ADD
from keytide.options import keys
from keytide.read.runs import prefetched
from keytide.snapshot.dynamic_buckets import PlacedKeys
from keytide.snapshot.live_files import BucketId, DeadRows, by_index_key
from keytide.snapshot.state import TableView
from keytide.tasks import TaskRunner
from keytide.write.bucket_writer import (
    COPIES,
    InOrder,
    NewFiles,
    OutOfOrderError,
    SortedRows,
    added_file,
    run_writer,
    stored_schema,
)
from keytide.write.input_rows import Rows, incoming_rows
from keytide.write.layout import Placing
from keytide.write.refusals import refuse_unmergeable
from keytide.write.task import TaskResult
from keytide.write.upsert import task_of_stored

# -- files on the highest level --------------------------------------------------------------------


# Reading and sorting use a core at the same time.
_LARGE_AT_ONCE = 2
# More small files are written at the same time, because a store may have to be waited for.
_FILES_AT_ONCE = 16


class LevelFiles:
    """Writes files of a table without rows, while rows arrive for `at_once` buckets at a time.

    For each of these buckets, about `pile_bytes` are collected for a file. When rows for another
    bucket arrive, none follow for the first one. A few files are written at the same time. As a
    context manager, it leaves nothing behind after an error.
    """

    def __init__(self, view: TableView, placing: Placing, pile_bytes: int, at_once: int) -> None:
        self._view = view
        self._placing = placing
        self._pile_bytes = pile_bytes
        self._at_once = at_once
        self._schema = stored_schema(view)
        self._files = NewFiles(view)
        self._piles: dict[BucketId, Pile] = {}
        self._under_way: deque[tuple[int, Future[_StoredRun]]] = deque()
        self._stored: list[_StoredRun] = []
        self._rows = 0

    def __enter__(self) -> LevelFiles:
        return self

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            wait([future for _, future in self._under_way])
            self._view.store.discard(self._files.names)

    def add(self, bucket: BucketId, rows: pl.DataFrame) -> None:
        """Add rows of a bucket, whose keys are above those of the rows before them."""
        self._rows += rows.height
        # A delete only matters to rows that may arrive late.
        stored = rows if self._view.needs_tombstones else rows.filter(IS_ADD)
        number = pl.lit(0, pl.Int64).alias(SEQUENCE_NUMBER)
        if bucket not in self._piles and len(self._piles) == self._at_once:
            self._end(next(iter(self._piles)))
        pile = self._piles.setdefault(bucket, Pile(self._pile_bytes))
        for run in pile.add(to_arrow(stored.with_columns(number), self._schema)):
            self._begin(bucket, run)

    def written(self) -> TaskResult:
        """All files, and the vectors that mark deletes as dead if readers do not merge."""
        for bucket in [*self._piles]:
            self._end(bucket)
        self._wait_for_room(-1)
        entries = tuple(entry for each in self._stored for entry in each.entries)
        placed = {bucket: PlacedKeys(hashes) for bucket, hashes in self._placing.placed.items()}
        wide = self._view.options.deletion_vectors_bitmap64
        dead: dict[BucketId, DeadRows] = {}
        for each in self._stored:
            if each.marks.positions:
                before = dead.get(each.bucket, DeadRows())
                dead[each.bucket] = before.marking(each.marks.by_file, wide=wide)
        indexes = {**by_index_key(placed), **by_index_key(dead)}
        return TaskResult(entries, self._rows, indexes=indexes)

    def _end(self, bucket: BucketId) -> None:
        for run in self._piles.pop(bucket).remaining():
            self._begin(bucket, run)

    def _begin(self, bucket: BucketId, run: pa.Table) -> None:
        self._wait_for_room(_LARGE_AT_ONCE * self._pile_bytes - run.nbytes)
        self._under_way.append((run.nbytes, begin(partial(self._store, bucket, run))))

    def _wait_for_room(self, bytes_max: int) -> None:
        """Wait until at most `bytes_max` are being written, and one more file can start."""
        while self._under_way and (
            sum(size for size, _ in self._under_way) > bytes_max
            or len(self._under_way) >= _FILES_AT_ONCE
        ):
            self._stored.append(self._under_way.popleft()[1].result())

    def _store(self, bucket: BucketId, run: pa.Table) -> _StoredRun:
        view, level = self._view, self._view.options.num_levels - 1
        writer = run_writer(view, level)
        names = self._files.of(view.new_names(), view.options.data_file_prefix, writer.file_format)
        metas = writer.write(
            run,
            directory=view.bucket_directory(*bucket),
            file_names=names(bucket),
            level=level,
            source=FileSource.COMPACT,
        )
        marks, start = Marks(), 0
        if view.options.deletion_vectors_enabled:
            # Deletes are marked as dead.
            for meta in metas:
                kinds = run.column(VALUE_KIND).slice(start, meta.row_count)
                marks.add(meta.file_name, retracts_of(pl.Series(kinds)))
                start += meta.row_count
            metas = [replace(meta, delete_row_count=0) for meta in metas]
        total = self._placing.total_buckets(bucket[0])
        return _StoredRun(bucket, [added_file(bucket, total, meta) for meta in metas], marks)


class _StoredRun(NamedTuple):
    """Files of a run, and which of their rows are dead."""

    bucket: BucketId
    entries: list[ManifestEntry]
    marks: Marks


# -- bulk loads ------------------------------------------------------------------------------------


_PIECE_BYTES_MIN = 1 << 20
# If the files of a bucket would be smaller than this in Arrow, the buckets are written one after
# the other.
_FILE_BYTES_MIN = 32 << 20

_Stream: TypeAlias = "Iterator[tuple[BucketId, pl.DataFrame]]"
"""Rows of buckets. The rows of a bucket are sorted by key."""


def fill_lowest_level(
    transaction: Transaction, read: Callable[[], Iterable[pa.Table]], origin: str
) -> None:
    """Write rows, one per key, as the only part of a transaction on a table without rows.

    `read` returns them in any order. It is called a second time if they seemed to be sorted by key
    but were not. Uses about as much memory as 'read.memory'. More rows go to local disk
    temporarily, unless they are sorted by key and there are few buckets. `origin` says in messages
    where the rows come from. Nothing is left behind after an error. Raises `InvalidError` for
    several rows with the same key and for rows that do not fit, `UnsupportedError` for a table
    whose keys move between partitions, and `DataError` if the store or the local disk fails.
    """
    # Refuse tables in which the effect of a row depends on other rows.
    view = transaction.view
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: the partition columns {', '.join(view.schema.partition_keys)} "
            "are not in the primary key, so all partitions would have to be searched for "
            "duplicate keys; add them to the primary key, or use no partition columns"
        )
    if view.options.sequence_auto_padding:
        raise UnsupportedError(
            f"table {view.name}: '{keys.SEQUENCE_AUTO_PADDING}' numbers rows when they are "
            f"written, but these rows already exist; set a '{keys.WATERMARK_KEY}' instead"
        )
    filling = _BulkLoad(transaction, read, origin)
    # Files of all buckets can be written at the same time, if they are large enough.
    buckets = 0 if view.schema.partition_keys else max(0, view.options.bucket)  # 0: unknown
    enough = min(_FILE_BYTES_MIN, FileSize.of(view).piled_bytes, filling.piece_bytes)
    if buckets > 0 and filling.piece_bytes // buckets >= enough:
        with suppress(OutOfOrderError):  # in the order of reading
            placing = transaction.task().layout.begin()
            in_order = InOrder(view, placing)
            stream = (part for rows in filling.rows() for part in in_order.of(rows))
            transaction.collect(filling.as_files(placing, stream, buckets))
            return
    placing = transaction.task().layout.begin()
    held = SortedRows(view, placing, view.options.read_memory_bytes, origin)
    for rows in filling.rows():
        held.add(rows)
    transaction.collect(filling.as_files(placing, prefetched(held.in_order()), 1))


@dataclass(frozen=True)
class _BulkLoad:
    """A transaction on a table without rows, and the rows to write."""

    transaction: Transaction
    read: Callable[[], Iterable[pa.Table]]
    origin: str

    @property
    def _view(self) -> TableView:
        return self.transaction.view

    def rows(self) -> Iterator[Rows]:
        """The rows to write, checked and converted."""
        view = self._view
        for given in prefetched(iter(self.read())):
            rows = incoming_rows(given, view.schema, view.options, view.name)
            refuse_unmergeable(rows.frame, view, rows.refusals)
            yield rows

    @property
    def piece_bytes(self) -> int:
        """How much is collected before it is written: smaller files would be too small."""
        return max(_PIECE_BYTES_MIN, self._view.options.read_memory_bytes // COPIES)

    def as_files(self, placing: Placing, stream: _Stream, at_once: int) -> TaskResult:
        """The rows of a stream as files. Rows of `at_once` buckets arrive at a time."""
        if self._view.kind.has_key_index:
            return self._indexed(stream)
        view = self.transaction.task_here(self.transaction.task()).view
        pile_bytes = min(self.piece_bytes // at_once, FileSize.of(self._view).piled_bytes)
        with LevelFiles(view, placing, pile_bytes, at_once) as files:
            for bucket, frame in stream:
                files.add(bucket, frame)
            return files.written()

    def _indexed(self, stream: _Stream) -> TaskResult:
        """The rows as the first ones of a table with a key index.

        Raises `InvalidError` if the index treats different spellings as one key.
        """
        view, counted = self._view, _CountedStream(stream)
        task = self.transaction.task_here(task_of_stored(self.transaction.state))
        schema = view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))
        tables = (to_arrow(frame, schema) for frame in counted.frames())
        size_bytes = min(view.options.write_buffer_bytes, self.piece_bytes)
        written = task.feed(piled(tables, size_bytes), 0)
        vectors = (vector for each in written.dead.values() for vector in each.vectors.values())
        again = sum(map(len, vectors)) - counted.deletes
        if again:
            made = (path for entry in written.files for path in view.stored_paths(entry))
            task.view.store.discard(list(made))
            raise InvalidError(
                f"table {view.name}: {again} rows of {self.origin} have the key of another row "
                f"in a different spelling, which '{keys.UPSERT_HASH_FUNCTION}' = "
                f"'{view.options.upsert_hash_function}' treats as equal; remove these duplicates"
            )
        return written


@dataclass
class _CountedStream:
    """A stream that counts its deletes."""

    stream: _Stream
    deletes: int = 0

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows."""
        for _, frame in self.stream:
            self.deletes += frame.height - int(frame.select(IS_ADD.alias("add"))["add"].sum())
            yield frame


# -- raising of uncommitted files ------------------------------------------------------------------


def raise_replacement(transaction: Transaction, runner: TaskRunner | None = None) -> None:
    """Raise what a transaction has collected to replace whole partitions, if it would be hidden.

    The changelog emits the rows, as it would after a later compaction. Rows without a bucket stay
    as they are. Raises the errors of a compaction.
    """
    view, parts = transaction.view, transaction.results
    if view.options.merges_on_read or not view.kind.keeps_versions:
        return
    hidden = [entry for part in parts for entry in part.entries if entry.bucket >= 0]
    left = [tuple(entry for entry in part.entries if entry.bucket < 0) for part in parts]
    transaction.settle()
    raised: list[TaskResult] = []
    transaction.results = raised
    raise_files(view, hidden, runner or local_runner(), raised.append)
    kept = (replace(part, entries=rest) for part, rest in zip(parts, left, strict=True))
    transaction.results = [*kept, *raised]


def raise_files(
    view: TableView, files: Sequence[ManifestEntry], runner: TaskRunner,
    take: Callable[[TaskResult], None],
) -> None:  # fmt: skip
    """Merge new files, which are all of their buckets, on the highest level.

    `take` gets the results. Files that they do not contain are deleted, also after an error.
    """
    buckets: dict[BucketId, list[ManifestEntry]] = {}
    for entry in files:
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    kept: set[str] = set()

    def take_made(compacted: CompactedBucket) -> None:
        assert compacted.result is not None, "all runs are read, so no older files are needed"
        made = [e for e in compacted.result.entries if e.kind is FileKind.ADD]
        kept.update(entry.file.file_name for entry in made)
        take(TaskResult(tuple(made), changelog=compacted.result.changelog))

    try:
        # New files have no dead rows.
        plain = replace(view, options=replace(view.options, deletion_vectors_enabled=False))
        memory, now_ms = memory_of(view, len(buckets)), wall_clock_ms()
        rules = Rules.of(view.options, only_whole=False, moves=False)
        units = (pick_all(sorted_runs(each), rules) for each in buckets.values())
        tasks = [CompactTask(plain, unit, now_ms, memory) for unit in units if unit is not None]
        if tasks:
            runner.each(tasks, take_made)
    finally:
        passed = (entry for entry in files if entry.file.file_name not in kept)
        view.store.discard([path for entry in passed for path in view.stored_paths(entry)])
