"""The order of a key's versions, and the equality of keys.

Versions are ordered by key, then by the sequence fields (NULL lowest in both directions, field by
field; NaN highest; -0.0 equals 0.0), then by `_SEQUENCE_NUMBER`, then retracts before adds, then by
arrival. The later row wins (rules R1, R2 and R27 to R29 of docs/semantics.md).

A row is out of order if it is older, by the sequence fields, than what arrived before.

With `sequence.auto-padding`, sequence numbers are derived from a coarse sequence field. Paimon
releases before 0.8 stored the padded number as the record's sequence number. Keytide does the same,
so every reader can use it for ordering. Functions are applied left to right.

In joins by key, NULL equals NULL, and NaN equals NaN. So it is in the difference between two states
of some keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.errors import InvalidError
from keytide.options import TableOptions, keys
from keytide.types import Field

# -- the order of versions -------------------------------------------------------------------------


SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"
IS_ADD = (pl.col(VALUE_KIND) == 0) | (pl.col(VALUE_KIND) == 2)
"""Whether a row inserts or updates. The other kinds are retracts."""


def is_searchable(key: pl.Series) -> bool:
    """Whether a key column has plain integers, which are ordered like their physical values."""
    return (key.dtype.is_integer() or key.dtype.is_temporal()) and key.null_count() == 0


def physical(key: pl.Series) -> pl.Series:
    """A column as its physical values."""
    # Polars needs longer to return the same column than to find a key in it.
    return key.to_physical() if key.dtype.is_temporal() else key


@dataclass(frozen=True)
class MergeOrder:
    """The order of the versions in a table's runs.

    `key` names the trimmed primary key. `sequence` names the columns that order versions before
    arrival does. `padded` names those of them that are CHAR and are compared without trailing
    blanks.
    """

    key: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    descending: bool = False
    padded: frozenset[str] = frozenset()

    @property
    def settles_ties(self) -> str | None:
        """How remaining ties are ordered, None if the later version comes last."""
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """Table columns that a merge needs, even if the reader does not."""
        return tuple(dict.fromkeys((*self.key, *self.sequence)))

    def sort(self, versions: pl.DataFrame, *, arrival_decides: bool = False) -> pl.DataFrame:
        """Versions in the full order. Rows that tie keep their relative order.

        `arrival_decides` means that the rows are already in order of arrival, so that
        `_SEQUENCE_NUMBER` and the kind need not be compared.
        """
        if arrival_decides and not self.sequence:
            return sorted_by_key(versions, self.key)
        by = [*(pl.col(name) for name in self.key), *self.sequence_terms(versions.schema)]
        descending = [False] * len(self.key) + [self.descending] * len(self.sequence)
        if not arrival_decides:
            # False sorts before True: for equal numbers, retracts come before adds.
            by += [pl.col(SEQUENCE_NUMBER), IS_ADD]
            descending += [False, False]
        return versions.sort(by, descending=descending, nulls_last=False, maintain_order=True)

    def last_of_key(self) -> pl.Expr:
        """For sorted versions: whether a row is the last one of its key."""
        differs = [pl.col(k).ne_missing(pl.col(k).shift(-1)) for k in self.key]
        is_last_row = pl.int_range(pl.len()) == pl.len() - 1
        return pl.any_horizontal(*differs, is_last_row)

    def sequence_terms(self, types: pl.Schema) -> list[pl.Expr]:
        """The sequence fields of versions with these types, with equal values made identical."""
        terms = []
        for name in self.sequence:
            column = pl.col(name)
            if types[name].is_float():
                column = column + 0.0  # -0.0 becomes 0.0
            elif name in self.padded:
                column = column.str.strip_chars_end(" ")
            terms.append(column)
        return terms


def sorted_by_key(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The rows in key order, NULL lowest. Rows with equal keys keep their relative order."""
    if is_strictly_sorted(rows, key):
        return rows
    positions = _packed_argsort(rows[key[0]]) if len(key) == 1 else None
    if positions is not None:
        return rows[pl.Series(positions)]
    return rows.sort(list(key), nulls_last=False, maintain_order=True)


def is_strictly_sorted(rows: pl.DataFrame, key: Sequence[str]) -> bool:
    """Whether rows are in key order with one row per key. False for a key of several columns."""
    # This check only saves a sort. For several columns it would cost nearly as much.
    if len(key) > 1 or rows.height < 2:
        return rows.height < 2
    column = rows[key[0]]
    return bool(
        column.null_count() == 0 and column.is_sorted() and not (column == column.shift(1)).any()
    )


def order_of(key: tuple[str, ...], fields: Iterable[Field], options: TableOptions) -> MergeOrder:
    """The merge order that a table's options define."""
    chars = {f.name for f in fields if f.type.root == "CHAR"}
    return MergeOrder(
        key=key,
        sequence=options.sequence_field,
        descending=options.sequence_sort_order == "descending",
        padded=frozenset(chars & set(options.sequence_field)),
    )


