"""The grammar of DELETE, UPDATE, MERGE and AUTO CDC.

sqlglot parses more SQL than Keytide supports. So each supported clause of a tree is looked up by
name, and any other clause is an error. None is ignored.

The syntax of AUTO CDC is that of pipelines in Spark and Databricks, where a flow runs continuously.
Here it is a statement that processes the events that exist when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from keytide.base.text import counted
from keytide.sql.cursor import Cursor
from keytide.sql.statements import ApplyEvents, Delete, Merge, Update, When

# -- DELETE, UPDATE and MERGE ----------------------------------------------------------------------


TARGET = "dml_target"
"""The mark, in the meta of its node, of the table that a statement changes."""


def change(cursor: Cursor) -> Delete | Update | Merge:
    """Parse a complete DELETE, UPDATE or MERGE statement."""
    evolves = [cursor.peek(place) for place in range(4)] == ["MERGE", *_EVOLVING]
    tree = cursor.tree(*_EVOLVING) if evolves else cursor.tree()
    if isinstance(tree, exp.Delete):
        return delete_from(tree, cursor)
    if isinstance(tree, exp.Update):
        return update_from(tree, cursor)
    if isinstance(tree, exp.Merge):
        return replace(merge_into(tree, cursor), evolves=evolves)
    raise cursor.error("expected a DELETE, UPDATE or MERGE statement")


_EVOLVING = ("WITH", "SCHEMA", "EVOLUTION")


def delete_from(tree: exp.Expr, cursor: Cursor) -> Delete:
    """A parsed DELETE. Raises `InvalidError` for any clause but WHERE."""
    target, where = clauses(tree, cursor, "DELETE", "this", "where")
    name = _target(target, cursor, "DELETE")
    _refuse_many_rows(where, cursor)
    return Delete(name, cursor.query(exp.select("*").from_(target).where(where and where.this)))


def update_from(tree: exp.Expr, cursor: Cursor) -> Update:
    """A parsed UPDATE. Raises `InvalidError` for any clause but SET and WHERE."""
    target, where, pairs = clauses(tree, cursor, "UPDATE", "this", "where", "expressions")
    name = _target(target, cursor, "UPDATE")
    if not pairs:
        raise cursor.error_at(cursor.end, "expected SET column = value")
    assignments = _assignments(pairs, target, cursor)
    _refuse_many_rows(where, cursor)
    rows = cursor.query(exp.select("*").from_(target).where(where and where.this))
    return Update(name, rows, assignments)


def merge_into(tree: exp.Expr, cursor: Cursor) -> Merge:
    """A parsed MERGE. Raises `InvalidError` for a clause that is not supported."""
    names = ("this", "using", "on", "whens")
    target, source, condition, whens = clauses(tree, cursor, "MERGE", *names)
    name = _target(target, cursor, "MERGE")
    if condition is None:
        raise cursor.error_at(
            cursor.end, "MERGE requires ON and a condition that joins both tables"
        )
    source_name = source.alias_or_name or "source"
    if source_name.lower() == target.alias_or_name.lower():
        raise cursor.error_at(
            _place(source, cursor),
            f"MERGE uses the name {source_name!r} for both tables; rename one: USING ... AS source",
        )
    _refuse_many_rows(condition, cursor)
    branches = tuple(_when(each, target, cursor) for each in whens.expressions)

    # Refuse a WHEN that follows one of its kind without a condition: it can never apply.
    closed: set[str] = set()
    for branch, node in zip(branches, whens.expressions, strict=True):
        if branch.kind in closed:
            raise cursor.error_at(
                _place(node, cursor),
                f"an earlier WHEN {branch.kind} has no condition, so this one is never used; put "
                "the one without a condition last",
            )
        if branch.condition is None:
            closed.add(branch.kind)

    # The join type that keeps the unmatched rows that the branches need.
    sides = {_ALWAYS[branch.kind] for branch in branches} - {""}
    side = "FULL" if len(sides) == 2 else next(iter(sides), "INNER")
    pairs = exp.select("*").from_(target).join(source, on=condition, join_type=side)
    return Merge(name, cursor.query(pairs), branches)


def clauses(node: exp.Expr, cursor: Cursor, what: str, *names: str) -> list[Any]:
    """The clauses of a node by their names, None for one that is absent.

    Raises `InvalidError`, pointing at the clause, for any other clause.
    """
    # The parser represents absent clauses as None, False or [].
    given = {
        name: value
        for name, value in node.args.items()
        if value is not None and value is not False and value != []
    }
    for name, value in given.items():
        if name not in names:
            word = name.strip("_").removesuffix("_cond").upper().replace("_", " ")
            first = min(_starts(value), default=None)
            place = cursor.find(word, before=first)
            if place is None:
                place = min(_starts(node), default=0) if first is None else first
            raise cursor.error_at(
                place, f"{what} does not support a {word} clause; nothing was changed"
            )
    return [given.get(name) for name in names]


_ALWAYS = {"MATCHED": "", "NOT MATCHED": "RIGHT", "NOT MATCHED BY SOURCE": "LEFT"}


def _when(node: exp.Expr, target: exp.Table, cursor: Cursor) -> When:
    names = ("matched", "source", "condition", "then")
    matched, by_source, condition, then = clauses(node, cursor, "WHEN", *names)
    _refuse_many_rows(condition, cursor)
    kind = "MATCHED" if matched else "NOT MATCHED BY SOURCE" if by_source else "NOT MATCHED"
    if isinstance(then, exp.Insert) != (kind == "NOT MATCHED"):
        may = "INSERT" if kind == "NOT MATCHED" else "UPDATE or DELETE"
        raise cursor.error_at(_place(node, cursor), f"WHEN {kind} can only {may}")
    if isinstance(then, exp.Insert):
        return _insert_when(then, condition, cursor)
    if isinstance(then, exp.Update):
        (pairs,) = clauses(then, cursor, "UPDATE of a MERGE", "expressions")
        if not pairs:
            raise cursor.error_at(_place(then, cursor), "expected UPDATE SET column = value")
        if len(pairs) > 1 or not isinstance(pairs[0], exp.Star):
            return When(kind, condition, "UPDATE", _assignments(pairs, target, cursor))
        if kind != "MATCHED":
            raise cursor.error_at(_place(then, cursor), f"WHEN {kind} has no source row for SET *")
        return When(kind, condition, "UPDATE")
    if isinstance(then, exp.Var) and then.name.upper() == "DELETE":
        return When(kind, condition, "DELETE")
    raise cursor.error_at(_place(node, cursor), "expected UPDATE SET, DELETE or INSERT")


def _insert_when(then: exp.Insert, condition: exp.Expr | None, cursor: Cursor) -> When:
    columns, values = clauses(then, cursor, "INSERT of a MERGE", "this", "expression")
    if isinstance(columns, exp.Star) and values is None:
        return When("NOT MATCHED", condition, "INSERT")
    if not isinstance(values, exp.Tuple):
        raise cursor.error_at(_place(then, cursor), "expected INSERT (columns) VALUES (values)")
    if columns is None:
        by_place = {str(place): value for place, value in enumerate(values.expressions)}
        return When("NOT MATCHED", condition, "INSERT", by_place, columns_are_given=False)
    names = [str(column.name) for column in columns.expressions]
    if len(names) != len(values.expressions):
        raise cursor.error_at(
            _place(then, cursor),
            f"INSERT names {counted(len(names), 'column')} but gives "
            f"{counted(len(values.expressions), 'value')}",
        )
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise cursor.error_at(_place(then, cursor), f"column {twice!r} is given twice")
    for value in values.expressions:
        _refuse_many_rows(value, cursor)
    by_name = dict(zip(names, values.expressions, strict=True))
    return When("NOT MATCHED", condition, "INSERT", by_name)


def _target(table: exp.Expr | None, cursor: Cursor, what: str) -> str:
    """The name of the table to change. Only an alias can follow it."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise cursor.error(f"{what} requires a table name")
    alias, *_ = clauses(table, cursor, f"the table of {what}", "alias", "catalog", "db", "this")
    if alias is not None:
        clauses(alias, cursor, f"the alias in {what}", "this")
    table.meta[TARGET] = True
    end = table.this.meta.get("end")
    if end is not None and end + 1 in cursor.hints:
        raise cursor.error_at(
            end + 1, f"{what} changes the latest snapshot and does not support hints"
        )
    return ".".join(part.name for part in table.parts)


