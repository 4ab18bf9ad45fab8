"""Sorts rows that arrive in any order, for sorted files that have no key in common.

As long as they fit in memory, rows are held, split by bucket. Then they are sorted and become a
piece. If there are several pieces, they are on local disk, and the pieces of a bucket are merged by
key ranges. Pieces that do not overlap, such as those of sorted files, are concatenated without a
merge. Rows that arrive in key order need none of this, see `InOrder`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Any

import polars as pl
import pyarrow as pa

from keytide.base.value_text import held_by_python
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.merge.outcomes import shown
from keytide.merge.windows import Batch, key_windows
from keytide.read.sections import key_ranks
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.store.base import disk_errors
from keytide.write.bucket_writer import stored_schema
from keytide.write.input_rows import Rows
from keytide.write.layout import Placing

__all__ = ["COPIES", "InOrder", "OutOfOrderError", "SortedRows"]

COPIES = 4
"""How many copies of a row are in memory: as it arrived, split by bucket, sorted, and as stored."""

# A piece is stored in this many parts. During a merge, one part of each piece of a bucket is in
# memory.
_PARTS = 256
_BATCH_ROWS_MIN = 4 << 10
_NAMED_KEYS_MAX = 3


class OutOfOrderError(Exception):
    """A row does not come after the previous row."""


@dataclass
class InOrder:
    """Rows that arrive in key order, each key once, split by bucket."""

    view: TableView
    placing: Placing
    _last: pl.DataFrame | None = None

    def of(self, rows: Rows) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The sorted rows of each bucket.

        Raises `OutOfOrderError` if a row should have come earlier.
        """
        frame, cut = self.placing.cut(rows.frame, rows.table, self.view)
        keys = frame.select(self.view.schema.primary_keys)
        known = keys if self._last is None else pl.concat([self._last, keys])
        if not _is_strictly_sorted(known):
            raise OutOfOrderError
        self._last = known.tail(1)
        yield from cut.parts(frame)


