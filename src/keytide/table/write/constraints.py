"""CHECK constraints: conditions that no row may fail which is written.

As in SQL a row fails where a condition is false; where it is NULL, the row passes. Each row is
looked at as it is written: of a partial row, whose other columns are NULL, only what it brings.
Rows that delete have nothing to keep to.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from keytide.merge.refusal import Refusal, retracts_of
from keytide.table.conditions.constraint import constraints_of
from keytide.table.state.view import TableView

__all__ = ["broken_constraints"]


def broken_constraints(rows: pl.DataFrame, view: TableView) -> Iterator[Refusal]:
    """Which rows fail which constraint. `rows` have the table's columns and `_VALUE_KIND`."""
    kept = retracts_of(rows)
    for name, constraint in constraints_of(view.schema.fields, view.options, view.name).items():
        reason = f"the row breaks the constraint {name!r}, CHECK ({constraint.text})"
        fails = constraint.fails(rows) & ~kept
        yield Refusal(fails, reason, f"constraint-{name}", constraint.columns)