def _assignments(
    pairs: Sequence[exp.Expr], target: exp.Table, cursor: Cursor
) -> dict[str, exp.Expr]:
    assignments: dict[str, exp.Expr] = {}
    for pair in pairs:
        if not isinstance(pair, exp.EQ) or not isinstance(pair.this, exp.Column):
            raise cursor.error_at(_place(pair, cursor), "expected column = value")
        column, table = clauses(pair.this, cursor, "SET", "this", "table")
        if table is not None and table.name.lower() != target.alias_or_name.lower():
            raise cursor.error_at(
                _place(pair, cursor),
                f"{pair.this.sql()} is not a column of {target.alias_or_name}; a single field of "
                "a ROW cannot be set: set the whole column",
            )
        name = str(column.name)
        if name.lower() in map(str.lower, assignments):
            raise cursor.error_at(_place(pair, cursor), f"column {name!r} is set twice")
        _refuse_many_rows(pair.expression, cursor)
        assignments[name] = pair.expression
    return assignments


def _place(node: exp.Expr, cursor: Cursor) -> int:
    return min(_starts(node), default=cursor.start)


def _starts(value: Any) -> list[int]:
    """The positions of all parts that have a position in the text."""
    items = value if isinstance(value, list) else [value]
    nodes = (node for item in items if isinstance(item, exp.Expr) for node in item.walk())
    return [node.meta["start"] for node in nodes if node.meta and "start" in node.meta]


_SPREADING = {"json_tuple", "inline_outer", "generate_subscripts", "variant_explode",
              "variant_explode_outer"}  # fmt: skip
