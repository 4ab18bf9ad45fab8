"""Row predicates: parsed from SQL text, evaluated on rows, and used to prune.

`parse_where` is the edge; behind it a predicate is a small frozen tree. `row_filter` evaluates
it on rows with SQL's three-valued logic. `may_match` evaluates it on statistics: whether a file
whose columns lie between a minimum and a maximum can hold a row that fulfils it. `may_match`
never says no wrongly; unknown bounds say yes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, TypeAlias

import polars as pl
import sqlglot
from sqlglot import exp

from keytide.errors import InvalidError, NotFoundError
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
    "parse_where",
    "row_filter",
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


def parse_where(text: str, fields: Sequence[Field], table: str) -> Predicate:
    """Parse a SQL condition over a table's columns, such as `dt = '2026-01-01' and qty > 3`.

    Understands comparisons between a column and a literal, IN, BETWEEN, IS [NOT] NULL, LIKE,
    AND, OR, NOT and parentheses. Raises `InvalidError` pointing at what it does not understand
    or at a literal that does not fit its column, `NotFoundError` for an unknown column.
    """
    try:
        tree = sqlglot.parse_one(text, into=exp.Condition, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        raise InvalidError(
            f"table {table}: the condition {text!r} does not parse: {_first_line(error)}"
        ) from error
    return _Parser({f.name: f for f in fields}, table, text).predicate(tree)


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
            return _compare(pl.col(node.column), node.operator, _literal(node, types))
        if isinstance(node, In):
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
            return build(_negated(node.term)) if _negated(node.term) else pl.lit(value=True)
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
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _compare(column: pl.Expr, operator: str, value: pl.Expr) -> pl.Expr:
    return _COMPARE[operator](column, value)


def _literal(node: Comparison, types: pl.Schema) -> pl.Expr:
    series = pl.Series([node.value], dtype=types[node.column], strict=False)
    return pl.lit(series).first()


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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


@dataclass(frozen=True)
class _Parser:
    fields: dict[str, Field]
    table: str
    text: str

    def predicate(self, node: exp.Expression) -> Predicate:
        if isinstance(node, exp.Paren):
            return self.predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            kind = And if isinstance(node, exp.And) else Or
            return kind((self.predicate(node.left), self.predicate(node.right)))
        if isinstance(node, exp.Not):
            return Not(self.predicate(node.this))
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In) and node.expressions:
            return self._in(node)
        if isinstance(node, exp.Between):
            column = self._column(node.this)
            return And(
                (
                    self._comparison(column, ">=", node.args["low"]),
                    self._comparison(column, "<=", node.args["high"]),
                )
            )
        if isinstance(node, exp.Like):
            return Like(self._column(node.this).name, str(self._literal(node.expression)))
        if isinstance(node, exp.Column):
            return Comparison(self._column(node).name, "=", value=True)
        operator = _OPERATORS.get(type(node))
        if operator is not None:
            return self._binary(node, operator)
        raise self._not_understood(node)

    def _binary(self, node: exp.Expression, operator: str) -> Predicate:
        left, right = _unparen(node.this), _unparen(node.expression)
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, _FLIPPED[operator]
        return self._comparison(self._column(left), operator, right)

    def _comparison(self, column: Field, operator: str, node: exp.Expression) -> Predicate:
        value = self._literal(node)
        if value is None:
            raise InvalidError(
                f"table {self.table}: {node.parent.sql() if node.parent else self.text!r} "
                f"compares column {column.name} with NULL, which never holds; write IS NULL"
            )
        return Comparison(column.name, operator, self._typed(column, value))

    def _is(self, node: exp.Is) -> Predicate:
        column = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return IsNull(column.name)
        if isinstance(node.expression, exp.Boolean):
            return Comparison(column.name, "=", self._typed(column, node.expression.this))
        raise self._not_understood(node)

    def _in(self, node: exp.In) -> Predicate:
        column = self._column(node.this)
        values = (self._literal(_unparen(item)) for item in node.expressions)
        return In(column.name, tuple(self._typed(column, v) for v in values if v is not None))

    def _column(self, node: exp.Expression) -> Field:
        node = _unparen(node)
        if not isinstance(node, exp.Column):
            raise self._not_understood(node)
        name = node.name
        if name not in self.fields:
            raise NotFoundError(
                f"table {self.table} has no column {name!r}; it has {', '.join(self.fields)}"
            )
        return self.fields[name]

    def _literal(self, node: exp.Expression) -> Any:
        node = _unparen(node)
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if isinstance(node, exp.Neg):
            return -self._literal(node.this)
        if isinstance(node, exp.Literal):
            return node.this if node.is_string else Decimal(node.this)
        if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
            return node.this.this
        if isinstance(node, exp.HexString):
            return bytes.fromhex(node.this)
        raise self._not_understood(node)

    def _typed(self, column: Field, value: Any) -> Any:
        root = getattr(column.type, "root", None)
        try:
            return _CONVERT[root](value)
        except KeyError:
            kind = f"of type {column.type.sql()}, which has no literals"
        except (ValueError, TypeError, InvalidOperation):
            kind = f"of type {column.type.sql()}"
        raise InvalidError(
            f"table {self.table}: the condition {self.text!r} compares column {column.name} "
            f"{kind} with {value!r}"
        )

    def _not_understood(self, node: exp.Expression) -> InvalidError:
        return InvalidError(
            f"table {self.table}: cannot push {node.sql()!r} of the condition {self.text!r} into "
            f"a scan; compare a column with a literal, or filter the result of the scan"
        )


_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def _unparen(node: exp.Expression) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _whole(value: Any) -> int:
    number = Decimal(value) if isinstance(value, str) else value
    if isinstance(number, bool) or number != int(number):
        raise ValueError(value)
    return int(number)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _text(value).encode()


def _date(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(_text(value))


def _time(value: Any) -> time:
    return value if isinstance(value, time) else time.fromisoformat(_text(value))


def _timestamp(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_iso(_text(value)))
    if moment.tzinfo is not None:
        raise ValueError(value)
    return moment


def _instant(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_iso(_text(value)))
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def _iso(text: str) -> str:
    # Python 3.10 reads neither a trailing Z nor a short offset such as +00.
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    return text + ":00" if len(text) > 3 and text[-3] in "+-" else text


_CONVERT: dict[str | None, Callable[[Any], Any]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _whole),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _float),
    **dict.fromkeys(("CHAR", "VARCHAR"), _text),
    **dict.fromkeys(("BINARY", "VARBINARY"), _bytes),
    "DECIMAL": lambda value: Decimal(value) if not isinstance(value, bool) else _whole(value),
    "BOOLEAN": _bool,
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_LTZ": _instant,
}
