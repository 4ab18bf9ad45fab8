"""Row merging: rows are merged with the current rows of their keys before they are stored.

One row per key is stored: the current row merged with the arriving rows, column by column, and then
the columns that are computed from it. A delete removes everything before it, so the next row starts
a new row. The rows of one write are ordered by their comparison column, and the rows of each
producer keep their positions among the others.

A late row cannot be put in its place: the merged row no longer shows which of the columns a later
row has set, or whether a later row has deleted the key. So it is refused, unless the table's
options say that late rows are dropped, or it comes after a delete.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.base.text import held_by_python
from keytide.definition.kind import computed_columns, merged_fields
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow
from keytide.key_index.indexed_keys import KeyHashes, Numbers
from keytide.merge.engine import MergeEngine
from keytide.merge.engines import column_merger
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.options import keys
from keytide.read.current_rows import exact
from keytide.snapshot.state import TableView
from keytide.write.late_rows import (
    Arrivals,
    Judgment,
    RowsToStore,
    first_key,
    is_dropped,
    judge,
    refuse_too_old,
    with_marks,
)

_KEY, _PLACE = map(scratch, ("key", "place"))


def row_merger(view: TableView) -> MergeEngine:
    """The merge engine for rows of the table, in the order of `_KEY`."""
    order = MergeOrder(key=(_KEY, *view.schema.primary_keys))
    fields = merged_fields(view.schema, view.options)
    return column_merger(order, fields, view.options, view.functions)


def as_deletes(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, in which all rows that do not add become deletes."""
    kind = pl.when(IS_ADD).then(pl.col(VALUE_KIND)).otherwise(pl.lit(int(RowKind.DELETE), pl.Int8))
    return rows.with_columns(kind.alias(VALUE_KIND))


def merged_rows(arrivals: Arrivals, judged: Judgment, view: TableView) -> RowsToStore:
    """One row per key, and the late rows as they arrived, unless they are dropped.

    Raises `InvalidError` for a late row that the options do not drop, and for rows that cannot be
    merged.
    """
    sorted_by = np.arange(len(arrivals))
    if not view.options.leaves_out_late_rows:
        # The order in which rows of one write are merged.
        places = np.arange(len(arrivals))
        if not len(arrivals.come_again):
            sorted_by = places
        else:
            numbers = _key_numbers(arrivals.hashes)
            producers = np.argmax(arrivals.has_value, axis=0)
            fresh = arrivals.fresh[producers, places]
            taken: Numbers = np.empty_like(places)
            taken[np.lexsort((places, producers, numbers))] = np.lexsort(
                (places, fresh, producers, numbers)
            )
            sorted_by = taken
        arrivals = arrivals.take(sorted_by)
        judged = judge(arrivals)
        refuse_too_old(arrivals, view)
        _refuse_late(arrivals, judged, view)
    rows = with_marks(arrivals, judged, view).with_columns(pl.Series(_PLACE, sorted_by))
    with view.naming_table():
        versions = _versions(rows, arrivals, np.flatnonzero(~judged.is_late), view)
        merged = row_merger(view).merge(versions, in_key_order=False)
        merged = _with_computed(merged, versions, view).sort(_PLACE).drop(_KEY)
    late = rows.filter(pl.Series(judged.is_late & ~is_dropped(arrivals, judged, view)))
    stored = pl.concat([merged, late.select(merged.columns)])
    is_current = np.arange(stored.height) < merged.height
    return RowsToStore(stored.drop(_PLACE), stored[_PLACE].to_numpy(), is_current)


def _versions(
    rows: pl.DataFrame, arrivals: Arrivals, taken: Numbers, view: TableView
) -> pl.DataFrame:
    """The live row of each written key, then its arriving rows in their order."""
    numbers = _key_numbers(arrivals.hashes.take(taken))
    arriving = as_deletes(rows[pl.Series(taken)]).with_columns(pl.Series(_KEY, numbers))
    _, first = np.unique(numbers, return_index=True)
    at, current = arrivals.current.at[taken[first]], arrivals.current
    has_row = at >= 0
    has_row[has_row] = current.lives[at[has_row]]
    stored = current.rows[pl.Series(at[has_row])].with_columns(
        pl.Series(_KEY, numbers[first[has_row]]),
        pl.lit(-1, pl.Int64).alias(_PLACE),
        pl.lit(int(RowKind.INSERT), pl.Int8).alias(VALUE_KIND),
    )
    versions = pl.concat([stored.select(arriving.columns), arriving])
    # The key is spelled as in the latest row. Some hash functions allow different spellings.
    spelt = [pl.col(name).last().over(_KEY) for name in view.schema.primary_keys]
    return versions.sort(_KEY, maintain_order=True).with_columns(spelt)


def _with_computed(merged: pl.DataFrame, versions: pl.DataFrame, view: TableView) -> pl.DataFrame:
    """The rows. Those merged from two or more versions get their computed columns.

    A row that is the first one of its key, or the first after a delete, is not changed.
    """
    columns = computed_columns(view.schema, view.options)
    if not columns:
        return merged

    # The keys that have two or more versions after their last delete, in their order.
    numbers, kinds = versions[_KEY].to_numpy(), versions[VALUE_KIND].to_numpy()
    ends = np.flatnonzero(np.diff(numbers, append=-1))
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.where(kinds == RowKind.DELETE, np.arange(len(numbers)), -1)
    since = ends - np.maximum(starts - 1, np.maximum.accumulate(places)[ends])
    several: Numbers = numbers[ends[since > 1]]
    is_one = pl.col(_KEY).is_in(pl.Series(several).implode())
    made = merged.filter(is_one)
    for column in columns:
        read = exact(made, view.schema.select(column.expression.columns))
        values = column.expression.values(read, column.field, view.name)
        made = made.with_columns(from_arrow(pa.table({column.field.name: values})).to_series())
    return pl.concat([merged.filter(~is_one), made.select(merged.columns)])


def _key_numbers(hashes: KeyHashes) -> Numbers:
    """A number for each key, the same in all of its rows."""
    order = np.lexsort((hashes.checks, hashes.heads))
    heads, checks = hashes.heads[order], hashes.checks[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (heads[1:] != heads[:-1]) | (checks[1:] != checks[:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new)
    return numbers


def _refuse_late(arrivals: Arrivals, judged: Judgment, view: TableView) -> None:
    at = arrivals.current.at
    wrong = judged.is_late & (at >= 0)
    wrong[wrong] = arrivals.current.lives[at[wrong]]
    if not wrong.any():
        return
    first, names = int(np.argmax(wrong)), view.comparison.names
    found, has = (
        ", ".join(map(repr, held_by_python(rows.select(names).slice(place, 1)).row(0)))
        for rows, place in ((arrivals.rows, first), (arrivals.current.rows, int(at[first])))
    )
    raise InvalidError(
        f"table {view.name}: {int(wrong.sum())} of {len(arrivals)} rows are older than the "
        f"stored rows of their keys, the first with {first_key(arrivals.rows, wrong, view)}: its "
        f"{', '.join(names)} is {found}, and that of the stored row {has}. With "
        f"'{keys.UPSERT_MODE}' = '{view.options.upsert_mode}', a late row cannot be merged into "
        "the result of later ones. Write the rows of a key in order, or create a table that "
        f"leaves out late rows ('{keys.UPSERT_LATE_ROWS}', '{keys.UPSERT_DROP_OUT_OF_ORDER}', "
        f"'{keys.UPSERT_OUT_OF_ORDER_COLUMN}'), or one that merges on read "
        f"('{keys.MERGE_ENGINE}')"
    )
