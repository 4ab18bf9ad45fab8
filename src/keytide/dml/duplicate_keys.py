"""Keys under which rows come: no two rows of a statement, and none that keeps its own, share one.

Sources and sinks tell keys in three kinds: `came` of rows that come, `gone` of rows that leave
theirs, and `new` of rows that come under a key which no row of the table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import polars as pl
import pyarrow as pa

from keytide.dml.fragments import Told
from keytide.dml.freshness import is_older, orders_of
from keytide.dml.handles import ChangedByKey
from keytide.dml.values import among_keys
from keytide.errors import InvalidError
from keytide.scratch import scratch
from keytide.table.conditions.predicate import Predicate
from keytide.types import arrow_schema

__all__ = ["KEYS", "ShownRows", "refuse_taken_keys", "refuse_twice_in_parts"]

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


ShownRows = Callable[[tuple[str, ...], Predicate | None], Iterator[pa.RecordBatch]]
"""Some columns of the rows that are shown, of all at least that meet a condition."""


def refuse_taken_keys(table: ChangedByKey, told: Sequence[Told], rows: ShownRows) -> None:
    """Raise `InvalidError` where a key comes twice, or is that of another row, which keeps it.

    Reads keys, of those that are told as `came` and not as `new`.
    """
    refuse_twice(table, _of_kind(told, "came", "new"))
    came, gone = (_together(table, _of_kind(told, kind)) for kind in ("came", "gone"))
    _refuse_hidden(table, _of_kind(told, "came"), _of_kind(told, "gone"))
    if came.height:
        stored = rows(tuple(came.columns), among_keys(came, table.view))
        _refuse(table, _stored_among(stored, came, gone))


def _refuse_hidden(table: ChangedByKey, came: Sequence[pa.Table], gone: Sequence[pa.Table]) -> None:
    """Raise `InvalidError` where a row comes under a key that a fresher row leaves.

    What deletes that one under the key is as fresh as it was, so nobody would see the row that
    comes (rule R21).
    """
    if not (came and gone and table.view.options.sequence_field):
        return
    key = list(table.view.schema.primary_keys)
    descends = table.view.options.sequence_sort_order == "descending"
    one, other = (
        pl.concat([pl.DataFrame(pl.from_arrow(t)) for t in some]) for some in (came, gone)
    )
    both = one.join(other, on=key, how="inner", nulls_equal=True, suffix=_LEFT)
    for order in orders_of(table.view):
        left = both.select(
            pl.col(name if name in key else f"{name}{_LEFT}").alias(name) for name in order
        )
        hidden = both.filter(is_older(both.select(order), left, order, descends=descends))
        if hidden.height:
            taken = hidden.select(key).row(0, named=True)
            raise InvalidError(
                f"{table}: a row would get the primary key {taken}, of which a fresher row goes in "
                f"the same statement, so it would not be seen; nothing was changed. Set "
                f"{', '.join(map(repr, order))} as well"
            )


_LEFT = scratch("left")


def _stored_among(
    rows: Iterator[pa.RecordBatch], came: pl.DataFrame, gone: pl.DataFrame
) -> pl.DataFrame:
    """Keys that come and are stored already, but for those that go."""
    join = partial(pl.DataFrame.join, on=came.columns, nulls_equal=True)
    for batch in rows:
        found = join(came, pl.DataFrame(pl.from_arrow(batch)), how="semi")
        found = join(found, gone, how="anti")
        if found.height:
            return found
    return came.clear()


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
