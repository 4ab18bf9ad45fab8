"""Versions of a key with equal watermarks, and which of them is the last (rules R2 and R3).

If commits and rows have an order, `_SEQUENCE_NUMBER` contains it. Rows without an order have the
same number. Of those a tombstone is the last, otherwise the row whose columns, in table order, are
larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from keytide.base.scratch import scratch
from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, MergeOrder
from keytide.merge.outcomes import shown
from keytide.options import keys

__all__ = ["TieOrder", "are_freshest", "refuse_ties", "undecided_keys"]


@dataclass(frozen=True)
class TieOrder(MergeOrder):
    """The order of versions if some have no order of arrival.

    `compared` names the columns that decide then: all columns of the table, so that the order is
    the same for every reader. If `tombstone_wins`, a delete is the last of versions with equal
    watermarks, even if it was committed before them.
    """

    compared: tuple[str, ...] = ()
    tombstone_wins: bool = False

    @property
    def settles_ties(self) -> str:
        """See `MergeOrder`."""
        return "they have no order: a delete wins, otherwise the one with the larger values"

    def sort(self, versions: pl.DataFrame, *, arrival_decides: bool = False) -> pl.DataFrame:
        """See `MergeOrder`."""
        number, is_delete = pl.col(SEQUENCE_NUMBER), ~IS_ADD
        between = [is_delete, number] if self.tombstone_wins else [number, is_delete]
        by = [*map(pl.col, self.key), *self.sequence_terms(versions.schema), *between,
              *canonical(versions, self.compared)]  # fmt: skip
        descending = [False] * len(by)
        descending[len(self.key) : len(self.key) + len(self.sequence)] = [self.descending] * len(
            self.sequence
        )
        return versions.sort(by, descending=descending, nulls_last=False, maintain_order=True)


def canonical(rows: pl.DataFrame, columns: Sequence[str]) -> list[pl.Expr]:
    """The columns as sort terms. Nested ones are converted to strings."""
    return [_comparable(name, rows.schema[name]) for name in columns]


def _comparable(name: str, type_: pl.DataType) -> pl.Expr:
    if type_.is_nested():
        return pl.struct(pl.col(name)).struct.json_encode()
    return pl.col(name) + 0.0 if type_.is_float() else pl.col(name)


def undecided_keys(versions: pl.DataFrame, order: TieOrder) -> pl.DataFrame:
    """The keys whose latest versions tie, but differ in the compared columns.

    Without duplicates, as a frame of the key columns. REQUIRES: `versions` are sorted by the order.
    """
    deciding = [*order.sequence_terms(versions.schema), pl.col(SEQUENCE_NUMBER), IS_ADD]
    return _differing_keys(versions, order, deciding)


def refuse_ties(versions: pl.DataFrame, order: TieOrder, table: str) -> None:
    """Raise `InvalidError` for a key whose latest versions tie but differ.

    REQUIRES: `versions` are sorted by the order.
    """
    many = _differing_keys(versions, order, order.sequence_terms(versions.schema))
    if many.height:
        key = ", ".join(f"{n} = {shown(v)}" for n, v in zip(order.key, many.row(0), strict=True))
        raise InvalidError(
            f"table {table}: key {key} has different versions with the same watermark, and "
            f"'{keys.UPSERT_ON_TIE}' is 'error'; use a '{keys.WATERMARK_KEY}' that distinguishes "
            f"them, or define the table with another '{keys.UPSERT_ON_TIE}'"
        )


def are_freshest(
    versions: pl.DataFrame, order: MergeOrder, *, numbers_decide: bool = True
) -> pl.Series:
    """Which versions tie with the last one of their key, except for compared columns.

    Without `numbers_decide`, only the sequence fields are compared. REQUIRES: `versions` are sorted
    by the order.
    """
    deciding = order.sequence_terms(versions.schema)
    if numbers_decide:
        deciding += [pl.col(SEQUENCE_NUMBER), IS_ADD]
    told = _told(versions, order, deciding)
    if not _has_repeats(told, order):
        return versions.select(order.last_of_key()).to_series()
    return told.select(_are_as_the_last(told, order)).to_series()


def _differing_keys(
    versions: pl.DataFrame, order: TieOrder, deciding: Sequence[pl.Expr]
) -> pl.DataFrame:
    """Keys with versions that tie with the last one but differ in compared columns."""
    key, compared = list(order.key), canonical(versions, order.compared)
    told = _told(versions, order, deciding, compared)
    if not _has_repeats(told, order):
        return told.select(key).clear()
    found = told.filter(_are_as_the_last(told, order)).unique().select(key)
    return found.filter(found.is_duplicated()).unique()


def _told(
    versions: pl.DataFrame,
    order: MergeOrder,
    deciding: Sequence[pl.Expr],
    compared: Sequence[pl.Expr] = (),
) -> pl.DataFrame:
    """The key, the deciding columns, and the compared columns."""
    return versions.select(
        *order.key,
        *(term.alias(f"{_DECIDES}{place}") for place, term in enumerate(deciding)),
        *(term.alias(f"{_COMPARED}{place}") for place, term in enumerate(compared)),
    )


def _has_repeats(told: pl.DataFrame, order: MergeOrder) -> bool:
    """Whether a version ties with the next one of the same key."""
    repeats = [
        each.eq_missing(each.shift(-1)) for each in (*map(pl.col, order.key), *_decides(told))
    ]
    return bool(told.select(pl.all_horizontal(repeats).any()).item())


def _are_as_the_last(told: pl.DataFrame, order: MergeOrder) -> pl.Expr:
    """Whether a version ties with the last one of its key."""
    freshest = [each.eq_missing(each.last().over(list(order.key))) for each in _decides(told)]
    return pl.all_horizontal(pl.repeat(value=True, n=pl.len()), *freshest)


def _decides(told: pl.DataFrame) -> list[pl.Expr]:
    return [pl.col(name) for name in told.columns if name.startswith(_DECIDES)]


_DECIDES, _COMPARED = scratch("decides_"), scratch("compared_")
