"""Column statistics: smallest value, largest value and null count, stored as binary rows.

Statistics let a reader skip files, so they may be loose but never wrong: a null minimum and
maximum mean "unknown" (unless every value is null), and a truncated maximum is rounded up.
Paimon format, statistics rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import InvalidError
from keytide.format.binary_row import EMPTY_ROW, encode_rows
from keytide.types import AtomicType, DataType, Field

__all__ = [
    "EMPTY_STATS",
    "ColumnStats",
    "SimpleStats",
    "StatsMode",
    "collect_key_stats",
    "collect_stats",
    "column_stats",
    "has_statistics",
    "row_stats",
    "truncate_max",
    "truncate_min",
    "unknown_stats",
]

KEY_STATS_LENGTH = 128


@dataclass(frozen=True, slots=True)
class SimpleStats:
    """Statistics of several columns: two binary rows and one null count for each column.

    Null counts are ``None`` where unknown, for one column or for all.
    """

    min_values: bytes
    max_values: bytes
    null_counts: tuple[int | None, ...] | None


EMPTY_STATS = SimpleStats(EMPTY_ROW, EMPTY_ROW, ())


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Statistics of one column; the bounds are Arrow arrays of one value, null when unknown."""

    minimum: pa.Array
    maximum: pa.Array
    null_count: int | None


@dataclass(frozen=True, slots=True)
class StatsMode:
    """How much of a column is kept: ``none``, ``counts``, ``truncate(n)`` or ``full``.

    `length` is in characters for texts and bytes for binaries; None keeps whole values.
    """

    name: str
    length: int | None = None

    @classmethod
    def parse(cls, text: str) -> StatsMode:
        """Parse the option's value, in any case; InvalidError names the four forms."""
        match = _MODE.fullmatch(text.strip())
        if match is None:
            raise InvalidError(
                f"statistics mode {text!r} is none of 'none', 'counts', 'truncate(n)' with n >= 1, "
                "'full'"
            )
        length = match.group("length")
        return cls(match.group().split("(")[0].lower(), None if length is None else int(length))


def collect_stats(
    table: pa.Table, fields: Sequence[Field], mode: str
) -> tuple[SimpleStats, tuple[str, ...] | None]:
    """Statistics of a file's value columns, and the names of the columns that they cover.

    The names are None exactly when every field is covered. Nested columns and TIMESTAMP(7..9)
    never are, for their Parquet form carries no statistics; under mode ``none`` no column is.
    """
    parsed = StatsMode.parse(mode)
    covered = [f for f in fields if parsed.name != "none" and has_statistics(f.type)]
    stats = row_stats(
        (column_stats(table.column(f.name), f.type, parsed) for f in covered),
        [f.type for f in covered],
    )
    every_column = len(covered) == len(fields)
    return stats, None if every_column else tuple(f.name for f in covered)


def collect_key_stats(table: pa.Table, fields: Sequence[Field]) -> SimpleStats:
    """Statistics of the key columns `fields`: always all of them, whatever the table's mode."""
    mode = StatsMode("truncate", KEY_STATS_LENGTH)
    return row_stats(
        (
            column_stats(table.column(f.name), f.type, mode)
            if has_statistics(f.type)
            else unknown_stats(f.type)
            for f in fields
        ),
        [f.type for f in fields],
    )


def row_stats(columns: Iterable[ColumnStats], types: Sequence[DataType]) -> SimpleStats:
    """Store column statistics as rows; `types` are the columns' types, in the same order."""
    stored = list(columns)
    if not stored:
        return EMPTY_STATS
    # Bounds may be unknown for any column, so the row's types are the nullable ones.
    nullable = [type_.with_nullable(True) for type_ in types]
    (min_values,) = encode_rows([column.minimum for column in stored], nullable)
    (max_values,) = encode_rows([column.maximum for column in stored], nullable)
    return SimpleStats(min_values, max_values, tuple(column.null_count for column in stored))


