"""Which rows a write into a table with an index of keys stores, where rows are not merged."""

from __future__ import annotations

import numpy as np
import polars as pl

from keytide.errors import InvalidError
from keytide.merge.slices import take
from keytide.table.state.view import TableView
from keytide.table.write.arrivals import Arrivals, Flags, Judged, Kept

__all__ = ["as_they_came", "first_key", "with_all_producers"]


def as_they_came(arrivals: Arrivals, judged: Judged, view: TableView) -> Kept:
    """The rows, in their order; those that come late are marked or left out as the table says."""
    rows, source = with_marks(arrivals, judged, view), np.arange(len(arrivals))
    if view.options.drops_out_of_order:
        source = np.flatnonzero(~judged.is_late)
        rows = rows[pl.Series(source)]
    return Kept(rows, source, judged.is_current[source])


def with_marks(arrivals: Arrivals, judged: Judged, view: TableView) -> pl.DataFrame:
    """The rows with what a write says in them: see `with_all_producers`, and whether they are late.

    Raises as `with_all_producers`.
    """
    rows = with_all_producers(arrivals, judged, view)
    marker = view.options.out_of_order_column
    return rows if marker is None else rows.with_columns(pl.Series(marker, judged.is_late))


def with_all_producers(arrivals: Arrivals, judged: Judged, view: TableView) -> pl.DataFrame:
    """The rows; those that are not late have what their keys are compared by in every column.

    Raises `InvalidError` for a late row that has values of several producers, as statements have.
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
            f"table {view.name}: {int(wrong.sum())} rows are older in one of the columns "
            f"{', '.join(view.comparison.names)} than what their keys have there, the first with "
            f"{first_key(arrivals.rows, wrong, view)}, and fresher in another one; set no lower "
            f"values"
        )


def first_key(rows: pl.DataFrame, marks: Flags, view: TableView) -> str:
    """The key of the first of some rows that are marked, for people."""
    row = rows.select(view.schema.primary_keys).row(int(np.argmax(marks)), named=True)
    return ", ".join(f"{name} = {value!r}" for name, value in row.items())
