"""Row predicates as Spark columns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from keytide.table.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Predicate,
)
from keytide.types import quoted

__all__ = ["column", "spark_condition"]


def column(name: str) -> Column:
    """The column of exactly that name, dots and all."""
    return F.col(quoted(name))


def spark_condition(predicate: Predicate, schema: StructType) -> Column:
    """The predicate over a DataFrame with the columns of `schema`; unknown drops a row."""

    def literal(name: str, value: Any) -> Column:
        return F.lit(_literal(value)).cast(schema[name].dataType)

    def build(node: Predicate) -> Column:
        if isinstance(node, Comparison):
            return _COMPARE[node.operator](column(node.column), literal(node.column, node.value))
        if isinstance(node, In):
            values = [literal(node.column, value) for value in node.values]
            return column(node.column).isin(values) if values else F.lit(False)
        if isinstance(node, IsNull):
            return column(node.column).isNull()
        if isinstance(node, Like):
            return column(node.column).like(node.pattern)
        if isinstance(node, Not):
            return ~build(node.term)
        connective = and_ if isinstance(node, And) else or_
        return reduce(connective, (build(term) for term in node.terms))

    return build(predicate)


_COMPARE: dict[str, Callable[[Column, Column], Column]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _literal(value: Any) -> Any:
    # A datetime would be read in the zone of the session or of this machine; a text says its own.
    return value.isoformat() if isinstance(value, datetime) else value
