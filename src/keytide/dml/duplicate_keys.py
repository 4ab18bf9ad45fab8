"""Keys under which rows come: no two rows of a statement, and none that keeps its own, share one.

Sources and sinks tell keys in four kinds: `came` of rows that come, `moved` of those among them
that leave another key, `gone` of rows that leave theirs, and `new` of rows that come under a key
which no row of the table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import polars as pl
import pyarrow as pa

from keytide.dml.fragments import Told
from keytide.dml.freshness import is_older, orders_of
from keytide.dml.handles import ChangedByKey
from keytide.dml.values import among_keys
from keytide.errors import InvalidError
from keytide.merge.joined import joined
from keytide.merge.order import IS_ADD
from keytide.scratch import scratch
from keytide.table.conditions.predicate import Predicate
from keytide.types import arrow_schema

__all__ = ["KEYS", "Outcomes", "refuse_taken_keys", "refuse_twice_in_parts"]

KEYS = "keys"
"""The fact of a fragment that says of which kind its keys are."""


def refuse_twice(table: ChangedByKey, keys: Iterable[pa.Table]) -> None:
    """Raise `InvalidError` where a key comes twice."""
    every = _together(table, keys)
    _refuse(table, every.filter(every.is_duplicated()))


def refuse_twice_in_parts(
    table: ChangedByKey, keys: Callable[[], Iterable[pa.Table]], rows: int
) -> None:
    """The same of keys that are given as often as they are asked for, of which few are held."""
    parts = -(-rows // _PART_ROWS)
    for part in range(parts):
        refuse_twice(table, (_part(some, part, parts) for some in keys()))


_PART_ROWS = 1 << 20


def _part(keys: pa.Table, part: int, parts: int) -> pa.Table:
    """The keys of one part; equal ones are in the same."""
    if parts == 1:
        return keys
    frame = pl.DataFrame(pl.from_arrow(keys))
    return keys.filter((frame.hash_rows(seed=1) % parts == part).to_arrow())


Outcomes = Callable[[tuple[str, ...], Predicate | None], Iterator[pl.DataFrame]]
"""What became of keys, of all at least that meet a condition: columns, and `_VALUE_KIND`.

A delete is told for as long as it is stored.
"""


def refuse_taken_keys(table: ChangedByKey, told: Sequence[Told], outcomes: Outcomes) -> None:
    """Raise `InvalidError` where a key comes twice, or is that of another row, which keeps it.

    So it does where a row moves to a key whose delete is fresher than the row. Reads keys and what
    orders versions, of keys that are told as `came` or `moved`.
    """
    refuse_twice(table, _of_kind(told, "came", "moved", "new"))
    came = _together(table, _of_kind(told, "came", "moved"))
    gone = _together(table, _of_kind(told, "gone"))
    moved, left = (_with_order(table, _of_kind(told, kind)) for kind in ("moved", "gone"))
    coming = pl.concat([_with_order(table, _of_kind(told, "came")), moved])
    _refuse_hidden(table, coming, left, "of which a fresher row goes in the same statement")
    if not came.height:
        return
    for stored in outcomes(tuple(left.columns), among_keys(came, table.view)):
        shown = _among(came, stored.filter(IS_ADD), "semi")
        _refuse(table, _among(shown, gone, "anti"))
        _refuse_hidden(table, moved, stored.filter(~IS_ADD), "which was deleted later than that")


def _refuse_hidden(table: ChangedByKey, moved: pl.DataFrame, left: pl.DataFrame, why: str) -> None:
    """Raise `InvalidError` where a row moves to a key that something fresher has left.

    What deletes under the key is as fresh as that was, so nobody would see the row (rule R21).
    """
    if not (moved.height and left.height):
        return
    key = list(table.view.schema.primary_keys)
    descends = table.view.options.sequence_sort_order == "descending"
    both = joined(moved, left, key, suffix=_LEFT)
    for order in orders_of(table.view):
        other = both.select(
            pl.col(name if name in key else f"{name}{_LEFT}").alias(name) for name in order
        )
        hidden = both.filter(is_older(both.select(order), other, order, descends=descends))
        if hidden.height:
            taken = hidden.select(key).row(0, named=True)
            raise InvalidError(
                f"{table}: a row would get the primary key {taken}, {why}, so it would not be "
                f"seen; nothing was changed. Set {', '.join(map(repr, order))} as well"
            )


_LEFT = scratch("left")


def _among(keys: pl.DataFrame, others: pl.DataFrame, how: Literal["semi", "anti"]) -> pl.DataFrame:
    """Those of some keys that others are too, or are not."""
    return keys.join(others, on=keys.columns, how=how, nulls_equal=True)


def _with_order(table: ChangedByKey, rows: Sequence[pa.Table]) -> pl.DataFrame:
    """Keys with what orders their versions."""
    schema = table.view.schema
    names = dict.fromkeys((*schema.primary_keys, *table.view.options.sequence_field))
    none = arrow_schema(schema.select(list(names))).empty_table()
    own = (each.select(none.column_names) for each in rows)
    return pl.concat([pl.DataFrame(pl.from_arrow(each)) for each in (none, *own)])


def _of_kind(told: Iterable[Told], *kinds: str) -> list[pa.Table]:
    return [each.rows for each in told if each.facts.get(KEYS) in kinds]


def _together(table: ChangedByKey, keys: Iterable[pa.Table]) -> pl.DataFrame:
    schema = table.view.schema
    none = arrow_schema(schema.select(schema.primary_keys)).empty_table()
    own = (rows.select(none.column_names) for rows in keys)
    return pl.concat([pl.DataFrame(pl.from_arrow(rows)) for rows in (none, *own)])


def _refuse(table: ChangedByKey, keys: pl.DataFrame) -> None:
    if keys.height:
        raise InvalidError(
            f"{table}: two rows would have the primary key {keys.row(0, named=True)}; nothing "
            f"was changed. Change or delete the other row in the same statement, or use other keys"
        )
