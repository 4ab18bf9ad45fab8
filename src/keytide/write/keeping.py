"""Which rows a write stores in a table with a key index where rows are not merged."""

from __future__ import annotations

import numpy as np
import polars as pl

from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.merge.windows import take
from keytide.options import keys
from keytide.read.row_keys import Flags
from keytide.snapshot.state import TableView
from keytide.write.arrivals import Arrivals, Judged, Kept

__all__ = ["as_they_came", "first_key", "is_dropped", "refuse_too_old", "with_all_producers"]


def as_they_came(arrivals: Arrivals, judged: Judged, view: TableView) -> Kept:
    """The rows in their order. Late rows are marked or left out, as the table's options say.

    Rows that are too old are never stored. Their keys may be forgotten, and a dead row of an
    unknown key would mean that the key was deleted.
    """
    rows = with_marks(arrivals, judged, view)
    source = np.flatnonzero(~is_dropped(arrivals, judged, view))
    if len(source) < len(arrivals):
        rows = rows[pl.Series(source)]
    return Kept(rows, source, judged.is_current[source])


def is_dropped(arrivals: Arrivals, judged: Judged, view: TableView) -> Flags:
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
    told = " and ".join(f"'{key}' = '{age}'" for key, age in ages.items() if age is not None)
    (found,) = held_by_python(arrivals.rows.select(names).slice(int(np.argmax(wrong)), 1)).row(0)
    raise InvalidError(
        f"table {view.name}: {int(wrong.sum())} of {len(arrivals)} rows are further behind the "
        f"newest row of their bucket than {told} allows, the first with "
        f"{first_key(arrivals.rows, wrong, view)}, whose {names[0]} is {found!r}. Write it with "
        "a later value, or skip it"
    )


def with_marks(arrivals: Arrivals, judged: Judged, view: TableView) -> pl.DataFrame:
    """The rows with the columns that a write sets: see `with_all_producers`, and whether they are
    late.

    Raises like `with_all_producers`.
    """
    rows = with_all_producers(arrivals, judged, view)
    marker = view.options.out_of_order_column
    return rows if marker is None else rows.with_columns(pl.Series(marker, judged.is_late))


def with_all_producers(arrivals: Arrivals, judged: Judged, view: TableView) -> pl.DataFrame:
    """The rows. Those that are not late get the comparison values of their keys in every column.

    Raises `InvalidError` for a late row that has values of several producers, as rows of statements
    do.
    """
    comparison = view.comparison
    if not comparison.has_producers:
        return arrivals.rows
    _refuse_late_statements(arrivals, judged, view)
    own, of_current = arrivals.rows, arrivals.current.rows
    columns = []
    for place, name in enumerate(comparison.names):
        values = pl.concat([own[name], take(of_current[name], arrivals.current.at)])
        numbers = np.concatenate([arrivals.fresh[place], arrivals.stored[place]])
        order = np.argsort(numbers)
        at = order[np.searchsorted(numbers[order], judged.freshest[place])]
        columns.append(own[name].zip_with(pl.Series(judged.is_late), values[pl.Series(at)]))
    return own.with_columns(columns)


def _refuse_late_statements(arrivals: Arrivals, judged: Judged, view: TableView) -> None:
    wrong = judged.is_late & (arrivals.says.sum(axis=0) > 1)
    if wrong.any():
        raise InvalidError(
            f"table {view.name}: {int(wrong.sum())} rows are older than the stored row of their "
            f"key in one of the columns {', '.join(view.comparison.names)} and newer in another, "
            f"the first with {first_key(arrivals.rows, wrong, view)}; do not set lower values"
        )


def first_key(rows: pl.DataFrame, marks: Flags, view: TableView) -> str:
    """The key of the first marked row, for messages."""
    first = rows.select(view.schema.primary_keys).slice(int(np.argmax(marks)), 1)
    row = held_by_python(first).row(0, named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())