"""Functions that return several rows for one, and that the parser does not distinguish."""


def _refuse_many_rows(tree: exp.Expr | None, cursor: Cursor) -> None:
    """Raise `InvalidError` for windows, aggregates and set-returning functions outside of a query.

    An engine gets the rows of a table in parts, so a window would end at the end of a part.
    """
    for node in () if tree is None else tree.walk(prune=lambda n: isinstance(n, exp.Query)):
        if isinstance(node, exp.Window):
            what = "aggregates many rows"
        elif isinstance(node, exp.AggFunc):
            what = "depends on many rows"
        else:
            is_spreading = isinstance(node, exp.Anonymous) and node.name.lower() in _SPREADING
            if is_spreading or (isinstance(node, exp.UDTF) and not isinstance(node, exp.Values)):
                what = "returns several rows for one row"
            else:
                what = None
        if what is not None:
            name = node.sql(dialect="spark")
            raise cursor.error_at(
                _place(node, cursor),
                f"{name if len(name) < _LONG else name[:_LONG] + '...'} {what}, but DELETE, "
                "UPDATE and MERGE evaluate each row separately; put it into a subquery, such as "
                "(SELECT max(n) FROM the_table)",
            )


_LONG = 60


# -- AUTO CDC --------------------------------------------------------------------------------------


def auto_cdc(cursor: Cursor, flow: str | None = None) -> ApplyEvents:
    """`AUTO CDC INTO target FROM source KEYS (...) [clauses] SEQUENCE BY column [clauses]`.

    `APPLY CHANGES INTO ...` is the older syntax for the same.
    """
    is_older = cursor.peek() == "APPLY"
    cursor.expect(*(("APPLY", "CHANGES", "INTO") if is_older else ("AUTO", "CDC", "INTO")))
    start, target = cursor.start, cursor.table()
    if target.upper().startswith("LIVE."):
        raise cursor.error_at(
            start, "tables are in databases, and LIVE is not a database: remove it"
        )
    cursor.expect("FROM")
    # STREAM means the existing rows.
    if cursor.peek() == "STREAM" and cursor.peek(1) == "(":
        cursor.expect("STREAM", "(")
        source = cursor.all_of(")")
        cursor.expect(")")
    else:
        if cursor.peek() == "STREAM" and cursor.peek(1) not in ("KEYS", "AS", "."):
            cursor.expect("STREAM")
        source = cursor.all_of("KEYS")
    found: dict[str, Any] = {}
    while not cursor.at_end:
        place = cursor.start
        clause = next((words for words in _CLAUSES if cursor.accept(*words.split())), None)
        if clause is None:
            raise cursor.error(f"expected {', '.join(_CLAUSES)} or the end of the statement")
        for argument, value in _CLAUSES[clause](cursor).items():
            if argument in found:
                raise cursor.error_at(place, f"{clause} is given twice")
            found[argument] = value
    for argument, words in _NEEDED.items():
        if argument not in found:
            raise cursor.error(f"AUTO CDC requires {words}")
    return ApplyEvents(target, source, flow=flow, **found)


_NEEDED = {"keys": "KEYS (...)", "sequence_by": "SEQUENCE BY a column"}


def _sequence(cursor: Cursor) -> dict[str, Any]:
    cursor.accept("STRUCT")
    names = _columns(cursor) if cursor.peek() == "(" else [cursor.name("a column")]
    return {"sequence_by": tuple(names)}


def _scd_type(cursor: Cursor) -> dict[str, Any]:
    for number in (1, 2):
        if cursor.accept(str(number)):
            return {"scd_type": number}
    raise cursor.error("expected SCD TYPE 1 or 2")


def _condition(cursor: Cursor) -> str:
    start = cursor.start
    condition = cursor.up_to(*_CLAUSES)
    if not condition:
        raise cursor.error_at(start, "expected a condition on the columns of the source")
    return condition


def _chosen(kept: str, left_out: str) -> Callable[[Cursor], dict[str, Any]]:
    def read(cursor: Cursor) -> dict[str, Any]:
        if cursor.accept("*", "EXCEPT"):
            return {left_out: tuple(_columns(cursor))}
        return {kept: tuple(_columns(cursor))}

    return read


def _columns(cursor: Cursor) -> list[str]:
    return cursor.list_of(lambda: cursor.name("a column"))


_CLAUSES: dict[str, Callable[[Cursor], dict[str, Any]]] = {
    "KEYS": lambda cursor: {"keys": tuple(_columns(cursor))},
    "IGNORE NULL UPDATES": lambda _: {"ignores_nulls": True},
    "APPLY AS DELETE WHEN": lambda cursor: {"deletes": _condition(cursor)},
    "APPLY AS TRUNCATE WHEN": lambda cursor: {"truncates": _condition(cursor)},
    "SEQUENCE BY": _sequence,
    "COLUMNS": _chosen("columns", "except_columns"),
    "STORED AS SCD TYPE": _scd_type,
    "TRACK HISTORY ON": _chosen("tracked", "except_tracked"),
}
