"""Writes files to the highest level of buckets, as a full compaction leaves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.threads import begin
from keytide.compaction.marking import Marks, retracts_of
from keytide.compaction.pile import Pile
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest import DataFileMeta, FileSource, ManifestEntry
from keytide.merge.order import IS_ADD
from keytide.snapshot.bucket_index import by_index_key
from keytide.snapshot.dead_rows import DeadRows
from keytide.snapshot.dynamic_buckets import PlacedKeys
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.write.layout import Placing
from keytide.write.task import Written

__all__ = ["LevelFiles"]

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
        self._files = NewFiles(view)
        self._piles: dict[BucketId, Pile] = {}
        self._under_way: deque[tuple[int, Future[_Stored]]] = deque()
        self._stored: list[_Stored] = []
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
            self._view.store.discard(self._files.given)

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

    def written(self) -> Written:
        """All files, and the vectors that mark deletes as dead if readers do not merge."""
        for bucket in [*self._piles]:
            self._end(bucket)
        self._wait_for_room(-1)
        entries = tuple(entry for each in self._stored for entry in each.entries)
        placed = {bucket: PlacedKeys(hashes) for bucket, hashes in self._placing.placed.items()}
        indexes = {**by_index_key(placed), **by_index_key(self._dead())}
        return Written(entries, self._rows, indexes=indexes)

    @cached_property
    def _schema(self) -> pa.Schema:
        return stored_schema(self._view)

    def _end(self, bucket: BucketId) -> None:
        for run in self._piles.pop(bucket).rest():
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

    def _store(self, bucket: BucketId, run: pa.Table) -> _Stored:
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
        marks = Marks()
        if view.options.deletion_vectors_enabled:
            metas = list(_marked(metas, run, marks))
        total = self._placing.total_buckets(bucket[0])
        return _Stored(bucket, [added_file(bucket, total, meta) for meta in metas], marks)

    def _dead(self) -> dict[BucketId, DeadRows]:
        wide = self._view.options.deletion_vectors_bitmap64
        dead: dict[BucketId, DeadRows] = {}
        for each in self._stored:
            if each.marks.found:
                before = dead.get(each.bucket, DeadRows())
                dead[each.bucket] = before.marking(each.marks.by_file, wide=wide)
        return dead


class _Stored(NamedTuple):
    """Files of a run, and which of their rows are dead."""

    bucket: BucketId
    entries: list[ManifestEntry]
    marks: Marks


def _marked(metas: Sequence[DataFileMeta], run: pa.Table, marks: Marks) -> Iterator[DataFileMeta]:
    """Consecutive files of a run, with their deletes marked as dead."""
    start = 0
    for meta in metas:
        kinds = run.column(VALUE_KIND).slice(start, meta.row_count)
        marks.add(meta.file_name, retracts_of(pl.Series(kinds)))
        start += meta.row_count
        yield replace(meta, delete_row_count=0)
