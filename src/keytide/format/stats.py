"""Column statistics: smallest value, largest value and NULL count, stored as binary rows.

Statistics allow a reader to skip files, so they may be loose but never wrong. A NULL minimum and
maximum mean "unknown" (unless every value is NULL), and a truncated maximum is rounded up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.errors import InvalidError
from keytide.format.binary_row import EMPTY_ROW, encode_rows
from keytide.types import AtomicType, DataType, Field


@dataclass(frozen=True, slots=True)
class SimpleStats:
    """Statistics of several columns: two binary rows and one NULL count for each column.

    NULL counts are ``None`` if unknown, for one column or for all.
    """

    min_values: bytes
    max_values: bytes
    null_counts: tuple[int | None, ...] | None


EMPTY_STATS = SimpleStats(EMPTY_ROW, EMPTY_ROW, ())


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Statistics of one column in some pieces. Bounds and counts are NULL if unknown."""

    type: DataType
    minimum: pa.Array
    maximum: pa.Array
    null_counts: tuple[int | None, ...]

    def within(self, mode: StatsMode) -> ColumnStats:
        """As much of them as a mode keeps, in bounds that contain the values for every reader."""
        minimum, maximum = self.minimum, self.maximum
        if mode.name == "counts" or bool(
            pa.types.is_binary(minimum.type) or pa.types.is_large_binary(minimum.type)
        ):
            # Engines disagree whether bytes have a sign, so bounds of bytes would mislead some.
            minimum = maximum = pa.nulls(len(minimum), minimum.type)
        elif pa.types.is_floating(minimum.type):
            # Readers that order -0.0 before 0.0 must find both zeros inside the bounds.
            low_zero, high_zero = (pa.scalar(zero, minimum.type) for zero in (-0.0, 0.0))
            minimum = pc.if_else(pc.equal(minimum, 0.0), low_zero, minimum)
            maximum = pc.if_else(pc.equal(maximum, 0.0), high_zero, maximum)
        elif mode.length is not None and bool(
            pa.types.is_string(minimum.type) or pa.types.is_binary(minimum.type)
        ):
            length = mode.length
            lows, highs = [], []
            for low, high in zip(minimum.to_pylist(), maximum.to_pylist(), strict=True):
                # A long string of only the highest character has no short upper bound.
                bound = None if high is None else truncate_max(high, length)
                # One bound without the other could be read as "all NULL" or as "unknown".
                lows.append(None if bound is None else truncate_min(low, length))
                highs.append(bound)
            minimum, maximum = pa.array(lows, minimum.type), pa.array(highs, maximum.type)
        return replace(self, minimum=minimum, maximum=maximum)


@dataclass(frozen=True, slots=True)
class StatsMode:
    """How much of a column is kept: ``none``, ``counts``, ``truncate(n)`` or ``full``.

    `length` is in characters for strings and in bytes for binaries. None keeps whole values.
    """

    name: str
    length: int | None = None

    @classmethod
    def parse(cls, text: str) -> StatsMode:
        """Parse the option's value, case-insensitive.

        Raises InvalidError, which lists the four forms.
        """
        match = _MODE.fullmatch(text.strip())
        if match is None:
            raise InvalidError(
                f"statistics mode {text!r} is not one of 'none', 'counts', 'truncate(n)' with "
                "n >= 1, 'full'"
            )
        length = match.group("length")
        return cls(match.group().split("(")[0].lower(), None if length is None else int(length))


# Up to this number of pieces, processing them individually is faster than planning for all of them.
_FEW_PIECES = 16
# Longer bounds than for other columns, because reads by key prune best.
_KEY_MODE = StatsMode("truncate", 128)


class PieceStats(NamedTuple):
    """Statistics of the pieces of a table, one for each: of their keys and of their values.

    `columns` are the names of the covered value columns. None means exactly all of them. Nested
    columns and TIMESTAMP(7..9) are never covered, because their Parquet form has no statistics.
    With mode ``none``, no column is. Keys have all of their columns, whatever the mode.
    """

    keys: list[SimpleStats]
    values: list[SimpleStats]
    columns: tuple[str, ...] | None


def collect_piece_stats(
    table: pa.Table,
    lengths: Sequence[int],
    keys: Sequence[Field],
    fields: Sequence[Field],
    mode: str,
) -> PieceStats:
    """Statistics of each of the pieces that a table is cut into, which have `lengths` rows.

    REQUIRES: if there are several pieces, none is empty.
    """
    parsed = StatsMode.parse(mode)
    covered = [f for f in fields if parsed.name != "none" and has_statistics(f.type)]
    pieces = _Pieces(lengths)
    measured = {
        f.name: _measured(table.column(f.name), f.type, pieces)
        for f in {f.name: f for f in (*keys, *covered)}.values()
        if has_statistics(f.type)
    }
    of_keys = [
        measured[f.name].within(_KEY_MODE)
        if f.name in measured
        else unknown_stats(f.type, len(lengths))
        for f in keys
    ]
    of_values = [measured[f.name].within(parsed) for f in covered]
    every_column = len(covered) == len(fields)
    key_rows, value_rows = row_stats([of_keys, of_values], len(lengths))
    return PieceStats(
        key_rows, value_rows, None if every_column else tuple(f.name for f in covered)
    )


