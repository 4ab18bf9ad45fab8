"""SQL conditions, parsed into predicates.

This is the edge: literals are checked against their columns and typed here, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from keytide.errors import InvalidError, NotFoundError
from keytide.table.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate
from keytide.types import Field

__all__ = ["parse_where"]


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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


@dataclass(frozen=True)
class _Parser:
    fields: dict[str, Field]
    table: str
    text: str

    def predicate(self, node: exp.Expr) -> Predicate:
        # NOT LIKE and its kin are one node with a flag, or two nodes, as sqlglot's release has it.
        found = self._positive(node)
        return Not(found) if node.args.get("negate") else found

    def _positive(self, node: exp.Expr) -> Predicate:
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

    def _binary(self, node: exp.Expr, operator: str) -> Predicate:
        left, right = _unparen(node.this), _unparen(node.expression)
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, _FLIPPED[operator]
        return self._comparison(self._column(left), operator, right)

    def _comparison(self, column: Field, operator: str, node: exp.Expr) -> Predicate:
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
            value = self._typed(column, node.expression.this)
            return And((Not(IsNull(column.name)), Comparison(column.name, "=", value)))
        raise self._not_understood(node)

    def _in(self, node: exp.In) -> Predicate:
        column = self._column(node.this)
        values = [self._literal(item) for item in node.expressions]
        if None in values:
            raise InvalidError(
                f"table {self.table}: {node.sql()!r} compares column {column.name} with NULL, "
                f"which never holds; write IS NULL"
            )
        return In(column.name, tuple(self._typed(column, value) for value in values))

    def _column(self, node: exp.Expr) -> Field:
        node = _unparen(node)
        if not isinstance(node, exp.Column):
            raise self._not_understood(node)
        name = node.name
        if name not in self.fields:
            raise NotFoundError(
                f"table {self.table} has no column {name!r}; it has {', '.join(self.fields)}"
            )
        return self.fields[name]

    def _literal(self, node: exp.Expr) -> Any:
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
            converted = _CONVERT[root](value)
            if root not in ("DECIMAL", "FLOAT"):
                pa.scalar(converted, column.type.to_arrow())  # in the type's range
            return converted
        except KeyError:
            kind = f"of type {column.type.sql()}, which has no literals"
        except (ValueError, TypeError, OverflowError, InvalidOperation):
            kind = f"of type {column.type.sql()}"
        raise InvalidError(
            f"table {self.table}: the condition {self.text!r} compares column {column.name} "
            f"{kind} with {value}"
        )

    def _not_understood(self, node: exp.Expr) -> InvalidError:
        return InvalidError(
            f"table {self.table}: cannot push {node.sql()!r} of the condition {self.text!r} into "
            f"a scan; compare a column with a literal, or filter the result of the scan"
        )


_FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def _unparen(node: exp.Expr) -> exp.Expr:
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
    return value if isinstance(value, time) else time.fromisoformat(_iso(_text(value)))


def _timestamp(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_iso(_text(value)))
    if moment.tzinfo is not None:
        raise ValueError(value)
    return moment


def _instant(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_iso(_text(value)))
    if moment.tzinfo is None:
        return moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc)


def _iso(text: str) -> str:
    # Python 3.10 reads neither a trailing Z, nor a short offset such as +00, nor any number of
    # digits after the second; and digits beyond the sixth would be lost.
    fraction = re.search(r"\.(\d+)", text)
    if fraction:
        digits = fraction.group(1)
        if digits[6:].strip("0"):
            raise ValueError(text)
        text = text.replace(fraction.group(0), "." + digits[:6].ljust(6, "0"))
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    return text + ":00" if ":" in text and text[-3] in "+-" else text


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