def column_stats(
    column: pa.ChunkedArray | pa.Array, type_: DataType, mode: StatsMode
) -> ColumnStats:
    """Statistics of one column of a type that has them."""
    arrow_type = type_.to_arrow()
    if mode.name == "counts":
        unknown = pa.nulls(1, arrow_type)
        return ColumnStats(unknown, unknown, column.null_count)
    minimum, maximum = _bounds(column, arrow_type)
    if mode.length is not None and _is_text_or_binary(arrow_type):
        minimum, maximum = _truncated(minimum, maximum, mode.length)
    return ColumnStats(minimum, maximum, column.null_count)


def unknown_stats(type_: DataType) -> ColumnStats:
    """Statistics that say nothing."""
    unknown = pa.nulls(1, type_.to_arrow())
    return ColumnStats(unknown, unknown, None)


def has_statistics(type_: DataType) -> bool:
    """Whether columns of a type carry statistics in the data files."""
    if not isinstance(type_, AtomicType) or type_.is_nested:
        return False
    # Timestamps finer than a microsecond are stored as INT96, which has no statistics.
    return not (type_.root.startswith("TIMESTAMP") and (type_.precision or 0) > 6)


def truncate_min(value: str | bytes, length: int) -> str | bytes:
    """A lower bound of at most `length` characters or bytes: the beginning of `value`."""
    return value[:length]


def truncate_max(value: str | bytes, length: int) -> str | bytes | None:
    """An upper bound of at most `length` characters or bytes; None when there is no such bound.

    A value that fits is its own bound. A longer one is cut, and its last character or byte that
    can grow is incremented.
    """
    if len(value) <= length:
        return value
    if isinstance(value, bytes):
        head = value[:length].rstrip(b"\xff")
        return head[:-1] + bytes([head[-1] + 1]) if head else None
    text = value[:length].rstrip("\U0010ffff")
    return text[:-1] + _next_character(text[-1]) if text else None


_MODE = re.compile(r"none|counts|full|truncate\((?P<length>[1-9][0-9]*)\)", re.IGNORECASE)


def _bounds(
    column: pa.ChunkedArray | pa.Array, arrow_type: pa.DataType
) -> tuple[pa.Array, pa.Array]:
    """Smallest and largest value, each an array of one value; both null when there is none."""
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        # NaN has no place in the order that all readers agree on.
        return pa.nulls(1, arrow_type), pa.nulls(1, arrow_type)
    found = pc.min_max(_comparable(column))
    minimum = pa.repeat(found["min"], 1).cast(arrow_type)
    maximum = pa.repeat(found["max"], 1).cast(arrow_type)
    if pa.types.is_floating(arrow_type):
        # Readers that order -0.0 before 0.0 must find either zero inside the bounds.
        minimum = _zero_as(minimum, -0.0)
        maximum = _zero_as(maximum, 0.0)
    return minimum, maximum


def _comparable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The column in a form that has a min_max kernel."""
    if pa.types.is_dictionary(column.type):
        return _comparable(column.cast(column.type.value_type))
    if column.type == pa.string_view():
        return column.cast(pa.large_string())
    if column.type == pa.binary_view():
        return column.cast(pa.large_binary())
    return column


def _zero_as(bound: pa.Array, zero: float) -> pa.Array:
    return pc.if_else(pc.equal(bound, 0.0), pa.scalar(zero, bound.type), bound)


def _is_text_or_binary(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type))


def _truncated(minimum: pa.Array, maximum: pa.Array, length: int) -> tuple[pa.Array, pa.Array]:
    low, high = minimum[0].as_py(), maximum[0].as_py()
    if low is None:
        return minimum, maximum
    bound = truncate_max(high, length)
    if bound is None:
        # One bound without the other would be read as "all null" or "unknown" at will.
        unknown = pa.nulls(1, minimum.type)
        return unknown, unknown
    return pa.array([truncate_min(low, length)], minimum.type), pa.array([bound], maximum.type)


def _next_character(character: str) -> str:
    code = ord(character) + 1
    # The surrogates between U+D7FF and U+E000 are no characters.
    return chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
