"""Arrivals in a bucket with a key index: which rows are late, and what a table stores of them.

The rows that arrive are compared with the current rows of their keys. A row is late if a newer row
of its key came before it. It is late whatever its key if it is further behind the newest row of its
bucket than the table's limits allow. Late rows are stored, dropped, marked or refused, as the
table's options say.

With row merging, one row per key is stored: the current row merged with the arriving rows, column
by column, and then the columns that are computed from it. A delete removes everything before it, so
the next row starts a new row. The rows of one write are ordered by their comparison column, and the
rows of each producer keep their positions among the others. A late row cannot be put in its place:
the merged row no longer shows which of the columns a later row has set, or whether a later row has
deleted the key. So it is refused, unless the table's options say that late rows are dropped, or it
comes after a delete.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property, scratch
from keytide.base.row_kind import RowKind
from keytide.base.text import held_by_python
from keytide.definition.kind import computed_columns, merged_fields
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow
from keytide.key_index.indexed_keys import NOTHING, Entries, KeyHashes, Numbers
from keytide.merge.engine import MergeEngine
from keytide.merge.engines import column_merger
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.windows import take
from keytide.options import keys
from keytide.read.current_rows import Flags, exact
from keytide.read.key_index_rebuild import largest_before
from keytide.snapshot.state import TableView

# -- late rows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Current:
    """The current row of each key, including deleted ones.

    `at` says which of `rows` is the current row for each arriving row, -1 without one. `rows`
    have the needed columns, or none if the index contains enough. `lives` says which of `rows` are
    live.
    """

    rows: pl.DataFrame
    at: Numbers
    lives: Flags

    @property
    def is_known(self) -> Flags:
        """Which arriving rows have a current row."""
        known: Flags = self.at >= 0
        return known

    def take(self, places: Numbers) -> Current:
        """The current rows for the arriving rows at some positions."""
        return replace(self, at=self.at[places])


@dataclass(frozen=True)
class Arrivals:
    """Rows of one bucket in order of arrival.

    - `entries` are the index entries of those keys that the index knows.
    - `fresh` are the comparison values of each row, and `stored` those of its key: one number for
      each compared column.
    - `has_value` tells in which of these columns a row has a value to compare.
    - A row below its `floor` is late, whatever its key.
    """

    rows: pl.DataFrame
    hashes: KeyHashes
    entries: Entries
    current: Current
    fresh: Numbers
    stored: Numbers
    has_value: Flags
    floor: Numbers

    @cached_property
    def is_too_old(self) -> Flags:
        """Which rows are late, whatever their keys."""
        old: Flags = self.fresh[0] < self.floor
        return old

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Numbers) -> Arrivals:
        """The rows at some positions."""
        return Arrivals(
            self.rows[pl.Series(places)],
            self.hashes.take(places),
            self.entries.take(places),
            self.current.take(places),
            self.fresh[:, places],
            self.stored[:, places],
            self.has_value[:, places],
            self.floor[places],
        )

    @cached_property
    def come_again(self) -> Numbers:
        """The rows whose key head occurs in another row too, as is the case for rows with the same
        key.
        """
        heads = self.hashes.ordered.heads
        is_same = np.concatenate([[False], heads[1:] == heads[:-1], [False]])
        again = np.flatnonzero(is_same[1:] | is_same[:-1])
        return np.sort(self.hashes.order[again])


@dataclass(frozen=True)
class Judgment:
    """Which rows are late, which are the current rows of their keys, and the new comparison values.

    A row is late if an earlier row of its key, stored or in the same write, has a larger comparison
    value, or if it is too old. For equal values, the later row wins. `freshest` are the comparison
    values of a key after a row that is not late, one number for each column.
    """

    is_late: Flags
    is_current: Flags
    freshest: Numbers


def judge(arrivals: Arrivals) -> Judgment:
    """Judge rows in the order in which they arrive."""
    before = arrivals.stored
    again = arrivals.come_again
    if len(again):
        before = before.copy()

        # The comparison value of each row's key when the row arrives. The value of a late row is
        # not larger than earlier ones, so it may be counted, unless it is too old.
        fresh = np.where(arrivals.is_too_old, NOTHING, arrivals.fresh)[:, again]
        earlier = largest_before(arrivals.hashes.take(again), fresh)
        before[:, again] = np.maximum(earlier, arrivals.stored[:, again])
    is_late: Flags = np.any((arrivals.fresh < before) & arrivals.has_value, axis=0)
    is_late |= arrivals.is_too_old
    is_current = ~is_late
    kept = again[~is_late[again]]
    is_current[kept] = False
    hashes = arrivals.hashes.take(kept)
    frame = pl.DataFrame({"head": hashes.heads, "check": hashes.checks, "row": kept})
    last: Numbers = frame.group_by("head", "check").agg(pl.col("row").last())["row"].to_numpy()
    is_current[last] = True
    return Judgment(is_late, is_current, np.maximum(before, arrivals.fresh))


@dataclass(frozen=True)
class RowsToStore:
    """The rows to store, the position of each among the arriving rows, and which are current."""

    rows: pl.DataFrame
    source: Numbers
    is_current: Flags


def unmerged_rows(arrivals: Arrivals, judged: Judgment, view: TableView) -> RowsToStore:
    """The rows in their order. Late rows are marked or left out, as the table's options say.

    Rows that are too old are never stored. Their keys may be forgotten, and a dead row of an
    unknown key would mean that the key was deleted.
    """
    rows = with_marks(arrivals, judged, view)
    source = np.flatnonzero(~is_dropped(arrivals, judged, view))
    if len(source) < len(arrivals):
        rows = rows[pl.Series(source)]
    return RowsToStore(rows, source, judged.is_current[source])


def is_dropped(arrivals: Arrivals, judged: Judgment, view: TableView) -> Flags:
    """Which rows are not stored: too old ones, and late ones in a table that drops late rows."""
    return judged.is_late if view.options.drops_out_of_order else arrivals.is_too_old


def refuse_too_old(arrivals: Arrivals, view: TableView) -> None:
    """Raise `InvalidError` for rows that are late, whatever their keys."""
    wrong = arrivals.is_too_old
    if not wrong.any():
        return
    names, options = view.comparison.names, view.options
    ages = {
        keys.UPSERT_METADATA_TTL: options.metadata_ttl,
        keys.UPSERT_DELETED_KEYS_TTL: options.deleted_keys_ttl,
    }
    limits = " and ".join(f"'{key}' = '{age}'" for key, age in ages.items() if age is not None)
    (found,) = held_by_python(arrivals.rows.select(names).slice(int(np.argmax(wrong)), 1)).row(0)
    raise InvalidError(
        f"table {view.name}: {int(wrong.sum())} of {len(arrivals)} rows are further behind the "
        f"newest row of their bucket than {limits} allows, the first with "
        f"{first_key(arrivals.rows, wrong, view)}, whose {names[0]} is {found!r}. Write it with "
        "a later value, or skip it"
    )


def with_marks(arrivals: Arrivals, judged: Judgment, view: TableView) -> pl.DataFrame:
    """The rows with the columns that a write sets: whether a row is late, and, with several
    producers, the comparison values of its key in every column, unless it is late.

    Raises `InvalidError` for a late row that has values of several producers, as rows of statements
    do.
    """
    rows, comparison, marker = arrivals.rows, view.comparison, view.options.out_of_order_column
    if comparison.has_producers:
        wrong = judged.is_late & (arrivals.has_value.sum(axis=0) > 1)
        if wrong.any():
            raise InvalidError(
                f"table {view.name}: {int(wrong.sum())} rows are older than the stored row of "
                f"their key in one of the columns {', '.join(comparison.names)} and newer in "
                f"another, the first with {first_key(rows, wrong, view)}; do not set lower values"
            )
        own, of_current, columns = rows, arrivals.current.rows, []
        for place, name in enumerate(comparison.names):
            values = pl.concat([own[name], take(of_current[name], arrivals.current.at)])
            numbers = np.concatenate([arrivals.fresh[place], arrivals.stored[place]])
            order = np.argsort(numbers)
            at = order[np.searchsorted(numbers[order], judged.freshest[place])]
            columns.append(own[name].zip_with(pl.Series(judged.is_late), values[pl.Series(at)]))
        rows = own.with_columns(columns)
    return rows if marker is None else rows.with_columns(pl.Series(marker, judged.is_late))


def first_key(rows: pl.DataFrame, marks: Flags, view: TableView) -> str:
    """The key of the first marked row, for messages."""
    first = rows.select(view.schema.primary_keys).slice(int(np.argmax(marks)), 1)
    row = held_by_python(first).row(0, named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())


# -- row merging -----------------------------------------------------------------------------------


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
