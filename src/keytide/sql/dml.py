"""DELETE and UPDATE: rows are read, changed and appended again.

Both are one commit, and are made again when another writer changes one of their buckets
meanwhile, so neither undoes a write that it has not seen. The rows pass through this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from keytide.errors import InvalidError, UnsupportedError
from keytide.merge.engines import engine_class
from keytide.options import TableOptions, keys
from keytide.row_kind import ROW_KIND, RowKind
from keytide.sql.assign import assign
from keytide.sql.names import column_of, table_of
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.result import Result
from keytide.sql.statements import Delete, Query, Update
from keytide.table.catalog import Catalog
from keytide.table.definition.kind import require_key
from keytide.table.local_writes import derive
from keytide.table.state.stored import StoredTable

__all__ = ["delete", "update"]

_WAY_OUT = "Overwrite what is to stay"

RunQuery: TypeAlias = "Callable[[BoundQuery], Result]"


def delete(catalog: Catalog, run: RunQuery, statement: Delete) -> int:
    """Delete the rows that meet a condition; returns how many.

    Raises `UnsupportedError` where the table takes no deletes, or would drop them.
    """
    table = table_of(catalog, statement.table)
    require_key(table.schema, table.name, "DELETE of single rows", _WAY_OUT)
    _check_deletable(table)
    rows = _Rows(catalog, run, table)
    return derive(table, lambda: rows.of(statement.query, RowKind.DELETE)).rows


def update(catalog: Catalog, run: RunQuery, statement: Update) -> int:
    """Change columns of the rows that meet a condition; returns how many rows.

    A table with a watermark key lets rows move to another primary key (rule R16 of
    docs/semantics.md). Raises `UnsupportedError` where the merge engine would not store the new
    values as they are, `InvalidError` for columns that say which row it is, or which version is
    newer.
    """
    table = table_of(catalog, statement.table)
    require_key(table.schema, table.name, "UPDATE", _WAY_OUT)
    names = _assigned(statement, table)
    tree = statement.query.tree.copy()
    assert isinstance(tree, exp.Select)
    alias = tree.find(exp.Table).alias_or_name  # type: ignore[union-attr]  # it selects from one
    column = partial(exp.column, table=alias, quoted=True)
    tree.set(
        "expressions",
        [
            exp.Alias(
                this=names.get(name, column(name)), alias=exp.to_identifier(name, quoted=True)
            )
            for name in table.schema.names
        ],
    )
    changed = replace(statement.query, tree=tree)
    rows = _Rows(catalog, run, table, frozenset(names))
    if not set(names) & set(table.schema.primary_keys):
        return derive(table, lambda: rows.of(changed, RowKind.UPDATE_AFTER)).rows
    _check_deletable(table)  # a row that moves is deleted under its old key

    def moved() -> pa.Table:
        left = rows.of(statement.query, RowKind.DELETE)
        return pa.concat_tables([left, rows.of(changed, RowKind.INSERT)])

    return derive(table, moved).rows // 2  # a row that moves is written twice


@dataclass(frozen=True)
class _Rows:
    """Makes the rows to write from those that a query finds in the newest snapshot."""

    catalog: Catalog
    run: RunQuery
    table: StoredTable
    assigned: frozenset[str] = frozenset()

    def of(self, query: Query, kind: RowKind) -> pa.Table:
        options = TableOptions.parse(self.table.schema.options)
        rows = self.run(bind(query, self.catalog)).to_arrow()
        if engine_class(options).fills_gaps:
            _refuse_nulls(rows.select(sorted(self.assigned)), self.table)
        columns = {
            f.name: assign(rows.column(f.name), f, self.table.name)
            for f in self.table.schema.fields
        }
        kinds = pa.repeat(kind.short, rows.num_rows)
        return pa.table({**columns, options.rowkind_field or ROW_KIND: kinds})


def _check_deletable(table: StoredTable) -> None:
    view = table.view(table.schema)
    if view.options.ignore_delete:
        raise UnsupportedError(
            f"table {table.name}: its option '{keys.IGNORE_DELETE}' drops deletes, so no row can "
            f"be deleted; overwrite what is to stay"
        )
    way_out = view.engine.refuses_delete
    if way_out is not None:
        raise UnsupportedError(
            f"table {table.name}: merge engine {view.options.merge_engine} can not support Delete "
            f"of single rows; {way_out}, or overwrite what is to stay"
        )


def _assigned(statement: Update, table: StoredTable) -> dict[str, exp.Expr]:
    view = table.view(table.schema)
    options, reason = view.options, view.engine.refuses_update
    if reason is not None:
        raise UnsupportedError(
            f"table {table.name}: merge engine {options.merge_engine} can not support Update; "
            f"{reason}"
        )
    assigned = {}
    for given, value in statement.assignments.items():
        name = column_of(given, table.schema.names, table.name)
        _check_assigned(name, table, options)
        assigned[name] = value
    return assigned


def _check_assigned(name: str, table: StoredTable, options: TableOptions) -> None:
    if name in table.schema.primary_keys and not options.watermark_key:
        raise InvalidError(
            f"table {table.name}: Can't update the primary key column {name!r}; delete the row "
            f"and insert the new one"
        )
    if name in options.sequence_field:
        raise InvalidError(
            f"table {table.name}: {name!r} is a sequence field, which says what is newer, so an "
            f"UPDATE cannot set it; insert the row with its new place in the order"
        )


def _refuse_nulls(assigned: pa.Table, table: StoredTable) -> None:
    for name in assigned.column_names:
        if assigned.column(name).null_count:
            raise InvalidError(
                f"table {table.name}: the UPDATE sets {name!r} to NULL, which its merge engine "
                f"takes for 'no new value'; give a value, or delete the row and insert it without "
                f"one"
            )
