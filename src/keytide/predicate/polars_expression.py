"""Converts Polars expressions to predicates.

Polars describes the parts of an expression in JSON, and returns its parts as expressions. Polars
itself computes the values. Words that are unknown here are refused. So if a release of Polars
renames something, expressions with it are refused and never misunderstood.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.predicate.predicate import (
    FLIPPED,
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Or,
    Predicate,
    negation,
)

_COMPARE = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_ENDS = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_ANDS = ("And", "LogicalAnd", "Boolean.AllHorizontal")
_OF_VALUES = ("Literal", "Alias", "Cast", "Negate")


def read_expression(expression: pl.Expr, table: str) -> Predicate:
    """The predicate for an expression, with Arrow values.

    Raises `InvalidError`, which names the part that a condition cannot have.
    """
    try:
        document = json.loads(expression.meta.serialize(format="json"))
        return _Part(expression, document, table).predicate()
    except RecursionError as error:
        raise InvalidError(
            f"table {table}: the expression is nested too deeply; combine its parts with "
            "pl.all_horizontal or pl.any_horizontal, and values with is_in"
        ) from error
    except pl.exceptions.PolarsError as error:
        raise InvalidError(
            f"table {table}: Polars cannot resolve {shown(str(expression))}: {error}"
        ) from error


def terms_of(expression: pl.Expr) -> list[pl.Expr]:
    """The parts of an expression that are joined by AND, or the expression itself.

    Also the expression itself if Polars cannot describe its parts.
    """
    try:
        document = json.loads(expression.meta.serialize(format="json"))
        part = _Part(expression, document, "")
        if part.name not in _ANDS:
            return [expression]
        return [term for each in part.parts for term in terms_of(each.expression)]
    except (InvalidError, RecursionError, pl.exceptions.PolarsError):
        return [expression]


@dataclass(frozen=True)
class _Part:
    expression: pl.Expr
    description: Any
    table: str

    @property
    def name(self) -> str:
        """The name of its operation, such as `Gt` or `Boolean.IsNull`, or the kind of a leaf."""
        kind, inner = _name_and_content(self.description)
        if kind == "BinaryExpr":
            return str(inner["op"])
        if kind != "Function":
            return kind
        family, member = _name_and_content(inner["function"])
        return family if member is None else f"{family}.{_name_and_content(member)[0]}"

    @property
    def options(self) -> Any:
        """What is known about a function besides its name."""
        return (
            _name_and_content(
                _name_and_content(_name_and_content(self.description)[1]["function"])[1]
            )[1]
            or {}
        )

    @property
    def parts(self) -> list[_Part]:
        """Its parts, from left to right."""
        kind, inner = _name_and_content(self.description)
        inputs: list[Any] = []
        if kind == "BinaryExpr":
            inputs = [inner["left"], inner["right"]]
        elif kind in ("Function", "Cast"):
            inputs = inner["input"] if kind == "Function" else [inner["expr"]]
        elif kind == "Alias":
            inputs = inner[:1]
        made = self.expression.meta.pop()[::-1]  # Polars returns them from right to left
        if len(made) != len(inputs):
            raise self.refused()
        return [_Part(*each, self.table) for each in zip(made, inputs, strict=True)]

    def predicate(self) -> Predicate:
        """The predicate for this part."""
        read = _READERS.get(self.name)
        if read is None:
            raise self.refused()
        return read(self, *self.parts)

    def compared(self, operator: str, other: _Part) -> Predicate:
        """A comparison with another part. One of the two is a column."""
        if self.name == "Column":
            return Comparison(self.column(), operator, other.value())
        if other.name != "Column":
            raise self.refused()
        return Comparison(other.column(), FLIPPED[operator], self.value())

    def is_in(self, column: _Part, values: _Part) -> Predicate:
        """The column is one of the values."""
        if self.options.get("nulls_equal") is not False:
            raise self.refused()
        return In(column.column(), tuple(values.values()))

    def is_between(self, column: _Part, low: _Part, high: _Part) -> Predicate:
        """The column is between two values, inclusive or exclusive."""
        ends = _ENDS.get(self.options.get("closed"))
        if ends is None:
            raise self.refused()
        return And((column.compared(ends[0], low), column.compared(ends[1], high)))

    def starts_with(self, column: _Part, prefix: _Part) -> Predicate:
        """The column begins with a string."""
        text = prefix.value().as_py()
        if not isinstance(text, str):
            raise self.refused()
        return Like(column.column(), "".join("\\" + c if c in "\\%_" else c for c in text) + "%")

    def column(self) -> str:
        """The name of the column."""
        kind, name = _name_and_content(self.description)
        if kind != "Column":
            raise self.refused()
        return str(name)

    def value(self) -> Any:
        """The value."""
        values = self.values()
        if len(values) != 1:
            raise self.refused()
        return values[0]

    def values(self) -> list[Any]:
        """The values."""
        if not self._is_made_of_values():
            raise self.refused()
        made = pl.select(self.expression).to_series()
        if isinstance(made.dtype, pl.List | pl.Array):
            made = made.explode(empty_as_null=False)
        return list(made.to_arrow())

    def _is_made_of_values(self) -> bool:
        return self.name in _OF_VALUES and all(part._is_made_of_values() for part in self.parts)

    def refused(self) -> InvalidError:
        """An error about this part."""
        return InvalidError(
            f"table {self.table}: the condition contains {shown(str(self.expression))}, which is "
            "not supported. Supported are comparisons of columns with values, is_in, is_between, "
            "is_null, is_not_null and str.starts_with, combined with &, | and ~; use it to "
            "filter the result of the scan instead"
        )


def _name_and_content(description: Any) -> tuple[str, Any]:
    """The name and the content of a word, or of an object with one key."""
    if isinstance(description, dict) and len(description) == 1:
        return next(iter(description.items()))
    return str(description), None


def _reader_of(operator: str) -> Callable[..., Predicate]:
    return lambda _, left, right: left.compared(operator, right)


def _reader_of_many(joint: type[And | Or]) -> Callable[..., Predicate]:
    return lambda _, *parts: joint(tuple(part.predicate() for part in parts))


_READERS: dict[str, Callable[..., Predicate]] = {
    **{name: _reader_of(operator) for name, operator in _COMPARE.items()},
    **{name: _reader_of_many(And) for name in _ANDS},
    **{name: _reader_of_many(Or) for name in ("Or", "LogicalOr", "Boolean.AnyHorizontal")},
    "Column": lambda part: Comparison(part.column(), "=", value=True),
    "Alias": lambda _, named: named.predicate(),
    "Boolean.Not": lambda _, negated: negation(negated.predicate()),
    "Boolean.IsNull": lambda _, column: IsNull(column.column()),
    "Boolean.IsNotNull": lambda _, column: negation(IsNull(column.column())),
    "Boolean.IsIn": _Part.is_in,
    "Boolean.IsBetween": _Part.is_between,
    "StringExpr.StartsWith": _Part.starts_with,
}
"""How to convert the known operations, given the operation and its parts."""
