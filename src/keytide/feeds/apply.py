"""The effect of a batch of changes on a table, computed before the batch is written.

Pure functions over Polars frames: `changes` are decoded rows of a batch, and `stored` is the latest
version of each of their keys in the table (including deletes). The table itself does not need this,
because its merge handles late and repeated changes. It is for people who monitor a feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.base.scratch import scratch
from keytide.feeds.feed import ORDINAL_COLUMN, UNAVAILABLE_COLUMN
from keytide.merge.lateness import RANK, STORED_RANK, is_late, with_ranks
from keytide.merge.order import MergeOrder

__all__ = ["ChangeCounts", "Filled", "count_changes", "fill_unavailable"]

_SOURCE, _ROW, _AT, _UNKNOWN, _ARRIVED = map(scratch, ("source", "row", "at", "unknown", "arrived"))


@dataclass(frozen=True)
class ChangeCounts:
    """The effect of the messages of a batch.

    `applied` messages were the latest of their key when they arrived. `late` messages were older
    than earlier arrivals, and change nothing. `duplicate` messages had arrived before.
    """

    applied: int = 0
    late: int = 0
    duplicate: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.applied + other.applied,
            self.late + other.late,
            self.duplicate + other.duplicate,
        )


@dataclass(frozen=True)
class Filled:
    """Changes with omitted values filled in, and changes whose omitted values are unknown."""

    changes: pl.DataFrame
    unknown: pl.DataFrame


def count_changes(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> ChangeCounts:
    """Count the messages of a batch. Without ordering columns, every message is applied.

    `changes` are in arrival order. A message with several rows counts once, with the best outcome
    of its rows. Several `orders` belong to different producers: a row has a place in the order of
    its producer, and is only compared within it.
    """
    if not orders[0].sequence:
        return ChangeCounts(applied=changes[ORDINAL_COLUMN].n_unique())
    found = [_verdicts(*of_it, order) for order, of_it in _by_producer(changes, stored, orders)]
    verdicts = pl.concat(found).group_by(ORDINAL_COLUMN).agg(pl.col("verdict").min())["verdict"]
    applied, late, duplicate = (int((verdicts == value).sum()) for value in range(3))
    return ChangeCounts(applied, late, duplicate)


def _verdicts(changes: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder) -> pl.DataFrame:
    ranked = with_ranks(changes, stored, order)
    is_first = pl.struct(*order.key, RANK).is_first_distinct()
    # The source gives each change its place in the order, so equal places mean the same change.
    seen = (pl.col(RANK) == pl.col(STORED_RANK)) | ~is_first
    verdict = pl.when(seen).then(2).when(is_late(order)).then(1).otherwise(0)
    return ranked.select(ORDINAL_COLUMN, verdict.alias("verdict"))


def _by_producer(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> Iterator[tuple[MergeOrder, tuple[pl.DataFrame, pl.DataFrame]]]:
    """Each order with the rows that have a place in it. If there is only one order, all rows do."""
    if len(orders) == 1:
        yield orders[0], (changes, stored)
        return
    for order in orders:
        is_its_own = pl.any_horizontal(pl.col(order.sequence).is_not_null())
        yield order, (changes.filter(is_its_own), stored.filter(is_its_own))


def fill_unavailable(
    changes: pl.DataFrame,
    stored: pl.DataFrame,
    orders: Sequence[MergeOrder],
    columns: Sequence[str],
) -> Filled:
    """Fill omitted values of some columns from the previous version, in merge order.

    `stored` must have the `columns` too. A change is `unknown` if no earlier version is known and
    it would be the latest of its key. A change that loses anyway needs no value. Rows of different
    producers, each with its own order, are processed in order of arrival, and a late row is not
    used to fill later rows.
    """
    left_out = {*changes[UNAVAILABLE_COLUMN].explode().to_list()}
    names = [name for name in columns if name in left_out]
    if not names:
        return Filled(changes, changes.clear())
    if len(orders) > 1:
        return _filled_by_producers(changes, stored, orders, names)
    return _filled(changes, stored, orders[0], names)


def _filled_by_producers(
    changes: pl.DataFrame,
    stored: pl.DataFrame,
    orders: Sequence[MergeOrder],
    names: Sequence[str],
) -> Filled:
    numbered = changes.with_row_index(_ARRIVED)
    late = pl.concat(
        with_ranks(*of_it, order).filter(is_late(order))[_ARRIVED]
        for order, of_it in _by_producer(numbered, stored, orders)
    )
    is_on_time = ~pl.col(_ARRIVED).is_in(late.implode())
    filled = _filled(numbered.filter(is_on_time), stored, MergeOrder(key=orders[0].key), names)
    known = pl.concat([filled.changes, numbered.filter(~is_on_time)]).sort(_ARRIVED)
    return Filled(known.drop(_ARRIVED), filled.unknown.drop(_ARRIVED))


def _filled(
    changes: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder, names: Sequence[str]
) -> Filled:
    history = _history(changes, stored, order)
    for name in names:
        history = _fill_column(history, name, order)
    missing = pl.any_horizontal(pl.col(_flag(name)) for name in names)
    history = history.with_columns((missing & order.last_of_key()).alias(_UNKNOWN))
    result = history.filter(pl.col(_ROW) >= 0).sort(_ROW)
    known, unknown = result.filter(~pl.col(_UNKNOWN)), result.filter(pl.col(_UNKNOWN))
    return Filled(known.select(changes.columns), unknown.select(changes.columns))


def _history(changes: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder) -> pl.DataFrame:
    """Stored versions and changes in merge order. Of equal ones, stored versions come first."""
    numbered = changes.with_row_index(_ROW).with_columns(pl.col(_ROW).cast(pl.Int64))
    before = stored.with_columns(pl.lit(-1, dtype=pl.Int64).alias(_ROW))
    versions = pl.concat([before, numbered], how="diagonal_relaxed")
    return order.sort(versions, arrival_decides=True)


def _fill_column(history: pl.DataFrame, name: str, order: MergeOrder) -> pl.DataFrame:
    left_out = pl.col(UNAVAILABLE_COLUMN).list.contains(name).fill_null(value=False)
    source = pl.when(~left_out).then(pl.col(_AT)).forward_fill().over(list(order.key))
    history = history.with_row_index(_AT).with_columns(source.alias(_SOURCE))
    values = history[name].gather(history[_SOURCE].fill_null(0))
    # A delete has no values for a later row.
    dead = history["_row_kind"].is_in(["-D", "-U"]).fill_null(value=False)
    unknown = history[_SOURCE].is_null() | dead.gather(history[_SOURCE].fill_null(0))
    flags = history.select(left_out.alias("flag"))["flag"]
    return history.with_columns(
        pl.when(flags & ~unknown).then(values).otherwise(pl.col(name)).alias(name),
        (flags & unknown).alias(_flag(name)),
    ).drop(_SOURCE, _AT)


def _flag(name: str) -> str:
    """The column that marks unknown values of another column."""
    return scratch(f"unknown_{name}")
