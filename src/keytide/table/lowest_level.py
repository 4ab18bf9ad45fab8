"""The first rows of a table, written where a full compaction of all of them would put them.

Each bucket gets sorted files on its highest level, without a key in common, so nothing is left to
be merged or compacted. Of a table with an index of keys, whose files have no levels, rows are
written as ever, and the index tells whether each key came once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from keytide.errors import InvalidError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest import DataFileMeta, FileSource, ManifestEntry
from keytide.merge.order import IS_ADD
from keytide.options import keys
from keytide.table.commit.transaction import Transaction
from keytide.table.compaction.marking import Marks, retracts_of
from keytide.table.compaction.pile import piled
from keytide.table.compaction.rewriting import COMPRESSION_GUESS
from keytide.table.read.prefetch import prefetched
from keytide.table.state.bucket_index import by_index_key
from keytide.table.state.dead_rows import DeadRows
from keytide.table.state.dynamic_buckets import PlacedKeys
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.table.write.input_rows import Rows, incoming_rows
from keytide.table.write.layout import Placing
from keytide.table.write.refusals import refuse_unmergeable
from keytide.table.write.sorted_rows import COPIES, SortedRows
from keytide.table.write.stored_rows import task_of_stored
from keytide.table.write.task import Written

__all__ = ["fill_lowest_level"]


def fill_lowest_level(transaction: Transaction, given: Iterable[pa.Table], origin: str) -> None:
    """Write rows, one of each key, as the part of a transaction on a table without rows.

    They come in any order. About as much memory is used as 'read.memory' says; what is more lies on
    local disk for a while. `origin` says to people where the rows come from. Nothing is left behind
    after an error. Raises `InvalidError` for several rows of a key and for rows that do not fit,
    `UnsupportedError` for a table whose keys move between partitions, `DataError` when the store or
    the local disk fails.
    """
    task = transaction.here(transaction.task())
    view = task.view
    _refuse_moving(view)
    placing = task.layout.begin()
    rows = SortedRows(view, placing, view.options.read_memory_bytes, origin)
    for each in prefetched(iter(given)):
        rows.add(_complete(each, view))
    if view.kind.has_key_index:
        transaction.take(_indexed(transaction, rows))
    else:
        transaction.take(_Levels(view).write(rows, placing))


def _piece_bytes(view: TableView) -> int:
    """How much is put together before it is written; files of less would be too small."""
    return max(_PIECE_BYTES_MIN, view.options.read_memory_bytes // COPIES)


_PIECE_BYTES_MIN = 1 << 20


def _complete(given: pa.Table, view: TableView) -> Rows:
    rows = incoming_rows(given, view.schema, view.options, view.name)
    refuse_unmergeable(rows.frame, view)
    return rows


def _refuse_moving(view: TableView) -> None:
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: the partition columns {', '.join(view.schema.partition_keys)} are "
            f"not in the primary key, so whether each key has one row would have to be looked for "
            f"in all partitions; add them to the primary key, or partition by no column"
        )


# -- by levels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Levels:
    """Writes the rows of buckets onto their highest level."""

    view: TableView
    threads: int = os.cpu_count() or 1

    def write(self, rows: SortedRows, placing: Placing) -> Written:
        """The files, and what marks deletes as dead where readers do not merge."""
        files = NewFiles(self.view)
        entries: list[ManifestEntry] = []
        dead: dict[BucketId, DeadRows] = {}
        try:
            for bucket, frames in rows.buckets():
                marks = Marks()
                total = placing.total_buckets(bucket[0])
                metas = self._files(bucket, frames, files, marks)
                entries += [added_file(bucket, total, meta) for meta in metas]
                wide = self.view.options.deletion_vectors_bitmap64
                dead[bucket] = DeadRows().marking(marks.by_file, wide=wide)
        except BaseException:
            self.view.store.discard(files.given)
            raise
        placed = {bucket: PlacedKeys(hashes) for bucket, hashes in placing.placed.items()}
        marked = {bucket: each for bucket, each in dead.items() if each.has_changed}
        indexes = {**by_index_key(placed), **by_index_key(marked)}
        return Written(tuple(entries), rows.rows, indexes=indexes)

    def _files(
        self, bucket: BucketId, frames: Iterator[pl.DataFrame], files: NewFiles, marks: Marks
    ) -> Iterator[DataFileMeta]:
        options, writer = self.view.options, run_writer(self.view)
        names = files.of(paths.FileNames(), options.data_file_prefix, writer.file_format)(bucket)
        for run in prefetched(self._runs(frames)):
            metas = writer.write(
                run,
                directory=self.view.bucket_directory(*bucket),
                file_names=names,
                level=options.num_levels - 1,
                source=FileSource.COMPACT,
                threads=self.threads,
            )
            yield from self._marked(metas, run, marks) if self._marks_rows else metas

    def _runs(self, frames: Iterator[pl.DataFrame]) -> Iterator[pa.Table]:
        """The rows that are stored, in tables of about the size of a file."""
        options, schema = self.view.options, stored_schema(self.view)
        number = pl.lit(0, pl.Int64).alias(SEQUENCE_NUMBER)
        # A delete says something of nothing but what may come late.
        stored = frames if self.view.needs_tombstones else (f.filter(IS_ADD) for f in frames)
        rows = (to_arrow(frame.with_columns(number), schema) for frame in stored if frame.height)
        file_bytes = int(options.target_file_size_bytes / COMPRESSION_GUESS)
        return piled(rows, min(file_bytes, _piece_bytes(self.view)))

    def _marked(
        self, metas: Sequence[DataFileMeta], run: pa.Table, marks: Marks
    ) -> Iterator[DataFileMeta]:
        """Files that follow each other in a run, with their deletes marked as dead."""
        start = 0
        for meta in metas:
            kinds = run.column(VALUE_KIND).slice(start, meta.row_count)
            marks.add(meta.file_name, retracts_of(pl.Series(kinds)))
            start += meta.row_count
            yield replace(meta, delete_row_count=0)

    @property
    def _marks_rows(self) -> bool:
        return self.view.options.deletion_vectors_enabled


# -- with an index of keys -------------------------------------------------------------------------


def _indexed(transaction: Transaction, rows: SortedRows) -> Written:
    """The rows as the first ones of a table with an index of keys.

    Raises `InvalidError` where the index takes for one key what is spelt in several ways.
    """
    view = transaction.view
    task = transaction.here(task_of_stored(transaction.state))
    schema = view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))
    frames = (frame for _, of_bucket in rows.buckets() for frame in of_bucket)
    size_bytes = min(view.options.write_buffer_bytes, _piece_bytes(view))
    written = task.feed(piled((to_arrow(frame, schema) for frame in frames), size_bytes), 0)
    dead = sum(map(len, (v for each in written.dead.values() for v in each.vectors.values())))
    if dead == rows.deletes:
        return written
    paths_of = (path for entry in written.files for path in view.stored_paths(entry))
    task.view.store.discard(list(paths_of))
    raise InvalidError(
        f"table {view.name}: {dead - rows.deletes} rows of {rows.origin} have a key that another "
        f"row has in another spelling, which '{keys.UPSERT_HASH_FUNCTION}' = "
        f"'{view.options.upsert_hash_function}' takes for the same; each key has to have one row"
    )
