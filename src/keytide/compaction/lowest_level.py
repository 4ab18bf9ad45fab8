"""Writes the first rows of a table directly to where a full compaction would put them.

Each bucket gets sorted files on its highest level without common keys, so nothing is left to merge
or compact. In a table with a key index, whose files have no levels, rows are written as usual, and
the index checks that each key occurs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.commit.transaction import Transaction
from keytide.compaction.level_files import LevelFiles
from keytide.compaction.pile import FileSize, piled
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.order import IS_ADD
from keytide.options import keys
from keytide.read.prefetch import prefetched
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.write.input_rows import Rows, incoming_rows
from keytide.write.layout import Placing
from keytide.write.refusals import refuse_unmergeable
from keytide.write.sorted_rows import COPIES, InOrder, OutOfOrderError, SortedRows
from keytide.write.stored_rows import task_of_stored
from keytide.write.task import Written

__all__ = ["fill_lowest_level"]

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
    _refuse_layout(transaction.view)
    filling = _Filling(transaction, read, origin)
    if filling.may_pass_straight:
        with suppress(OutOfOrderError):
            transaction.take(filling.as_they_come())
            return
    transaction.take(filling.sorted())


def _refuse_layout(view: TableView) -> None:
    """Refuse tables in which the effect of a row depends on other rows."""
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


@dataclass(frozen=True)
class _Filling:
    """A transaction on a table without rows, and the rows to write."""

    transaction: Transaction
    read: Callable[[], Iterable[pa.Table]]
    origin: str

    @property
    def may_pass_straight(self) -> bool:
        """Whether files of all buckets can be written at the same time, and are large enough."""
        buckets = self._buckets
        enough = min(_FILE_BYTES_MIN, self._file_bytes, self._piece_bytes)
        return buckets > 0 and self._piece_bytes // buckets >= enough

    def as_they_come(self) -> Written:
        """The rows in the order of reading. Raises `OutOfOrderError`, with nothing left behind."""
        placing = self._begin()
        in_order = InOrder(self._view, placing)
        stream = (part for rows in self._rows() for part in in_order.of(rows))
        return self._written(placing, stream, self._buckets)

    def sorted(self) -> Written:
        """The rows sorted by bucket and key."""
        placing = self._begin()
        memory_bytes = self._view.options.read_memory_bytes
        held = SortedRows(self._view, placing, memory_bytes, self.origin)
        for rows in self._rows():
            held.add(rows)
        return self._written(placing, prefetched(held.in_order()), 1)

    # -- reading -------------------------------------------------------------------------------

    @property
    def _view(self) -> TableView:
        return self.transaction.view

    def _rows(self) -> Iterator[Rows]:
        view = self._view
        for given in prefetched(iter(self.read())):
            rows = incoming_rows(given, view.schema, view.options, view.name)
            refuse_unmergeable(rows.frame, view, rows.refusals)
            yield rows

    # -- writing -------------------------------------------------------------------------------

    def _begin(self) -> Placing:
        return self.transaction.task().layout.begin()

    @property
    def _buckets(self) -> int:
        """The number of buckets. 0 if it is unknown."""
        return 0 if self._view.schema.partition_keys else max(0, self._view.options.bucket)

    @property
    def _piece_bytes(self) -> int:
        """How much is collected before it is written: smaller files would be too small."""
        return max(_PIECE_BYTES_MIN, self._view.options.read_memory_bytes // COPIES)

    @property
    def _file_bytes(self) -> int:
        return FileSize.of(self._view).piled_bytes

    def _written(self, placing: Placing, stream: _Stream, at_once: int) -> Written:
        """The rows of a stream as files. Rows of `at_once` buckets arrive at a time."""
        if self._view.kind.has_key_index:
            return self._indexed(stream)
        view = self.transaction.here(self.transaction.task()).view
        pile_bytes = min(self._piece_bytes // at_once, self._file_bytes)
        with LevelFiles(view, placing, pile_bytes, at_once) as files:
            for bucket, frame in stream:
                files.add(bucket, frame)
            return files.written()

    def _indexed(self, stream: _Stream) -> Written:
        """The rows as the first ones of a table with a key index.

        Raises `InvalidError` if the index treats different spellings as one key.
        """
        view, counted = self._view, _Counted(stream)
        task = self.transaction.here(task_of_stored(self.transaction.state))
        schema = view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))
        tables = (to_arrow(frame, schema) for frame in counted.frames())
        size_bytes = min(view.options.write_buffer_bytes, self._piece_bytes)
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
class _Counted:
    """A stream that counts its deletes."""

    stream: _Stream
    deletes: int = 0

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows."""
        for _, frame in self.stream:
            self.deletes += frame.height - int(frame.select(IS_ADD.alias("add"))["add"].sum())
            yield frame
