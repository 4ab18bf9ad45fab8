"""Row predicates: small frozen trees, evaluated on rows and used to prune.

`row_filter` evaluates a predicate on rows with SQL's three-valued logic. `may_match` evaluates it
on statistics: whether a file whose columns lie between a minimum and a maximum can hold a row
that fulfils it. `may_match` never says no wrongly; unknown bounds say yes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import polars as pl

from keytide.format.arrow import polars_schema
from keytide.types import Field

__all__ = [
    "And",
    "Comparison",
    "In",
    "IsNull",
    "Like",
    "Not",
    "Or",
    "Predicate",
    "columns_of",
    "conjunction",
    "conjuncts",
    "equal_values",
    "may_match",
    "row_filter",
    "without_columns",
]


@dataclass(frozen=True)
class Comparison:
    """`column operator value`, with the value in the column's own type."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True)
class In:
    """`column IN (values)`; NULL is not among the values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True)
class Like:
    """`column LIKE pattern`, with `%` and `_`."""

    column: str
    pattern: str


@dataclass(frozen=True)
class Not:
    """Negation; unknown stays unknown."""

    term: Predicate


@dataclass(frozen=True)
class And:
    """Every term holds."""

    terms: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or:
    """At least one term holds."""

    terms: tuple[Predicate, ...]


Predicate: TypeAlias = "Comparison | In | IsNull | Like | Not | And | Or"


def conjuncts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    """The terms that must all hold; none for no predicate."""
    if predicate is None:
        return ()
    if isinstance(predicate, And):
        return tuple(part for term in predicate.terms for part in conjuncts(term))
    return (predicate,)


def conjunction(terms: Iterable[Predicate]) -> Predicate | None:
    """All terms as one predicate; None for no terms."""
    collected = tuple(terms)
    if len(collected) <= 1:
        return collected[0] if collected else None
    return And(collected)


def columns_of(predicate: Predicate | None) -> frozenset[str]:
    """The columns that a predicate looks at."""
    if predicate is None:
        return frozenset()
    if isinstance(predicate, And | Or):
        return frozenset().union(*(columns_of(term) for term in predicate.terms))
    if isinstance(predicate, Not):
        return columns_of(predicate.term)
    return frozenset({predicate.column})


def equal_values(terms: Iterable[Predicate], column: str) -> tuple[Any, ...] | None:
    """The only values that `column` can have if all terms hold; None when it is not pinned."""
    for term in terms:
        if isinstance(term, Comparison) and term.column == column and term.operator == "=":
            return (term.value,)
        if isinstance(term, In) and term.column == column:
            return term.values
        if isinstance(term, IsNull) and term.column == column:
            return (None,)
    return None


def row_filter(predicate: Predicate, fields: Sequence[Field]) -> pl.Expr:
    """The predicate over rows; rows for which it is unknown are dropped by `filter`."""
    types = polars_schema(fields)

    def build(node: Predicate) -> pl.Expr:
        if isinstance(node, Comparison):
            return _COMPARE[node.operator](pl.col(node.column), _literal(node, types))
        if isinstance(node, In):
            if node.values and types[node.column].is_decimal():  # each keeps its own scale
                return build(Or(tuple(Comparison(node.column, "=", v) for v in node.values)))
            values = pl.Series(node.values, dtype=types[node.column], strict=False)
            return pl.col(node.column).is_in(values.implode())
        if isinstance(node, IsNull):
            return pl.col(node.column).is_null()
        if isinstance(node, Like):
            return pl.col(node.column).str.contains(_like_regex(node.pattern))
        if isinstance(node, Not):
            return ~build(node.term)
        operator = (lambda a, b: a & b) if isinstance(node, And) else (lambda a, b: a | b)
        return reduce(operator, (build(term) for term in node.terms))

    return build(predicate)


def may_match(predicate: Predicate, fields: Sequence[Field]) -> pl.Expr:
    """Over a frame with `<column>.min`, `.max`, `.nulls` and `.rows`: can any row fulfil it?

    Columns without statistics, and terms that bounds cannot judge, say yes.
    """
    types = polars_schema(fields)

    def low(name: str) -> pl.Expr:
        return pl.col(f"{name}.min")

    def high(name: str) -> pl.Expr:
        return pl.col(f"{name}.max")

    def some_value(name: str) -> pl.Expr:
        return (pl.col(f"{name}.nulls") < pl.col("rows")).fill_null(value=True)

    def build(node: Predicate) -> pl.Expr:
        if isinstance(node, And):
            return reduce(lambda a, b: a & b, (build(term) for term in node.terms))
        if isinstance(node, Or):
            return reduce(lambda a, b: a | b, (build(term) for term in node.terms))
        if isinstance(node, IsNull):
            return (pl.col(f"{node.column}.nulls") > 0).fill_null(value=True)
        if isinstance(node, In):
            if not node.values:
                return pl.lit(value=False)
            return build(Or(tuple(Comparison(node.column, "=", v) for v in node.values)))
        if isinstance(node, Not):
            negated = _negated(node.term)
            return pl.lit(value=True) if negated is None else build(negated)
        if isinstance(node, Like):
            prefix = _like_prefix(node.pattern)
            return build(_starts_with(node.column, prefix)) if prefix else pl.lit(value=True)
        value = _literal(node, types)
        possible = {
            "=": (low(node.column) <= value) & (high(node.column) >= value),
            "!=": ~((low(node.column) == value) & (high(node.column) == value)),
            "<": low(node.column) < value,
            "<=": low(node.column) <= value,
            ">": high(node.column) > value,
            ">=": high(node.column) >= value,
        }[node.operator]
        return possible.fill_null(value=True) & some_value(node.column)

    return build(predicate)


_COMPARE: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _literal(node: Comparison, types: pl.Schema) -> pl.Expr:
    # A decimal keeps its own scale: amount > 1.005 is no comparison with 1.01.
    dtype = types[node.column]
    return pl.lit(node.value, dtype=None if dtype.is_decimal() else dtype)


def _negated(term: Predicate) -> Predicate | None:
    if isinstance(term, Comparison):
        return Comparison(term.column, _NEGATED[term.operator], term.value)
    if isinstance(term, Not):
        return term.term
    if isinstance(term, Or):
        return And(tuple(Not(part) for part in term.terms))
    if isinstance(term, And):
        return Or(tuple(Not(part) for part in term.terms))
    return None


def _starts_with(column: str, prefix: str) -> Predicate:
    lower = Comparison(column, ">=", prefix)
    last = ord(prefix[-1])
    if last >= 0xD7FF:  # the next code point may not exist; the lower bound is enough
        return lower
    return And((lower, Comparison(column, "<", prefix[:-1] + chr(last + 1))))


def _like_prefix(pattern: str) -> str:
    for position, character in enumerate(pattern):
        if character in "%_\\":
            return pattern[:position]
    return pattern


def _like_regex(pattern: str) -> str:
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append(_escape(next(characters, "\\")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or _escape(character))
    return "(?s)^" + "".join(parts) + "$"


def _escape(character: str) -> str:
    return "\\" + character if character in r"\.+*?()|[]{}^$#&-~" else character


def without_columns(predicate: Predicate | None, columns: Container[str]) -> Predicate | None:
    """The terms of a conjunction that look at none of some columns: a weaker predicate."""
    terms = conjuncts(predicate)
    return conjunction(t for t in terms if not any(name in columns for name in columns_of(t)))
