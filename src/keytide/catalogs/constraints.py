"""Adds CHECK constraints to existing tables, and removes them."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from keytide.catalogs.alter import alter_table
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.errors import AlreadyExistsError, InvalidError, NotFoundError
from keytide.format.arrow import from_arrow
from keytide.merge.refusal import NAMED_ROWS_MAX, named_rows
from keytide.options import TableOptions, keys
from keytide.predicate.constraint import Constraint, constraint_of, constraint_texts
from keytide.predicate.predicate import negation
from keytide.predicate.values.row_expression import RowExpression
from keytide.read.scan import Scan
from keytide.read.scans import scan_table
from keytide.snapshot.pinned import StoredTable

__all__ = ["add_constraint", "drop_constraint"]


def add_constraint(table: StoredTable, name: str, condition: str) -> None:
    """See `Table.add_constraint`."""
    key = keys.key_of(keys.CONSTRAINT, name)
    if name in _known(table):
        raise AlreadyExistsError(
            f"table {table.name} already has a constraint {name!r}; drop it first, or choose "
            "another name"
        )
    table = table.pinned()
    constraint = constraint_of(name, condition, table.schema.fields, table.name)
    columns = tuple(dict.fromkeys((*table.schema.primary_keys, *constraint.columns)))
    columns = columns or table.schema.names[:1]
    count, first = _failing(_rows_for(table, constraint, columns), constraint)
    if count:
        more = "; ..." if count > first.height else ""
        raise InvalidError(
            f"table {table.name}: {count} rows violate the constraint {name!r}, CHECK "
            f"({condition}), for example {named_rows(first, columns)}{more}; update or delete "
            "them, and then add the constraint"
        )
    alter_table(table.metadata, [SetOption(key, condition)])


def _rows_for(table: StoredTable, constraint: Constraint, columns: tuple[str, ...]) -> Scan:
    """The rows that may fail. Files whose metadata exclude failures are skipped."""
    if isinstance(constraint.condition, RowExpression):
        return scan_table(table, columns)
    return scan_table(table, columns, negation(constraint.condition))


def _failing(scan: Scan, constraint: Constraint) -> tuple[int, pl.DataFrame]:
    """How many rows fail a constraint, and the first of them."""
    count, first = 0, from_arrow(scan.schema.empty_table())
    for batch in scan.to_batches():
        rows = from_arrow(pa.Table.from_batches([batch]))
        failing = rows.filter(pl.Series(constraint.fails(rows)))
        count += failing.height
        first = pl.concat([first, failing]).head(NAMED_ROWS_MAX)
    return count, first


def drop_constraint(table: StoredTable, name: str, *, missing_ok: bool = False) -> None:
    """See `Table.drop_constraint`."""
    known = _known(table)
    if name in known:
        alter_table(table.metadata, [RemoveOption(keys.key_of(keys.CONSTRAINT, name))])
    elif not missing_ok:
        there = ", ".join(known) or "none"
        raise NotFoundError(
            f"table {table.name} has no constraint {name!r}; existing constraints: {there}"
        )


def _known(table: StoredTable) -> dict[str, str]:
    return constraint_texts(TableOptions.parse(table.schema.options))
