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
from keytide.scratch import scratch

__all__ = ["TieOrder", "are_freshest", "refuse_ties", "undecided_keys"]


@dataclass(frozen=True)
class TieOrder(MergeOrder):
    """The order of versions of which some came in no order.

    `compared` names the columns that decide then: all of the table, for the order to be the same
    to every reader. Where `tombstone_wins` a delete comes last among equal watermarks even if it
    was committed before the others.
    """

    compared: tuple[str, ...] = ()
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
              *canonical(versions, self.compared)]  # fmt: skip
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


def undecided_keys(versions: pl.DataFrame, order: TieOrder) -> pl.DataFrame:
    """The keys whose freshest versions tie in all that decides, and differ in what is compared.

    Each once, as a frame of the key's columns. REQUIRES: `versions` are sorted by the order.
    """
    deciding = [*order.sequence_terms(versions.schema), pl.col(SEQUENCE_NUMBER), IS_ADD]
    return _differing_keys(versions, order, deciding)


def refuse_ties(versions: pl.DataFrame, order: TieOrder, table: str) -> None:
    """Raise `InvalidError` for a key whose freshest versions are as fresh and differ.

    REQUIRES: `versions` are sorted by the order.
    """
    many = _differing_keys(versions, order, order.sequence_terms(versions.schema))
    if many.height:
        key = ", ".join(f"{n} = {shown(v)}" for n, v in zip(order.key, many.row(0), strict=True))
        raise InvalidError(
            f"table {table}: key {key} has versions that are as fresh as each other and differ, "
            f"and '{keys.UPSERT_ON_TIE}' is 'error'; make '{keys.WATERMARK_KEY}' tell them apart, "
            f"or define the table with another '{keys.UPSERT_ON_TIE}'"
        )


def are_freshest(
    versions: pl.DataFrame, order: MergeOrder, *, numbers_decide: bool = True
) -> pl.Series:
    """Which versions are as fresh as the last one of their key, by all but what is compared.

    Without `numbers_decide` by their sequence fields alone. REQUIRES: `versions` are sorted by the
    order.
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
    """Keys with versions that are as the last one in what decides, and not in what is compared."""
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
    """The key, what decides, and what is compared."""
    return versions.select(
        *order.key,
        *(term.alias(f"{_DECIDES}{place}") for place, term in enumerate(deciding)),
        *(term.alias(f"{_COMPARED}{place}") for place, term in enumerate(compared)),
    )


def _has_repeats(told: pl.DataFrame, order: MergeOrder) -> bool:
    """Whether a version has the key of the next one, and is as that in what decides."""
    repeats = [
        each.eq_missing(each.shift(-1)) for each in (*map(pl.col, order.key), *_decides(told))
    ]
    return bool(told.select(pl.all_horizontal(repeats).any()).item())


def _are_as_the_last(told: pl.DataFrame, order: MergeOrder) -> pl.Expr:
    """Whether a version is in what decides as the last one of its key, which is the freshest."""
    freshest = [each.eq_missing(each.last().over(list(order.key))) for each in _decides(told)]
    return pl.all_horizontal(pl.repeat(value=True, n=pl.len()), *freshest)


def _decides(told: pl.DataFrame) -> list[pl.Expr]:
    return [pl.col(name) for name in told.columns if name.startswith(_DECIDES)]


_DECIDES, _COMPARED = scratch("decides_"), scratch("compared_")
