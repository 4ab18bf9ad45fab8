"""CHECK constraints: conditions that no row may fail which is written.

As in SQL a row fails where a condition is false; where it is NULL, the row passes. Each row is
looked at as it is written: of a partial row, whose other columns are NULL, only what it brings.
Rows that delete have nothing to keep to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from keytide.format.schema import TableSchema
from keytide.merge.refusal import Refusal, retracts_of
from keytide.options import TableOptions, keys
from keytide.table.conditions.matching import row_filter
from keytide.table.conditions.predicate import Predicate
from keytide.table.conditions.where import parse_where
from keytide.table.state.view import TableView

__all__ = ["broken_constraints", "constraint_texts", "constraints_of"]


def constraint_texts(options: TableOptions) -> dict[str, str]:
    """The conditions by the names of their constraints, as they are stored."""
    return options.by_columns(keys.CONSTRAINT)


def constraints_of(
    schema: TableSchema, options: TableOptions, table: str
) -> Mapping[str, Predicate]:
    """The constraints of a table, by name.

    Raises `InvalidError` and `NotFoundError` for a condition that does not parse or fit.
    """
    texts = constraint_texts(options)
    where = {name: f"{table}: constraint {name!r}" for name in texts}
    return {name: parse_where(text, schema.fields, where[name]) for name, text in texts.items()}


def broken_constraints(rows: pl.DataFrame, view: TableView) -> Iterator[Refusal]:
    """Which rows fail which constraint. `rows` have the table's columns and `_VALUE_KIND`."""
    texts = constraint_texts(view.options)
    kept = retracts_of(rows)
    for name, condition in constraints_of(view.schema, view.options, view.name).items():
        holds = rows.select(row_filter(condition, view.schema.fields).alias("holds")).to_series()
        fails = np.asarray(holds.fill_null(True)) == False  # noqa: E712  # of an array
        reason = f"the row breaks the constraint {name!r}, CHECK ({texts[name]})"
        yield Refusal(fails & ~kept, reason, f"constraint-{name}")
