"""Checks that no two rows of a statement, and no unchanged row, have the same key.

Sources and sinks report keys of four kinds: `came` for added rows, `moved` for rows among them that
had another key before, `gone` for the old keys of these rows, and `new` for added rows whose key no
row of the table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import polars as pl
import pyarrow as pa

from keytide.base.scratch import scratch
from keytide.base.value_text import held_by_python
from keytide.dml.fragments import Told
from keytide.dml.freshness import is_older, orders_of
from keytide.dml.handles import ChangedByKey
from keytide.dml.values import among_keys
from keytide.errors import InvalidError
from keytide.merge.joined import joined
from keytide.merge.order import IS_ADD
from keytide.predicate.predicate import Predicate
from keytide.types import arrow_schema

__all__ = ["KEYS", "Outcomes", "refuse_taken_keys", "refuse_twice_in_parts"]

KEYS = "keys"
"""The fact in a fragment that gives the kind of its keys."""


def refuse_twice(table: ChangedByKey, keys: Iterable[pa.Table]) -> None:
    """Raise `InvalidError` for a duplicate key."""
    every = _together(table, keys)
    _refuse(table, every.filter(every.is_duplicated()))


def refuse_twice_in_parts(
    table: ChangedByKey, keys: Callable[[], Iterable[pa.Table]], rows: int
) -> None:
    """The same check with bounded memory, for keys that can be read several times."""
    parts = -(-rows // _PART_ROWS)
    for part in range(parts):
        refuse_twice(table, (_part(some, part, parts) for some in keys()))


_PART_ROWS = 1 << 20


def _part(keys: pa.Table, part: int, parts: int) -> pa.Table:
    """The keys of one part. Equal keys are in the same part."""
    if parts == 1:
        return keys
    frame = pl.DataFrame(pl.from_arrow(keys))
    return keys.filter((frame.hash_rows(seed=1) % parts == part).to_arrow())


Outcomes = Callable[[tuple[str, ...], Predicate | None], Iterator[pl.DataFrame]]
"""The merged result of at least all keys that match a condition: columns and `_VALUE_KIND`.

A delete is included as long as it is stored.
"""


def refuse_taken_keys(table: ChangedByKey, told: Sequence[Told], outcomes: Outcomes) -> None:
    """Raise `InvalidError` for a duplicate key, or one of another row that keeps its key.

    This includes a row that moves to a key whose delete is newer than the row. Reads keys and order
    columns, for keys reported as `came` or `moved`.
    """
    refuse_twice(table, _of_kind(told, "came", "moved", "new"))
    came = _together(table, _of_kind(told, "came", "moved"))
    gone = _together(table, _of_kind(told, "gone"))
    moved, left = (_with_order(table, _of_kind(told, kind)) for kind in ("moved", "gone"))
    coming = pl.concat([_with_order(table, _of_kind(told, "came")), moved])
    _refuse_hidden(table, coming, left, "of which a newer row is deleted in the same statement")
    if not came.height:
        return
    for stored in outcomes(tuple(left.columns), among_keys(came, table.view)):
        shown = _among(came, stored.filter(IS_ADD), "semi")
        _refuse(table, _among(shown, gone, "anti"))
        _refuse_hidden(table, moved, stored.filter(~IS_ADD), "which was deleted at a later time")


def _refuse_hidden(table: ChangedByKey, moved: pl.DataFrame, left: pl.DataFrame, why: str) -> None:
    """Raise `InvalidError` if a row moves to a key that a newer row has left.

    The delete under that key is as new as the row that left it, so readers would not see the moved
    row (rule R21).
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
            taken = held_by_python(hidden.select(key).head(1)).row(0, named=True)
            raise InvalidError(
                f"{table}: a row would get the primary key {taken}, {why}, so it would be "
                f"invisible; nothing was changed. Set {', '.join(map(repr, order))} as well"
            )


_LEFT = scratch("left")


def _among(keys: pl.DataFrame, others: pl.DataFrame, how: Literal["semi", "anti"]) -> pl.DataFrame:
    """The keys that are among others, or that are not."""
    return keys.join(others, on=keys.columns, how=how, nulls_equal=True)


def _with_order(table: ChangedByKey, rows: Sequence[pa.Table]) -> pl.DataFrame:
    """Keys with the columns that order their versions."""
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
        first = held_by_python(keys.head(1)).row(0, named=True)
        raise InvalidError(
            f"{table}: two rows would have the primary key {first}; nothing "
            "was changed. Change or delete the other row in the same statement, or use other keys"
        )
