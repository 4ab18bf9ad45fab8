"""Versions of a key with equal watermarks: which of them comes last (rules R2 and R3).

Where commits and rows came in an order, `_SEQUENCE_NUMBER` tells it. Rows that came in no order
have the same number; of those a tombstone comes last, else the row whose columns, in the order of
the table, are larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, MergeOrder
from keytide.merge.outcomes import shown
from keytide.options import keys

__all__ = ["TieOrder", "refuse_ties"]


@dataclass(frozen=True)
class TieOrder(MergeOrder):
    """The order of versions of which some came in no order.

    `whole` names all columns of the table. Where `tombstone_wins` a delete comes last among equal
    watermarks even if it was committed before the others.
    """

    whole: tuple[str, ...] = ()
    tombstone_wins: bool = False

    @property
    def settles_ties(self) -> str:
        """See `MergeOrder`."""
        return "they came in no order: a delete wins, else the one with the larger values"

    def sort(self, versions: pl.DataFrame, *, arrival_decides: bool = False) -> pl.DataFrame:
        """See `MergeOrder`."""
        number, is_delete = pl.col(SEQUENCE_NUMBER), ~IS_ADD
        between = [is_delete, number] if self.tombstone_wins else [number, is_delete]
        by = [*map(pl.col, self.key), *self.sequence_terms(versions.schema), *between,
              *canonical(versions, self.whole)]  # fmt: skip
        descending = [False] * len(by)
        descending[len(self.key) : len(self.key) + len(self.sequence)] = [self.descending] * len(
            self.sequence
        )
        return versions.sort(by, descending=descending, nulls_last=False, maintain_order=True)


def canonical(rows: pl.DataFrame, columns: Sequence[str]) -> list[pl.Expr]:
    """The columns as terms to sort by, nested ones by a text that says what is in them."""
    return [_comparable(name, rows.schema[name]) for name in columns]


def _comparable(name: str, type_: pl.DataType) -> pl.Expr:
    if type_.is_nested():
        return pl.struct(pl.col(name)).struct.json_encode()
    return pl.col(name) + 0.0 if type_.is_float() else pl.col(name)


def refuse_ties(versions: pl.DataFrame, order: TieOrder, table: str) -> None:
    """Raise `InvalidError` for a key whose freshest versions are as fresh and differ.

    REQUIRES: `versions` are sorted by the order.
    """
    terms = [
        expression.alias(name)
        for name, expression in zip(
            order.sequence, order.sequence_terms(versions.schema), strict=True
        )
    ]
    told = versions.with_columns(terms)
    same = [pl.col(n).eq_missing(pl.col(n).last().over(order.key)) for n in order.sequence]
    freshest = told.filter(pl.all_horizontal(pl.lit(value=True), *same))
    plain = freshest.select(*order.key, *(e.alias(f"c{i}") for i, e in
                            enumerate(canonical(freshest, order.whole))))  # fmt: skip
    many = plain.unique().select(order.key).filter(pl.struct(order.key).is_duplicated())
    if many.height:
        key = ", ".join(f"{n} = {shown(v)}" for n, v in zip(order.key, many.row(0), strict=True))
        raise InvalidError(
            f"table {table}: key {key} has versions that are as fresh as each other and differ, "
            f"and '{keys.UPSERT_ON_TIE}' is 'error'; "
            f"make '{keys.WATERMARK_KEY}' tell them apart, or "
            f"define the table with another '{keys.UPSERT_ON_TIE}'"
        )
