"""Conditions in a query must be BOOLEAN, whichever engine evaluates them.

Engines accept numbers and strings as conditions, each engine different ones. A date without quotes,
which is a number, would then be true for every row. So a condition is refused if its type is known
and is not BOOLEAN. If only the engine can determine the type, the condition is marked, and the
engine enforces BOOLEAN: DuckDB by a macro that accepts nothing else, and Spark by CASE, which does
not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from keytide.errors import InvalidError
from keytide.sql.dialect import Keytide, error_at
from keytide.sql.tree_types import typed
from keytide.types import Field

__all__ = ["CONDITION", "DUCKDB_MACRO", "marked_conditions", "refused_condition", "spark_condition"]

CONDITION = "condition"
"""The mark, in the meta of an expression, for a condition of a statement."""

_FUNCTION = "keytide_condition"
DUCKDB_MACRO = f"CREATE MACRO {_FUNCTION}(c BOOLEAN) AS c"
"""The definition of the DuckDB function that marks conditions."""


def marked_conditions(tree: exp.Expr, fields: Mapping[str, Sequence[Field]], text: str) -> exp.Expr:
    """The tree, with conditions marked whose type only the engine can determine.

    `fields` are the columns of the tables by name. Raises `InvalidError`, pointing into `text`, for
    a condition that is known not to be BOOLEAN.
    """
    found = [node for node in _conditions(tree) if not isinstance(node, _BOOLEAN)]
    if not found:
        return tree
    types = _types(tree, found, fields)
    for place, node in enumerate(found):
        if isinstance(node, exp.Null):  # it has no type, which Spark does not accept
            node.replace(exp.cast(node.copy(), exp.DType.BOOLEAN))
            continue
        type_ = types.get(place)
        if type_ is not None and not type_.is_type(exp.DType.BOOLEAN):
            raise _refused(node, type_, text)
        if type_ is None:
            mark = exp.Anonymous(this=_FUNCTION)
            node.replace(mark)
            mark.set("expressions", [node])
    return tree


def spark_condition(node: exp.Expr) -> exp.Expr:
    """A marked condition in the form in which Spark enforces BOOLEAN. Other nodes are unchanged."""
    if not _is_mark(node):
        return node
    inner: exp.Expr = node.expressions[0].transform(spark_condition)
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    if not isinstance(parent, exp.Connector | exp.Not):
        return inner  # Spark accepts only BOOLEAN there
    return exp.Paren(this=exp.Case().when(inner.copy(), exp.true()).else_(inner.copy()))


def refused_condition(tree: exp.Expr, message: str, text: str) -> InvalidError | None:
    """The error for a marked condition that DuckDB refuses, None for its other errors.

    If there are several conditions, it is unknown which one is meant, so all are named.
    """
    marks = [node.expressions[0] for node in tree.walk() if _is_mark(node)]
    if _FUNCTION not in message or not marks:
        return None
    which = " or ".join(map(_shown, marks))
    return error_at(
        text,
        _start(marks[0]),
        f"{which} is used as a condition but is not BOOLEAN; compare it with a value",
    )


def _is_mark(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == _FUNCTION


_BOOLEAN = (exp.Predicate, exp.Connector, exp.Not, exp.Boolean)
"""Expressions that are always BOOLEAN. The operands of some are conditions themselves."""


def _conditions(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The expressions where a condition is required, without surrounding parentheses."""
    for node in tree.walk():
        if isinstance(node, exp.Where | exp.Having | exp.Qualify | exp.Not):
            yield _plain(node.this)
        elif isinstance(node, exp.Connector):
            yield from map(_plain, (node.this, node.expression))
        elif isinstance(node, exp.Join) and node.args.get("on") is not None:
            yield _plain(node.args["on"])
        elif isinstance(node, exp.If) and not _is_of_a_value(node):
            yield _plain(node.this)
        elif node.meta.get(CONDITION):
            yield _plain(node)


def _plain(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _is_of_a_value(branch: exp.If) -> bool:
    """Whether it belongs to a CASE that compares one value with several."""
    return isinstance(branch.parent, exp.Case) and branch.parent.args.get("this") is not None


# -- types -----------------------------------------------------------------------------------------

_TYPED = (exp.Column, exp.Literal, exp.Cast, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod,
          exp.DPipe)  # fmt: skip
"""Expressions whose type the parser knows as every engine does. This is not so for functions."""
_PLACE = "condition_place"


def _types(
    tree: exp.Expr, found: Sequence[exp.Expr], fields: Mapping[str, Sequence[Field]]
) -> dict[int, exp.DataType]:
    """The types of conditions, by their index, where they can be determined."""
    for place, node in enumerate(found):
        node.meta[_PLACE] = place
    try:
        known = typed(tree, fields)
    finally:
        for node in found:
            del node.meta[_PLACE]
    if known is None:
        return {}
    return {
        node.meta[_PLACE]: node.type
        for node in known.walk()
        if _PLACE in node.meta and isinstance(node, _TYPED) and node.type and _is_known(node)
    }


def _is_known(node: exp.Expr) -> bool:
    """Whether its type is known, and the types of all its parts."""
    return all(n.type is not None and not n.is_type(exp.DType.UNKNOWN)
               for n in node.walk() if isinstance(n, exp.Condition))  # fmt: skip


def _refused(node: exp.Expr, type_: exp.DataType, text: str) -> InvalidError:
    is_date = isinstance(node, exp.Sub) and not node.find(exp.Column)
    way_out = "write a date as DATE '...'" if is_date else "compare it with a value"
    found = (
        f"{_shown(node)} is used as a condition but is {type_.sql(dialect=Keytide)}, not BOOLEAN"
    )
    return error_at(text, _start(node), f"{found}; {way_out}")


def _start(node: exp.Expr) -> int:
    return min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=0)


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Subquery):
        return "the query in parentheses"
    text = node.sql(dialect=Keytide, comments=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


_SHOWN_MAX = 60