def _packed_argsort(key: pl.Series) -> npt.NDArray[np.uint64] | None:
    """A stable argsort of integers, several times faster than a comparison sort.

    Value and row number share one 64-bit word, which sorts without indirection. None if the words
    would not fit or the type is not an integer.
    """
    if not is_searchable(key) or not len(key):
        return None
    values = physical(key).to_numpy()
    low, high = int(values.min()), int(values.max())
    row_bits = len(values).bit_length()
    # Distance from the smallest value, then row number, so equal values keep their order.
    if (high - low).bit_length() + row_bits > 64:
        return None
    words = np.empty(len(values), dtype=np.uint64)
    rows = np.arange(_CHUNK_ROWS, dtype=np.uint64)
    # Chunk by chunk and in place, because memory for temporaries would cost more than the
    # arithmetic.
    for start in range(0, len(values), _CHUNK_ROWS):
        chunk = words[start : start + _CHUNK_ROWS]
        part = values[start : start + _CHUNK_ROWS]
        np.subtract(part, low, out=chunk.view(np.int64), dtype=np.int64, casting="unsafe")
        chunk <<= np.uint64(row_bits)
        chunk |= rows[: len(chunk)] + np.uint64(start)
    ordered = pl.Series(words).sort().to_numpy()
    np.bitwise_and(ordered, (1 << row_bits) - 1, out=words)
    return words


_CHUNK_ROWS = 1 << 16


# -- `sequence.auto-padding` -----------------------------------------------------------------------


_INT64_MIN = -(2**63)


def padded_sequence(
    field: pl.Series, is_add: pl.Series, counter: pl.Series, paddings: tuple[str, ...]
) -> pl.Series:
    """The sequence numbers of rows: `field` as an integer, padded.

    `counter` increases by one per row and fills the digits that a coarse clock lacks. Timestamps
    count milliseconds and dates count days. Fractions are truncated, and strings are parsed. NULL
    is lowest. Raises `InvalidError` for a type that cannot be converted.
    """
    value: pl.Series = _as_integer(field)
    for padding in paddings:
        if padding == "row-kind-flag":
            value = value * 2 + is_add.cast(pl.Int64)
        elif padding == "second-to-micro":
            seconds = value // 1000 if field.dtype == pl.Datetime else value
            value = seconds * 1_000_000 + counter % 1_000_000
        else:
            value = value * 1000 + counter % 1000
    padded: pl.Series = value.fill_null(_INT64_MIN)
    return padded


def _as_integer(field: pl.Series) -> Any:
    dtype = field.dtype
    if dtype == pl.Datetime:
        return field.dt.epoch("ms")
    if dtype == pl.Date:
        return field.to_physical().cast(pl.Int64)
    if dtype == pl.String:
        numbers: pl.Series = field.str.strip_chars().cast(pl.Int64, strict=False)
        wrong = field.filter(numbers.is_null() & field.is_not_null())
        if wrong.len():
            raise InvalidError(
                f"sequence field {field.name!r} has the value {wrong[0]!r}, which "
                f"'{keys.SEQUENCE_AUTO_PADDING}' cannot convert to an integer"
            )
        return numbers
    if dtype.is_float():
        return field.cast(pl.Int64, strict=False)
    if dtype.is_decimal():
        # A cast to an integer would round, but Java truncates.
        text = field.cast(pl.String).str.split_exact(".", 1).struct.field("field_0")
        return text.cast(pl.Int64)
    if dtype.is_integer():
        return field.cast(pl.Int64)
    raise InvalidError(
        f"sequence field {field.name!r} is {dtype}, which '{keys.SEQUENCE_AUTO_PADDING}' cannot "
        "convert to a number; use a numeric, string, date or timestamp column"
    )


# -- joins by key ----------------------------------------------------------------------------------


def joined(
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: Sequence[str],
    how: Literal["inner", "left"] = "inner",
    *,
    suffix: str = "_right",
    keeps_order: bool = False,
) -> pl.DataFrame:
    """The rows of both with equal keys. With 'left', also the left rows without a match.

    `keeps_order` keeps the order of the left rows.
    """
    if len(key) == 1 and left.schema[key[0]].is_float():
        # For a single sorted column Polars loses NaN. For several columns it compares rows.
        same = pl.lit(0, pl.Int8).alias(_SAME)
        left, right, key = left.with_columns(same), right.with_columns(same), (*key, _SAME)
    return left.join(
        right,
        on=list(key),
        how=how,
        suffix=suffix,
        nulls_equal=True,
        maintain_order="left" if keeps_order else "none",
    ).drop(_SAME, strict=False)


_SAME = scratch("same")


# -- out-of-order rows -----------------------------------------------------------------------------