@dataclass
class SortedRows:
    """The rows of a new table, one per key: first `add` all rows, then take them in order.

    Memory and disk space are freed with the object. About `memory_bytes` are in memory, and the
    rest is in an unnamed temporary file. `origin` says in messages where the rows come from.
    """

    view: TableView
    placing: Placing
    memory_bytes: int
    origin: str
    _waiting: dict[BucketId, list[pl.DataFrame]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _pieces: dict[BucketId, list[_Piece]] = field(default_factory=dict)
    _spill: _Spill | None = None

    def add(self, rows: Rows) -> None:
        """Add rows. Raises `InvalidError`, which names keys that occur several times."""
        frame, cut = self.placing.cut(rows.frame, rows.table, self.view)
        for bucket, part in cut.parts(frame):
            self._waiting.setdefault(bucket, []).append(part)
            self._waiting_bytes += int(part.estimated_size())
        if self._waiting_bytes > self.memory_bytes // COPIES:
            self._store()

    def in_order(self) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The rows bucket by bucket, in key order. Nothing can be added after this call.

        Raises like `add`.
        """
        for bucket, frame in self._sorted():
            self._pieces.setdefault(bucket, []).append(_Held(frame, self._key))
        for bucket in sorted(self._pieces):
            yield from ((bucket, frame) for frame in self._frames(self._pieces.pop(bucket)))

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self.view.schema.primary_keys)

    def _frames(self, pieces: Sequence[_Piece]) -> Iterator[pl.DataFrame]:
        runs = _without_overlap(pieces)
        for window in key_windows([_batches(run) for run in runs], self._key):
            if len(window) == 1:
                yield window[0]
                continue
            together = pl.concat(window).sort(self._key, nulls_last=False)
            self._refuse_repeated(together)
            yield together

    def _sorted(self) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """The rows in memory, bucket by bucket, sorted by key. The memory is empty afterwards."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for bucket in sorted(waiting):
            frame = pl.concat(waiting.pop(bucket)).sort(self._key, nulls_last=False)
            self._refuse_repeated(frame)
            yield bucket, frame

    def _store(self) -> None:
        """Write the rows in memory to local disk."""
        if self._spill is None:
            schema = stored_schema(self.view)
            schema = schema.remove(schema.get_field_index(SEQUENCE_NUMBER))
            self._spill = _Spill(schema, self._key)
        for bucket, frame in self._sorted():
            rows_max = max(_BATCH_ROWS_MIN, frame.height // _PARTS)
            self._pieces.setdefault(bucket, []).append(self._spill.add(frame, rows_max))

    def _refuse_repeated(self, rows: pl.DataFrame) -> None:
        """Refuse several rows of one key. REQUIRES: the rows are sorted by key."""
        again = _equals_next(rows.select(self._key))
        if not again.any():
            return
        keys = rows.filter(again).select(self._key).unique(maintain_order=True)
        named = [
            ", ".join(f"{n} = {shown(v)}" for n, v in zip(self._key, key, strict=True))
            for key in held_by_python(keys.head(_NAMED_KEYS_MAX)).rows()
        ]
        raise InvalidError(
            f"table {self.view.name}: each key has to have one row, and among those with more in "
            f"{self.origin} are {'; '.join(named)}. Define an external table there, which merges "
            f"the rows of a key, and CREATE TABLE ... AS SELECT its rows"
        )


# -- pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """Rows of one bucket sorted by key, in memory."""

    rows: pl.DataFrame
    key: tuple[str, ...]

    @property
    def ends(self) -> pl.DataFrame:
        """The first and the last key."""
        keys = self.rows.select(self.key)
        return pl.concat([keys.head(1), keys.tail(1)])

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows in order."""
        return iter([self.rows])


@dataclass(frozen=True)
class _Stored:
    """The same on local disk: a range of batches in a file."""

    spill: _Spill
    first: int
    stop: int
    ends: pl.DataFrame

    def frames(self) -> Iterator[pl.DataFrame]:
        """The rows in order, some at a time."""
        return (self.spill.batch(number) for number in range(self.first, self.stop))


_Piece = _Held | _Stored


class _Spill:
    """A temporary file of batches. First written, then read, possibly by several threads."""

    def __init__(self, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._schema = schema
        self._key = key
        self._written = 0
        self._reading = Lock()
        with disk_errors("write", tempfile.gettempdir()):
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="keytide-sort-")  # noqa: SIM115  # closed with the object
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer: Any = pa.ipc.new_file(self._file, schema, options=options)
        self._reader: Any = None

    def add(self, rows: pl.DataFrame, rows_max: int) -> _Stored:
        """Store rows in batches of at most `rows_max`."""
        first, stored = self._written, to_arrow(rows, self._schema).combine_chunks()
        with disk_errors("write", tempfile.gettempdir()):
            for batch in stored.to_batches(rows_max):
                self._writer.write_batch(batch)
                self._written += 1
        # `take` copies rows. A slice would keep all of them in memory.
        ends = from_arrow(stored.select(self._key).take([0, rows.height - 1]))
        return _Stored(self, first, self._written, ends)

    def batch(self, number: int) -> pl.DataFrame:
        """A batch. Nothing can be added after this call."""
        with disk_errors("read", tempfile.gettempdir()), self._reading:
            if self._reader is None:
                self._writer.close()
                self._file.flush()
                self._reader = pa.ipc.open_file(self._file)
            return from_arrow(pa.Table.from_batches([self._reader.get_batch(number)]))


def _without_overlap(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces in as few runs as possible. The pieces of a run have no key in common."""
    ranks = key_ranks(pl.concat([piece.ends for piece in pieces]))
    runs: list[tuple[int, list[_Piece]]] = []
    for place in sorted(range(len(pieces)), key=lambda place: ranks[2 * place]):
        low, high = ranks[2 * place], ranks[2 * place + 1]
        free = next((i for i, (end, _) in enumerate(runs) if end < low), None)
        if free is None:
            runs.append((high, [pieces[place]]))
        else:
            runs[free] = (high, [*runs[free][1], pieces[place]])
    return [run for _, run in runs]


def _batches(run: Sequence[_Piece]) -> Iterator[Batch]:
    return (Batch(frame) for piece in run for frame in piece.frames())


# -- keys ------------------------------------------------------------------------------------------


def _equals_next(keys: pl.DataFrame) -> pl.Series:
    """Which keys are equal to the next one."""
    same = [pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in keys.columns]
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    return keys.select((pl.all_horizontal(same) & ~is_last).alias("equals")).to_series()


def _is_strictly_sorted(keys: pl.DataFrame) -> bool:
    """Whether each key is larger than the previous one."""
    above = pl.lit(value=False)
    for name in reversed(keys.columns):
        column, before = pl.col(name), pl.col(name).shift(1)
        above = (column > before) | ((column == before) & above)
    is_first = pl.int_range(pl.len()) == 0
    return bool(keys.select((above | is_first).all()).item())
