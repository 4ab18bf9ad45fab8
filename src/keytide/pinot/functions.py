"""Pinot's functions of one row, as SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from sqlglot import Dialect, exp, parse_one
from sqlglot import parser as sqlglot_parser
from sqlglot.errors import SqlglotError

__all__ = ["FUNCTIONS", "parsed", "sql_of", "unknown_parts"]


class _Pinot(Dialect):
    """Functions have no meaning when they are parsed, as that of other dialects is another one."""

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
    """Two texts with a third between them, if there is one."""
    one, other, *between = parts
    return _operator(exp.DPipe)([one, *between, other])


def _is_null(parts: _Parts) -> exp.Expr:
    return exp.Paren(this=exp.Is(this=_grouped(parts[0]), expression=exp.Null()))


def _of_positive(name: str) -> Callable[[_Parts], exp.Expr]:
    """A function that is none of negative numbers; Pinot has NaN for these, and SQL an error."""

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
"""By their names without case and underscores: how few and how many arguments, and the SQL."""

FUNCTIONS = tuple(_CALLS)
"""The names of the functions that are taken."""

# What SQL and Pinot write alike.
_ALIKE = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Paren, exp.EQ, exp.NEQ, exp.GT,
    exp.GTE, exp.LT, exp.LTE, exp.And, exp.Or, exp.Not, exp.Is, exp.Null, exp.Literal, exp.Boolean,
    exp.Column, exp.Identifier, exp.Case, exp.If, exp.Between, exp.In,
)  # fmt: skip


def parsed(text: str) -> exp.Expr | None:
    """The tree of an expression of Pinot; None where it does not parse."""
    try:
        return parse_one(text, dialect=_Pinot)
    except (SqlglotError, RecursionError):
        return None


def unknown_parts(tree: exp.Expr) -> list[str]:
    """What of an expression has no translation: names of functions, or of other parts."""
    found = [node for node in tree.walk() if not isinstance(node, _ALIKE) and _of(node) is None]
    return [str(node.name or node.key) for node in found]


def sql_of(tree: exp.Expr, wide: Mapping[str, str] | None = None) -> str:
    """The expression in SQL. REQUIRES: it has no unknown parts.

    `wide` says of columns as which type they are computed with: Pinot computes with DOUBLE, in
    which sums of INT do not overflow, nor those of FLOAT lose digits.
    """
    whole = exp.Paren(this=tree.copy())
    for column in [*whole.find_all(exp.Column)]:
        if wide and column.name in wide:
            column.replace(exp.cast(column.copy(), wide[column.name], dialect="duckdb"))
    for call in reversed([*whole.find_all(exp.Anonymous)]):  # what stands inside comes first
        made = _of(call)
        assert made is not None
        call.replace(made(call.expressions))
    text: str = whole.this.sql(dialect="duckdb", identify=True)
    return text


def _of(node: exp.Expr) -> Callable[[_Parts], exp.Expr] | None:
    """What makes SQL of a call, if it is one of a function that is known."""
    if not isinstance(node, exp.Anonymous):
        return None
    low, high, made = _CALLS.get(node.name.lower().replace("_", ""), (1, 0, _is_null))
    return made if low <= len(node.expressions) <= high else None
