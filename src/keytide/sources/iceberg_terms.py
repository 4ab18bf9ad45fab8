"""Key conditions for `pyiceberg`'s planning, true for every file that may have matching rows."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pyarrow as pa

from keytide.predicate.predicate import And, Comparison, In, IsNull, Not, Or, Predicate

__all__ = ["planned"]

_NAMES = {
    "=": "EqualTo",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
_VALUES_MAX = 200
"""Longer lists are omitted, because `pyiceberg` does not compare bounds for them."""


def planned(predicate: Predicate, schema: pa.Schema, expressions: ModuleType) -> Any:
    """A `pyiceberg` condition that is never stricter. Terms that it cannot express are omitted."""
    if isinstance(predicate, And | Or):
        terms = [planned(term, schema, expressions) for term in predicate.terms]
        join = expressions.And if isinstance(predicate, And) else expressions.Or
        return join(*terms)
    if isinstance(predicate, IsNull):
        return (
            expressions.IsNull(predicate.column)
            if _is_plain(predicate.column)
            else _all(expressions)
        )
    if isinstance(predicate, Not) and isinstance(predicate.term, IsNull):
        name = predicate.term.column
        return expressions.NotNull(name) if _is_plain(name) else _all(expressions)
    if not isinstance(predicate, Comparison | In) or not _is_plain(predicate.column):
        return _all(expressions)
    if not _is_ordered_alike(schema.field(predicate.column).type):
        return _all(expressions)
    if isinstance(predicate, In):
        if len(predicate.values) > _VALUES_MAX:
            return _all(expressions)
        return expressions.In(predicate.column, set(predicate.values))
    if predicate.operator == "!=":
        return _all(expressions)
    return getattr(expressions, _NAMES[predicate.operator])(predicate.column, predicate.value)


def _all(expressions: ModuleType) -> Any:
    return expressions.AlwaysTrue()


def _is_plain(name: str) -> bool:
    return "." not in name  # a dot would mean a nested field there


def _is_ordered_alike(type_: pa.DataType) -> bool:
    """Whether values of a type have the same order in Iceberg. Bounds do not include NaN."""
    checks = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
    return any(check(type_) for check in checks) or (
        pa.types.is_timestamp(type_) and type_.unit == "us"
    )
