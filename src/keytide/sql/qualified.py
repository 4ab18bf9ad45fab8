"""Column names that include the database of their table: `shop.orders.id`."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

__all__ = ["drop_databases"]


def drop_databases(tree: exp.Expr, database: str) -> None:
    """Remove the database from such column names, as engines require.

    This is done only if the table without the database name, in `database`, is the same one. The
    engine refuses everything else.
    """
    if not any(column.args.get("db") for column in tree.find_all(exp.Column)):
        return
    for scope in traverse_scope(tree):
        for column in scope.find_all(exp.Column):
            if column.args.get("db") and _names(column, scope, database):
                column.set("db", None)
                column.set("catalog", None)


def _names(column: exp.Column, scope: Scope | None, database: str) -> bool:
    """Whether the nearest source with the column's table name is the fully qualified table."""
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
