"""Row predicates as Spark columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import and_, or_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from keytide.predicate.matching import balanced, like_parts
from keytide.predicate.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Predicate,
)
from keytide.types import Field, quoted

__all__ = ["column", "constant", "spark_condition"]


def column(name: str) -> Column:
    """The column with exactly this name, including any dots."""
    return F.col(quoted(name))


def spark_condition(predicate: Predicate, fields: Sequence[Field], schema: StructType) -> Column:
    """The predicate over a DataFrame with the columns `fields`. A NULL result drops the row.

    `schema` has the Spark types of the columns.
    """
    by_name = {f.name: f for f in fields}

    def compared(name: str) -> Column:
        return F.rtrim(column(name)) if _is_char(by_name[name]) else column(name)

    def literal(name: str, value: Any) -> Column:
        return _literal(value, by_name[name], schema)

    def build(node: Predicate) -> Column:
        if isinstance(node, Comparison):
            return _COMPARE[node.operator](compared(node.column), literal(node.column, node.value))
        if isinstance(node, In):
            values = [literal(node.column, value) for value in node.values]
            never = F.when(column(node.column).isNotNull(), F.lit(False))
            return compared(node.column).isin(values) if values else never
        if isinstance(node, IsNull):
            return column(node.column).isNull()
        if isinstance(node, Like):
            return column(node.column).like(_like_pattern(node.pattern))
        if isinstance(node, Not):
            return ~build(node.term)
        connective = and_ if isinstance(node, And) else or_
        return balanced(connective, [build(term) for term in node.terms])

    return build(predicate)


_COMPARE: dict[str, Callable[[Column, Column], Column]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _is_char(field: Field) -> bool:
    return field.type.root == "CHAR"


def constant(value: pa.Scalar, type_: DataType) -> Column:
    """A value as a column of a Spark type."""
    if pa.types.is_timestamp(value.type) and value.is_valid:
        micros = value.cast(pa.timestamp("us", value.type.tz)).value
        return _time(micros, has_zone=value.type.tz is not None).cast(type_)
    return F.lit(value.as_py()).cast(type_)


def _time(micros: int, *, has_zone: bool) -> Column:
    # A datetime object would be interpreted in the time zone of the session or of this machine.
    if has_zone:
        return F.timestamp_micros(F.lit(micros))
    text = (datetime(1970, 1, 1) + timedelta(microseconds=micros)).isoformat()
    return F.lit(text).cast(TimestampNTZType())


def _literal(value: Any, field: Field, schema: StructType) -> Column:
    type_ = schema[field.name].dataType
    if isinstance(type_, TimestampType | TimestampNTZType):
        micros = value * {"ms": 1000, "us": 1}[field.type.to_arrow().unit]
        return _time(micros, has_zone=isinstance(type_, TimestampType))
    if _is_char(field):
        value = value.rstrip(" ")
    return F.lit(value).cast(type_)


def _like_pattern(pattern: str) -> str:
    """The pattern with a backslash only where Spark accepts one."""
    return "".join(
        character if is_wildcard or character not in "%_\\" else "\\" + character
        for character, is_wildcard in like_parts(pattern)
    )
