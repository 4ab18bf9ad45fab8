"""The order of a key's versions.

Versions are ordered by key, then by the sequence fields (NULL lowest in both directions, field by
field; NaN highest; -0.0 equals 0.0), then by `_SEQUENCE_NUMBER`, then retracts before adds, then by
arrival. The later row wins (rules R1, R2 and R27 to R29 of docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.options import TableOptions
from keytide.types import Field

__all__ = [
    "IS_ADD",
    "SEQUENCE_NUMBER",
    "VALUE_KIND",
    "MergeOrder",
    "is_searchable",
    "order_of",
    "physical",
    "sorted_by_key",
]

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

    def is_strictly_sorted(self, rows: pl.DataFrame) -> bool:
        """Whether rows are in key order with one row per key."""
        return _is_strictly_sorted(rows, self.key)

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
    if _is_strictly_sorted(rows, key):
        return rows
    positions = _packed_argsort(rows[key[0]]) if len(key) == 1 else None
    if positions is not None:
        return rows[pl.Series(positions)]
    return rows.sort(list(key), nulls_last=False, maintain_order=True)


def _is_strictly_sorted(rows: pl.DataFrame, key: Sequence[str]) -> bool:
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
    words = _packed(values, low, row_bits)
    ordered = pl.Series(words).sort().to_numpy()
    np.bitwise_and(ordered, (1 << row_bits) - 1, out=words)
    return words


_CHUNK_ROWS = 1 << 16


def _packed(values: npt.NDArray[Any], low: int, row_bits: int) -> npt.NDArray[np.uint64]:
    """The distance of each value from `low`, and its row number, in one word.

    Done chunk by chunk and in place, because memory for temporaries would cost more than the
    arithmetic.
    """
    words = np.empty(len(values), dtype=np.uint64)
    rows = np.arange(_CHUNK_ROWS, dtype=np.uint64)
    for start in range(0, len(values), _CHUNK_ROWS):
        chunk = words[start : start + _CHUNK_ROWS]
        part = values[start : start + _CHUNK_ROWS]
        np.subtract(part, low, out=chunk.view(np.int64), dtype=np.int64, casting="unsafe")
        chunk <<= np.uint64(row_bits)
        chunk |= rows[: len(chunk)] + np.uint64(start)
    return words
