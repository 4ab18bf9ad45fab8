"""What a batch of changes does to a table, told before it is written.

Pure functions over Polars frames: `changes` are decoded rows of a batch, `stored` the newest
version of each of their keys in the table (deletions included). The table itself needs none of
this, for its merge puts late and repeated changes right; people who watch a feed do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.cdc.feed import ORDINAL_COLUMN, UNAVAILABLE_COLUMN
from keytide.merge.lateness import RANK, STORED_RANK, is_late, with_ranks
from keytide.merge.order import MergeOrder
from keytide.scratch import scratch

__all__ = ["ChangeCounts", "Filled", "count_changes", "fill_unavailable"]

_SOURCE, _ROW, _AT, _UNKNOWN, _ARRIVED = map(scratch, ("source", "row", "at", "unknown", "arrived"))


@dataclass(frozen=True)
class ChangeCounts:
    """How the messages of a batch met the table.

    `applied` were the newest of their key when they arrived; `late` were older than what had
    arrived before them, and change nothing; `duplicate` had arrived before.
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
    """Changes with their left-out values filled in, and those whose value nobody knows."""

    changes: pl.DataFrame
    unknown: pl.DataFrame


def count_changes(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> ChangeCounts:
    """Count the messages of a batch; without ordering columns every one is applied.

    `changes` come in arrival order. A message with several rows counts once, as the best that
    became of one of them. Several `orders` are those of producers: a row has a place in that of
    its own, and is compared there alone.
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
    # A change has the place in the order that the source gave it, so an equal one is the same.
    seen = (pl.col(RANK) == pl.col(STORED_RANK)) | ~is_first
    verdict = pl.when(seen).then(2).when(is_late(order)).then(1).otherwise(0)
    return ranked.select(ORDINAL_COLUMN, verdict.alias("verdict"))


def _by_producer(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> Iterator[tuple[MergeOrder, tuple[pl.DataFrame, pl.DataFrame]]]:
    """Each order with the rows that have a place in it; all have one in the only order."""
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
    """Give left-out values of some columns the value of the version before, in merge order.

    `stored` has the `columns` as well. A change stays `unknown` when no earlier version is
    known and it would be the newest of its key; one that loses anyway needs no value. Rows of
    different producers, with an order each, come in their order of arrival; a late one is no
    version that a later row has a value from.
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
    """Stored versions and changes together, in merge order; stored ones come first on a tie."""
    numbered = changes.with_row_index(_ROW).with_columns(pl.col(_ROW).cast(pl.Int64))
    before = stored.with_columns(pl.lit(-1, dtype=pl.Int64).alias(_ROW))
    versions = pl.concat([before, numbered], how="diagonal_relaxed")
    return order.sort(versions, arrival_decides=True)


def _fill_column(history: pl.DataFrame, name: str, order: MergeOrder) -> pl.DataFrame:
    left_out = pl.col(UNAVAILABLE_COLUMN).list.contains(name).fill_null(value=False)
    source = pl.when(~left_out).then(pl.col(_AT)).forward_fill().over(list(order.key))
    history = history.with_row_index(_AT).with_columns(source.alias(_SOURCE))
    values = history[name].gather(history[_SOURCE].fill_null(0))
    # A deletion tells nothing about the value of a row that follows it.
    dead = history["_row_kind"].is_in(["-D", "-U"]).fill_null(value=False)
    unknown = history[_SOURCE].is_null() | dead.gather(history[_SOURCE].fill_null(0))
    flags = history.select(left_out.alias("flag"))["flag"]
    return history.with_columns(
        pl.when(flags & ~unknown).then(values).otherwise(pl.col(name)).alias(name),
        (flags & unknown).alias(_flag(name)),
    ).drop(_SOURCE, _AT)


def _flag(name: str) -> str:
    """The column that says whether nobody knows the value of another one."""
    return scratch(f"unknown_{name}")
