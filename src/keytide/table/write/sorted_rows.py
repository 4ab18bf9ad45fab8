"""Rows on their way to sorted files that have no key in common, in whatever order they come.

Each piece that fits in memory is cut by bucket and sorted. If there are several, they lie on local
disk, and the pieces of a bucket are brought together by stretches of keys. Pieces that do not
overlap, as those of rows that come in the order of the key, follow each other without a merge.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER
from keytide.merge.outcomes import shown
from keytide.merge.windows import Batch, key_windows
from keytide.store.base import disk_errors
from keytide.table.read.sections import key_ranks
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.write.bucket_writer import stored_schema
from keytide.table.write.input_rows import Rows
from keytide.table.write.layout import Placing

__all__ = ["COPIES", "SortedRows"]

COPIES = 4
"""As what a row is held: as it came, cut by bucket, sorted, and as it is stored."""
_BATCH_ROWS_MIN = 4 << 10
_NAMED_KEYS_MAX = 3


@dataclass
class SortedRows:
    """Rows of a new table, of which each key has one: first `add`ed, then taken bucket by bucket.

    Memory and disk are free again with the object. About `memory_bytes` are held, and what is more
    in one temporary file for each piece, without a name. `origin` says to people where rows come
    from.
    """

    view: TableView
    placing: Placing
    memory_bytes: int
    origin: str
    rows: int = 0
    deletes: int = 0
    """How many of them mark their key as deleted."""
    _waiting: dict[BucketId, list[pl.DataFrame]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _pieces: dict[BucketId, list[_Piece]] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Take some rows. Raises `InvalidError` naming keys of which several came."""
        frame, cut = self.placing.cut(rows.frame, rows.table, self.view)
        self.rows += frame.height
        self.deletes += frame.height - int(frame.select(IS_ADD.alias("add"))["add"].sum())
        for bucket, part in cut.parts(frame):
            self._waiting.setdefault(bucket, []).append(part)
            self._waiting_bytes += int(part.estimated_size())
        if self._waiting_bytes > self.memory_bytes // COPIES:
            self._store()

    def buckets(self) -> Iterator[tuple[BucketId, Iterator[pl.DataFrame]]]:
        """The rows of each bucket in the order of the key, in frames; nothing is added then.

        Each is taken to its end before the next one. The frames raise as `add`.
        """
        for bucket, frame in self._sorted():
            self._pieces.setdefault(bucket, []).append(_Piece(frame, _ends(frame, self._key)))
        for bucket in sorted(self._pieces):
            yield bucket, self._frames(self._pieces.pop(bucket))

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self.view.schema.primary_keys)

    def _frames(self, pieces: Sequence[_Piece]) -> Iterator[pl.DataFrame]:
        runs = _without_overlap(pieces)
        row_bytes = max(1, max(piece.row_bytes for piece in pieces))
        rows_max = max(_BATCH_ROWS_MIN, self.memory_bytes // COPIES // row_bytes // len(runs))
        for window in key_windows([_batches(run, rows_max) for run in runs], self._key):
            if len(window) == 1:
                yield window[0]
                continue
            together = pl.concat(window).sort(self._key, nulls_last=False)
            self._refuse_repeated(together)
            yield together

    def _sorted(self) -> Iterator[tuple[BucketId, pl.DataFrame]]:
        """What waits, sorted by bucket and key; nothing waits then."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for bucket in sorted(waiting):
            frame = pl.concat(waiting.pop(bucket))
            if not _is_sorted(frame, self._key):
                frame = frame.sort(self._key, nulls_last=False)
            self._refuse_repeated(frame)
            yield bucket, frame

    def _store(self) -> None:
        """Put what waits into a file."""
        schema = stored_schema(self.view)
        schema = schema.remove(schema.get_field_index(SEQUENCE_NUMBER))
        found: list[tuple[BucketId, pl.DataFrame, int]] = []
        with (
            disk_errors("write", tempfile.gettempdir()),
            tempfile.TemporaryFile(prefix="keytide-sort-") as file,
        ):
            with pa.ipc.new_file(file, schema) as writer:
                for bucket, frame in self._sorted():
                    batches = to_arrow(frame, schema).combine_chunks().to_batches()
                    for batch in batches:
                        writer.write_batch(batch)
                    found.append((bucket, _ends(frame, self._key), len(batches)))
            file.flush()
            mapped = np.memmap(file, np.uint8, "r")
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        start = 0
        for bucket, ends, count in found:
            batches = [reader.get_batch(place) for place in range(start, start + count)]
            start += count
            piece = _Piece(pa.Table.from_batches(batches), ends)
            self._pieces.setdefault(bucket, []).append(piece)

    def _refuse_repeated(self, rows: pl.DataFrame) -> None:
        """Refuse rows of one key. REQUIRES: they are sorted by the key."""
        again = rows.select(_equal_to_next(self._key).alias("again"))["again"]
        if not again.any():
            return
        keys = rows.filter(again).select(self._key).unique(maintain_order=True)
        named = [
            ", ".join(f"{n} = {shown(v)}" for n, v in zip(self._key, key, strict=True))
            for key in keys.head(_NAMED_KEYS_MAX).rows()
        ]
        raise InvalidError(
            f"table {self.view.name}: each key has to have one row, and among those with more in "
            f"{self.origin} are {'; '.join(named)}. Define an external table there, which merges "
            f"the rows of a key, and CREATE TABLE ... AS SELECT its rows"
        )


@dataclass(frozen=True)
class _Piece:
    """Rows of one bucket sorted by key; `ends` has the first and the last key."""

    rows: pl.DataFrame | pa.Table
    ends: pl.DataFrame

    @property
    def row_bytes(self) -> int:
        """What a row takes in memory."""
        size = self.rows.nbytes if isinstance(self.rows, pa.Table) else self.rows.estimated_size()
        return int(size) // len(self.rows)

    def frames(self, rows_max: int) -> Iterator[pl.DataFrame]:
        """The rows, so many at a time."""
        for start in range(0, len(self.rows), rows_max):
            some = self.rows.slice(start, rows_max)
            yield from_arrow(some) if isinstance(some, pa.Table) else some


def _without_overlap(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces in as few rows as can be, each of pieces that have no key in common."""
    ranks = key_ranks(pl.concat([piece.ends for piece in pieces]))
    spans = sorted(range(len(pieces)), key=lambda place: ranks[2 * place])
    runs: list[tuple[int, list[_Piece]]] = []
    for place in spans:
        low, high = ranks[2 * place], ranks[2 * place + 1]
        free = next((i for i, (end, _) in enumerate(runs) if end < low), None)
        if free is None:
            runs.append((high, [pieces[place]]))
        else:
            runs[free] = (high, [*runs[free][1], pieces[place]])
    return [run for _, run in runs]


def _batches(run: Sequence[_Piece], rows_max: int) -> Iterator[Batch]:
    return (Batch(frame) for piece in run for frame in piece.frames(rows_max))


def _ends(frame: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    keys = frame.select(key)
    return pl.concat([keys.head(1), keys.tail(1)])


def _is_sorted(frame: pl.DataFrame, key: Sequence[str]) -> bool:
    return len(key) == 1 and bool(frame[key[0]].is_sorted())


def _equal_to_next(key: Sequence[str]) -> pl.Expr:
    return pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in key) & (
        pl.int_range(pl.len()) < pl.len() - 1
    )
