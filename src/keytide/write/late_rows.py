"""Which rows of a write come late for their keys, and what a table stores of them.

The rows that arrive in a bucket with a key index are compared with the current rows of their keys.
A row is late if a newer row of its key came before it. It is late whatever its key if it is further
behind the newest row of its bucket than the table's limits allow. Late rows are stored, dropped,
marked or refused, as the table's options say.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.key_index.indexed_keys import NOTHING, Entries, KeyHashes, Numbers
from keytide.merge.windows import take
from keytide.options import keys
from keytide.read.current_rows import Flags
from keytide.read.key_index_rebuild import largest_before
from keytide.snapshot.state import TableView


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
