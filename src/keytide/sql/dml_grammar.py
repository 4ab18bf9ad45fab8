"""DELETE and UPDATE: one table, its rows by a condition, new values by expressions."""

from __future__ import annotations

from sqlglot import exp

from keytide.sql.clauses import clauses
from keytide.sql.cursor import Cursor
from keytide.sql.dialect import parse_expression
from keytide.sql.statements import Delete, Query, Update

__all__ = ["delete", "delete_from", "update", "update_from"]


def delete(cursor: Cursor) -> Delete:
    """Parse DELETE."""
    return delete_from(_whole(cursor, exp.Delete), cursor)


def update(cursor: Cursor) -> Update:
    """Parse UPDATE."""
    return update_from(_whole(cursor, exp.Update), cursor)


def delete_from(tree: exp.Expr, cursor: Cursor) -> Delete:
    """What a parsed DELETE asks for. Raises `InvalidError` for any clause but WHERE."""
    with clauses(tree, cursor, "DELETE") as given:
        target, where = given.take("this"), given.take("where")
    name = _target(target, cursor, "DELETE")
    return Delete(name, _rows_of(target, where, cursor))


def update_from(tree: exp.Expr, cursor: Cursor) -> Update:
    """What a parsed UPDATE asks for. Raises `InvalidError` for any clause but SET and WHERE."""
    with clauses(tree, cursor, "UPDATE") as given:
        target, where, pairs = (given.take(n) for n in ("this", "where", "expressions"))
    name = _target(target, cursor, "UPDATE")
    if not pairs:
        raise cursor.error_at(cursor.end, "expected SET column = value")
    assignments: dict[str, exp.Expr] = {}
    for pair in pairs:
        column, value = _assignment(pair, target, cursor)
        if column.lower() in map(str.lower, assignments):
            raise cursor.error_at(_place(pair, cursor), f"column {column!r} is set twice")
        assignments[column] = value
    return Update(name, _rows_of(target, where, cursor), assignments)


def _whole(cursor: Cursor, node_type: type[exp.Expr]) -> exp.Expr:
    """All of a statement, not taken yet: places are looked up in it."""
    tree = parse_expression(cursor.text, cursor.start, cursor.end)
    if not isinstance(tree, node_type):
        raise cursor.error(f"expected {node_type.key.upper()} of the rows of a table")
    return tree


def _target(table: exp.Expr | None, cursor: Cursor, what: str) -> str:
    """The name of the table to change, which comes with an alias at most."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise cursor.error(f"{what} needs the name of a table")
    with clauses(table, cursor, f"the table of {what}") as given:
        for part in ("catalog", "db", "this"):
            given.take(part)
        alias = given.take("alias")
    if alias is not None:
        with clauses(alias, cursor, f"the alias in {what}") as given:
            given.take("this")
    end = table.this.meta.get("end")
    if end is not None and end + 1 in cursor.hints:
        raise cursor.error_at(end + 1, f"{what} changes the newest snapshot and takes no hint")
    return ".".join(part.name for part in table.parts)


def _assignment(pair: exp.Expr, target: exp.Table, cursor: Cursor) -> tuple[str, exp.Expr]:
    if not isinstance(pair, exp.EQ) or not isinstance(pair.this, exp.Column):
        raise cursor.error_at(_place(pair, cursor), "expected column = value")
    with clauses(pair.this, cursor, "SET") as given:
        column, table = given.take("this"), given.take("table")
        if table is None or table.name.lower() == target.alias_or_name.lower():
            return str(column.name), pair.expression
    raise cursor.error_at(
        _place(pair, cursor),
        f"{pair.this.sql()} is not a column of {target.alias_or_name}; a member of a ROW cannot be "
        f"set by itself: set the whole column",
    )


def _rows_of(target: exp.Expr, where: exp.Expr | None, cursor: Cursor) -> Query:
    """The rows that a statement is about."""
    tree = exp.select("*").from_(target).where(where and where.this)
    hints = cursor.take_hints()
    cursor.skip()
    return Query(tree, cursor.text, hints)


def _place(node: exp.Expr, cursor: Cursor) -> int:
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    return min(starts, default=cursor.start)
