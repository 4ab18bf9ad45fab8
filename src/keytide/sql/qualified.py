"""Columns that are named with the database of their table: `shop.orders.id`."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

__all__ = ["drop_databases"]


def drop_databases(tree: exp.Expr, database: str) -> None:
    """Name such columns by their tables alone, as engines know them.

    Only where that means the same table, which is in `database` where it is named without one;
    anything else is left for the engine to refuse.
    """
    if not any(column.args.get("db") for column in tree.find_all(exp.Column)):
        return
    for scope in traverse_scope(tree):
        for column in scope.find_all(exp.Column):
            if column.args.get("db") and _names(column, scope, database):
                column.set("db", None)
                column.set("catalog", None)


def _names(column: exp.Column, scope: Scope | None, database: str) -> bool:
    """Whether the nearest source of a column's table name is the table that it names in full."""
    while scope is not None:
        found = [source for name, source in scope.references if _same(name, column.table)]
        if found:
            (source, *others) = found
            if others or not isinstance(source, exp.Table):
                return False
            return _is_full_name(column, source, database)
        scope = scope.parent
    return False


def _is_full_name(column: exp.Column, table: exp.Table, database: str) -> bool:
    if table.alias:
        return False
    wanted = [part.name for part in column.parts[:-1]]
    have = [part.name for part in table.parts]
    given = [database, *have] if len(have) == 1 else have
    return len(wanted) == len(given) and all(map(_same, wanted, given))


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