RANK, STORED_RANK = scratch("rank"), scratch("stored_rank")


def with_ranks(rows: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder) -> pl.DataFrame:
    """The rows with the rank of their sequence, and that of their key's stored version.

    Ranks increase with the sequence. -1 means no stored version. `stored` has at most one version
    of each key, with the columns of `order`. Rows keep their order.
    """
    fields = list(order.sequence)
    # Ranks replace sequences of several fields by single numbers.
    versions = pl.concat([rows.select(fields), stored.select(fields)])
    terms = order.sequence_terms(versions.schema)
    names = [f"term_{i}" for i in range(len(terms))]
    numbered = versions.select(t.alias(n) for n, t in zip(names, terms, strict=True))
    numbered = numbered.with_row_index("at")
    ordered = numbered.sort(names, descending=order.descending, nulls_last=False)
    # The same rank for equal rows.
    grows = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in names)
    places = ordered.select("at", grows.cast(pl.Int64).cum_sum().alias(RANK)).sort("at")[RANK]
    ranked = rows.with_columns(places.head(rows.height).alias(RANK))
    before = stored.select(order.key).with_columns(places.slice(rows.height).alias(STORED_RANK))
    both = joined(ranked, before, order.key, "left", keeps_order=True)
    return both.with_columns(pl.col(STORED_RANK).fill_null(-1))


def is_late(order: MergeOrder) -> pl.Expr:
    """For rows with ranks, in arrival order: whether a newer version of the key arrived before."""
    highest_before = pl.col(RANK).cum_max().shift(1).over(list(order.key)).fill_null(-1)
    return pl.col(RANK) < pl.max_horizontal(highest_before, pl.col(STORED_RANK))


# -- the difference between two states -------------------------------------------------------------


_IS_AFTER = scratch("is_after")
_HAS_PARTNER = scratch("has_partner")
_IS_EQUAL = scratch("is_equal")


def difference(
    before: pl.DataFrame,
    after: pl.DataFrame,
    key: Sequence[str],
    compared: Collection[str] | None = None,
    *,
    keeps_equal: bool = False,
) -> pl.DataFrame:
    """The changes from the rows before to the rows after, with `_VALUE_KIND`, in key order.

    -D and +I for keys that only one side has, adjacent -U and +U for keys whose rows differ, and
    nothing for equal rows unless `keeps_equal`. NULL equals NULL, NaN equals NaN, 0.0 equals -0.0.
    Rows are equal if their `compared` columns are equal. None means all columns.

    REQUIRES: both have the same columns, including `key` but not `_VALUE_KIND`, and one row per
    key.
    """
    if not before.height or not after.height:
        rows, kind = (after, RowKind.INSERT) if after.height else (before, RowKind.DELETE)
        return with_kind(rows.sort(key, nulls_last=False), kind)
    sides = [
        side.with_columns(pl.lit(is_after).alias(_IS_AFTER))
        for side, is_after in ((before, False), (after, True))
    ]
    # One chunk, from which rows are gathered several times as fast as from many.
    both = pl.concat(sides, rechunk=True)
    rows = sorted_by_key(both, key)
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    rows = rows.with_columns((~is_last & _equals_next(key)).alias(_HAS_PARTNER))
    kinds = {each: pl.lit(each, pl.Int8) for each in RowKind}
    is_paired = pl.col(_HAS_PARTNER).shift(1, fill_value=False)
    told_kind = (
        pl.when(pl.col(_IS_AFTER) & is_paired)
        .then(kinds[RowKind.UPDATE_AFTER])
        .when(pl.col(_IS_AFTER))
        .then(kinds[RowKind.INSERT])
        .when(pl.col(_HAS_PARTNER))
        .then(kinds[RowKind.UPDATE_BEFORE])
        .otherwise(kinds[RowKind.DELETE])
    )
    images = rows.with_columns(told_kind.alias(VALUE_KIND))
    if not keeps_equal:
        others = [
            name
            for name in before.columns
            if name not in key and (compared is None or name in compared)
        ]
        images = images.with_columns((pl.col(_HAS_PARTNER) & _equals_next(others)).alias(_IS_EQUAL))
        images = images.filter(~(pl.col(_IS_EQUAL) | pl.col(_IS_EQUAL).shift(1, fill_value=False)))
    return images.select(VALUE_KIND, *before.columns)


def with_kind(rows: pl.DataFrame, kind: RowKind) -> pl.DataFrame:
    """The rows with the given kind in the first column."""
    return rows.select(pl.lit(kind, pl.Int8).alias(VALUE_KIND), *rows.columns)


def _equals_next(columns: Sequence[str]) -> pl.Expr:
    """Whether a row has the same values as the next one."""
    equal = [pl.col(name).eq_missing(pl.col(name).shift(-1)) for name in columns]
    return reduce(and_, equal, pl.lit(value=True))
