"""CHECK constraints: conditions that every written row must satisfy.

As in SQL, a row fails if a condition is false, and passes if the condition is NULL. Each row is
checked as it is written. In a partial row, whose other columns are NULL, only the given values are
checked. Rows that delete are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from keytide.merge.refusal import Refusal, retracts_of
from keytide.predicate.constraint import constraints_of
from keytide.snapshot.view import TableView

__all__ = ["broken_constraints"]


def broken_constraints(rows: pl.DataFrame, view: TableView) -> Iterator[Refusal]:
    """Which rows fail which constraint. `rows` have the table's columns and `_VALUE_KIND`."""
    kept = retracts_of(rows)
    for name, constraint in constraints_of(view.schema.fields, view.options, view.name).items():
        reason = f"the row violates the constraint {name!r}, CHECK ({constraint.text})"
        fails = constraint.fails(rows) & ~kept
        yield Refusal(fails, reason, f"constraint-{name}", constraint.columns)