def row_stats(groups: Iterable[Sequence[ColumnStats]], count: int = 1) -> list[list[SimpleStats]]:
    """Store groups of column statistics of `count` pieces: for each group, one row for each
    piece.
    """
    stored = []
    for columns in groups:
        if not columns:
            stored.append([EMPTY_STATS] * count)
            continue
        # Bounds may be unknown for any column, so the row's types are the nullable ones.
        types = [column.type.with_nullable(True) for column in columns]
        min_values = encode_rows([column.minimum for column in columns], types)
        max_values = encode_rows([column.maximum for column in columns], types)
        null_counts = zip(*(column.null_counts for column in columns), strict=True)
        rows = zip(min_values, max_values, null_counts, strict=True)
        stored.append([SimpleStats(*row) for row in rows])
    return stored


def column_stats(column: pa.Array, type_: DataType, mode: StatsMode) -> ColumnStats:
    """Statistics of one column whose type supports them."""
    return _measured(pa.chunked_array([column]), type_, _Pieces([len(column)])).within(mode)


def unknown_stats(type_: DataType, count: int = 1) -> ColumnStats:
    """Unknown statistics."""
    unknown = pa.nulls(count, type_.to_arrow())
    return ColumnStats(type_, unknown, unknown, (None,) * count)


def has_statistics(type_: DataType) -> bool:
    """Whether columns of a type have statistics in the data files."""
    if not isinstance(type_, AtomicType) or type_.is_nested:
        return False
    # Timestamps finer than a microsecond are stored as INT96, which has no statistics.
    return not (type_.root.startswith("TIMESTAMP") and (type_.precision or 0) > 6)


def truncate_min(value: str | bytes, length: int) -> str | bytes:
    """A lower bound of at most `length` characters or bytes: the beginning of `value`."""
    return value[:length]


def truncate_max(value: str | bytes, length: int) -> str | bytes | None:
    """An upper bound of at most `length` characters or bytes. None if there is no such bound.

    A value that fits is its own bound. A longer one is cut, and its last character or byte that can
    be incremented is incremented.
    """
    if len(value) <= length:
        return value
    if isinstance(value, bytes):
        head = value[:length].rstrip(b"\xff")
        return head[:-1] + bytes([head[-1] + 1]) if head else None
    text = value[:length].rstrip("\U0010ffff")
    if not text:
        return None
    code = ord(text[-1]) + 1
    # The surrogates between U+D7FF and U+E000 are not characters.
    return text[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)


_MODE = re.compile(r"none|counts|full|truncate\((?P<length>[1-9][0-9]*)\)", re.IGNORECASE)


@dataclass(frozen=True)
class _Pieces:
    """The number of rows in each piece of a table."""

    lengths: Sequence[int]

    @cached_property
    def groups(self) -> pl.Series:
        """The number of each row's piece."""
        return pl.Series("piece", np.repeat(np.arange(len(self.lengths)), self.lengths))

    def of(self, column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
        """The pieces of a column."""
        start = 0
        for length in self.lengths:
            yield column.slice(start, length)
            start += length


def _measured(column: pa.ChunkedArray, type_: DataType, pieces: _Pieces) -> ColumnStats:
    """The number of NULLs, the smallest and the largest value of each piece."""
    arrow_type = type_.to_arrow()
    if column.type != arrow_type:  # dictionaries and views have no order of their own
        column = column.cast(arrow_type)
    measure = _one_by_one if len(pieces.lengths) <= _FEW_PIECES else _of_pieces
    nulls, *bounds = measure(column, pieces)
    minimum, maximum = (_whole(bound).cast(arrow_type) for bound in bounds)
    return ColumnStats(type_, minimum, maximum, tuple(nulls.to_pylist()))


def _one_by_one(column: pa.ChunkedArray, pieces: _Pieces) -> tuple[pa.Array, pa.Array, pa.Array]:
    """NULLs, smallest and largest value of each piece."""
    each = [*pieces.of(column)]
    ends = [_bounds(piece) for piece in each]
    return (
        pa.array([piece.null_count for piece in each]),
        pa.array([low for low, _ in ends], column.type),
        pa.array([high for _, high in ends], column.type),
    )


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if not pa.types.is_floating(column.type):
        found = pc.min_max(column)
        return found["min"], found["max"]
    # Readers do not agree on the position of NaN in the order.
    if pc.any(pc.is_nan(column)).as_py():
        return None, None
    # Polars compares many floats at a time, Arrow one by one.
    values = pl.Series(pl.from_arrow(column, rechunk=False))
    return values.min(), values.max()


def _of_pieces(
    column: pa.ChunkedArray, pieces: _Pieces
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """The same for many pieces together."""
    # One column at a time: the time for a Polars plan grows with the square of its columns.
    frame = pl.Series("c", pl.from_arrow(column, rechunk=False)).to_frame()
    values = pl.col("c")
    bounds = [values.min(), values.max()]
    if frame.schema["c"].is_float():
        bounds = [pl.when(~values.is_nan().any()).then(bound) for bound in bounds]
    terms = [values.null_count(), bounds[0].alias("min"), bounds[1].alias("max")]
    found = frame.group_by(pieces.groups, maintain_order=True).agg(terms)
    table = found.select("c", "min", "max").to_arrow(compat_level=pl.CompatLevel.oldest())
    nulls, low, high = table.columns
    return nulls, low, high


def _whole(bounds: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(bounds, pa.Array):
        return bounds
    return bounds.chunk(0) if bounds.num_chunks == 1 else bounds.combine_chunks()
