"""Translation of Pinot's scalar functions to SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from sqlglot import Dialect, exp, parse_one
from sqlglot import parser as sqlglot_parser
from sqlglot.errors import SqlglotError

# -- translation of Pinot's scalar functions to SQL ------------------------------------------------


class _Pinot(Dialect):
    """No function is resolved while parsing, because functions of other dialects differ."""

    class Parser(sqlglot_parser.Parser):
        """A parser of expressions."""

        FUNCTIONS = {}  # noqa: RUF012  # sqlglot declares it
        FUNCTION_PARSERS = {}  # noqa: RUF012  # likewise
        NO_PAREN_FUNCTIONS = {}  # noqa: RUF012  # likewise


_Parts: TypeAlias = Sequence[exp.Expr]


def _operator(kind: type[exp.Binary]) -> Callable[[_Parts], exp.Expr]:
    def made(parts: _Parts) -> exp.Expr:
        whole: exp.Expr = reduce(
            lambda one, other: kind(this=one, expression=other), map(_grouped, parts)
        )
        return exp.Paren(this=whole)

    return made


def _call(name: str) -> Callable[[_Parts], exp.Expr]:
    return lambda parts: exp.Anonymous(this=name, expressions=list(parts))


def _joined(parts: _Parts) -> exp.Expr:
    """Two strings, joined by a third if there is one."""
    one, other, *between = parts
    return _operator(exp.DPipe)([one, *between, other])


def _is_null(parts: _Parts) -> exp.Expr:
    return exp.Paren(this=exp.Is(this=_grouped(parts[0]), expression=exp.Null()))


def _of_positive(name: str) -> Callable[[_Parts], exp.Expr]:
    """A function that is undefined for negative numbers. Pinot returns NaN there, SQL an error."""

    def made(parts: _Parts) -> exp.Expr:
        is_one = exp.GTE(this=_grouped(parts[0].copy()), expression=exp.Literal.number(0))
        call = exp.Anonymous(this=name, expressions=list(parts))
        return exp.Case(ifs=[exp.If(this=is_one, true=call)])

    return made


def _remainder(parts: _Parts) -> exp.Expr:
    divisor = exp.Anonymous(this="nullif", expressions=[parts[1], exp.Literal.number(0)])
    return exp.Paren(this=exp.Mod(this=_grouped(parts[0]), expression=divisor))


def _grouped(part: exp.Expr) -> exp.Expr:
    return part if isinstance(part, exp.Column | exp.Literal) else exp.Paren(this=part)


_ANY = 99
_CALLS: dict[str, tuple[int, int, Callable[[_Parts], exp.Expr]]] = {
    "plus": (2, _ANY, _operator(exp.Add)), "add": (2, _ANY, _operator(exp.Add)),
    "minus": (2, 2, _operator(exp.Sub)), "sub": (2, 2, _operator(exp.Sub)),
    "times": (2, _ANY, _operator(exp.Mul)), "mult": (2, _ANY, _operator(exp.Mul)),
    "divide": (2, 2, _operator(exp.Div)), "div": (2, 2, _operator(exp.Div)),
    "mod": (2, 2, _remainder),
    **{n: (1, 1, _of_positive(n)) for n in ("ln", "log2", "log10", "sqrt")},
    **{n: (1, 1, _call(n)) for n in ("abs", "ceil", "floor", "exp", "sign", "upper", "lower",
                                     "trim", "ltrim", "rtrim", "length", "reverse")},
    "ceiling": (1, 1, _call("ceil")), "power": (2, 2, _call("power")),
    "pow": (2, 2, _call("power")), "rounddecimal": (1, 2, _call("round")),
    "least": (2, _ANY, _call("least")), "greatest": (2, _ANY, _call("greatest")),
    "concat": (2, 3, _joined), "replace": (3, 3, _call("replace")),
    "startswith": (2, 2, _call("starts_with")), "coalesce": (1, _ANY, _call("coalesce")),
    "equals": (2, 2, _operator(exp.EQ)), "notequals": (2, 2, _operator(exp.NEQ)),
    "greaterthan": (2, 2, _operator(exp.GT)), "greaterthanorequal": (2, 2, _operator(exp.GTE)),
    "lessthan": (2, 2, _operator(exp.LT)), "lessthanorequal": (2, 2, _operator(exp.LTE)),
    "isnull": (1, 1, _is_null),
    "isnotnull": (1, 1, lambda parts: exp.Paren(this=exp.Not(this=_is_null(parts)))),
}  # fmt: skip
"""By name without case and underscores: the minimum and maximum arguments, and the SQL."""

FUNCTIONS = tuple(_CALLS)
"""The names of the supported functions."""

# Syntax that SQL and Pinot share.
_ALIKE = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Paren, exp.EQ, exp.NEQ, exp.GT,
    exp.GTE, exp.LT, exp.LTE, exp.And, exp.Or, exp.Not, exp.Is, exp.Null, exp.Literal, exp.Boolean,
    exp.Column, exp.Identifier, exp.Case, exp.If, exp.Between, exp.In,
)  # fmt: skip


def parsed(text: str) -> exp.Expr | None:
    """The tree of a Pinot expression, None if it does not parse."""
    try:
        return parse_one(text, dialect=_Pinot)
    except (SqlglotError, RecursionError):
        return None


def unknown_parts(tree: exp.Expr) -> list[str]:
    """The parts of an expression without a translation: function names or other parts."""
    found = [node for node in tree.walk() if not isinstance(node, _ALIKE) and _of(node) is None]
    return [str(node.name or node.key) for node in found]


def sql_of(tree: exp.Expr, wide: Mapping[str, str] | None = None) -> str:
    """The expression in SQL. REQUIRES: it has no unknown parts.

    `wide` gives the types with which columns are computed: Pinot computes with DOUBLE, in which
    sums of INT do not overflow, and sums of FLOAT lose no digits.
    """
    whole = exp.Paren(this=tree.copy())
    for column in [*whole.find_all(exp.Column)]:
        if wide and column.name in wide:
            column.replace(exp.cast(column.copy(), wide[column.name], dialect="duckdb"))
    for call in reversed([*whole.find_all(exp.Anonymous)]):  # inner calls first
        made = _of(call)
        assert made is not None
        call.replace(made(call.expressions))
    text: str = whole.this.sql(dialect="duckdb", identify=True)
    return text


def _of(node: exp.Expr) -> Callable[[_Parts], exp.Expr] | None:
    """The SQL generator for a call of a known function, otherwise None."""
    if not isinstance(node, exp.Anonymous):
        return None
    low, high, made = _CALLS.get(node.name.lower().replace("_", ""), (1, 0, _is_null))
    return made if low <= len(node.expressions) <= high else None
