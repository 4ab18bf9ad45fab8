"""The first rows of a table, written where a full compaction of all of them would put them.

Each bucket gets sorted files on its highest level, without a key in common, so nothing is left to
be merged or compacted. Of a table with an index of keys, whose files have no levels, rows are
written as ever, and the index tells whether each key came once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.errors import InvalidError, UnsupportedError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.order import IS_ADD
from keytide.options import keys
from keytide.table.commit.transaction import Transaction
from keytide.table.compaction.pile import piled
from keytide.table.compaction.rewriting import COMPRESSION_GUESS
from keytide.table.level_files import LevelFiles
from keytide.table.read.prefetch import prefetched
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.write.input_rows import Rows, incoming_rows
from keytide.table.write.layout import Placing
from keytide.table.write.refusals import refuse_unmergeable
from keytide.table.write.sorted_rows import COPIES, InOrder, OutOfOrderError, SortedRows
from keytide.table.write.stored_rows import task_of_stored
from keytide.table.write.task import Written

__all__ = ["fill_lowest_level"]

_PIECE_BYTES_MIN = 1 << 20
# Buckets whose files would be smaller, in Arrow's bytes, are written one after the other.
_FILE_BYTES_MIN = 32 << 20

_Stream: TypeAlias = "Iterator[tuple[BucketId, pl.DataFrame]]"
"""Rows of buckets; those of a bucket come in the order of the key."""


def fill_lowest_level(
    transaction: Transaction, read: Callable[[], Iterable[pa.Table]], origin: str
) -> None:
    """Write rows, one of each key, as the part of a transaction on a table without rows.

    `read` gives them, in any order; a second time, where they seemed to come in the order of the
    key and did not. About as much memory is used as 'read.memory' says; what is more lies on local
    disk for a while, unless the order is that of the key and the buckets are few. `origin` says to
    people where the rows come from. Nothing is left behind after an error. Raises `InvalidError`
    for several rows of a key and for rows that do not fit, `UnsupportedError` for a table whose
    keys move between partitions, `DataError` when the store or the local disk fails.
    """
    task = transaction.here(transaction.task())
    view = task.view
    _refuse_layout(view)
    buckets = _buckets_at_once(view)
    if buckets:
        placing = task.layout.begin()
        with suppress(OutOfOrderError):
            stream = _as_they_come(read, InOrder(view, placing))
            transaction.take(_written(transaction, view, placing, stream, buckets, origin))
            return
    placing = task.layout.begin()
    stream = _sorted(read, SortedRows(view, placing, view.options.read_memory_bytes, origin))
    transaction.take(_written(transaction, view, placing, stream, 1, origin))


def _refuse_layout(view: TableView) -> None:
    """Refuse tables of which a row says more than itself."""
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: the partition columns {', '.join(view.schema.partition_keys)} are "
            f"not in the primary key, so whether each key has one row would have to be looked for "
            f"in all partitions; add them to the primary key, or partition by no column"
        )
    if view.options.sequence_auto_padding:
        raise UnsupportedError(
            f"table {view.name}: '{keys.SEQUENCE_AUTO_PADDING}' numbers rows as they are written, "
            f"and these were written before; name a '{keys.WATERMARK_KEY}' instead"
        )


# -- in which order rows come ----------------------------------------------------------------------


def _buckets_at_once(view: TableView) -> int:
    """The number of buckets, where files of all of them can be under way at once; else 0."""
    buckets = 0 if view.schema.partition_keys else max(0, view.options.bucket)
    enough = min(_FILE_BYTES_MIN, _file_bytes(view))
    return buckets if buckets and _piece_bytes(view) // buckets >= enough else 0


def _as_they_come(read: Callable[[], Iterable[pa.Table]], in_order: InOrder) -> _Stream:
    for given in prefetched(iter(read())):
        yield from in_order.of(_complete(given, in_order.view))


def _sorted(read: Callable[[], Iterable[pa.Table]], rows: SortedRows) -> _Stream:
    for given in prefetched(iter(read())):
        rows.add(_complete(given, rows.view))
    yield from prefetched(rows.in_order())


def _complete(given: pa.Table, view: TableView) -> Rows:
    rows = incoming_rows(given, view.schema, view.options, view.name)
    refuse_unmergeable(rows.frame, view)
    return rows


def _piece_bytes(view: TableView) -> int:
    """How much is put together before it is written; files of less would be too small."""
    return max(_PIECE_BYTES_MIN, view.options.read_memory_bytes // COPIES)


def _file_bytes(view: TableView) -> int:
    return int(view.options.target_file_size_bytes / COMPRESSION_GUESS)


# -- what becomes of them --------------------------------------------------------------------------


def _written(
    transaction: Transaction,
    view: TableView,
    placing: Placing,
    stream: _Stream,
    at_once: int,
    origin: str,
) -> Written:
    """The rows of a stream as files; those of so many buckets come at once."""
    if view.kind.has_key_index:
        return _indexed(transaction, stream, origin)
    pile_bytes = min(_piece_bytes(view) // at_once, _file_bytes(view))
    with LevelFiles(view, placing, pile_bytes, at_once) as files:
        for bucket, frame in stream:
            files.add(bucket, frame)
        return files.written()


def _indexed(transaction: Transaction, stream: _Stream, origin: str) -> Written:
    """The rows as the first ones of a table with an index of keys.

    Raises `InvalidError` where the index takes for one key what is spelt in several ways.
    """
    view, deletes = transaction.view, 0
    task = transaction.here(task_of_stored(transaction.state))
    schema = view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))

    def tables() -> Iterator[pa.Table]:
        nonlocal deletes
        for _, frame in stream:
            deletes += frame.height - int(frame.select(IS_ADD.alias("add"))["add"].sum())
            yield to_arrow(frame, schema)

    size_bytes = min(view.options.write_buffer_bytes, _piece_bytes(view))
    written = task.feed(piled(tables(), size_bytes), 0)
    dead = sum(len(vector) for each in written.dead.values() for vector in each.vectors.values())
    if dead == deletes:
        return written
    made = (path for entry in written.files for path in view.stored_paths(entry))
    task.view.store.discard(list(made))
    raise InvalidError(
        f"table {view.name}: {dead - deletes} rows of {origin} have a key that another row has in "
        f"another spelling, which '{keys.UPSERT_HASH_FUNCTION}' = "
        f"'{view.options.upsert_hash_function}' takes for the same; each key has to have one row"
    )
