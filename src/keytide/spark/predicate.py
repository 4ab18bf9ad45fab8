"""Row predicates in Spark: a table's predicate as a column, Spark's filters as a predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from keytide.format.schema import TableSchema
from keytide.table.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Predicate,
    conjunction,
)
from keytide.types import AtomicType

__all__ = ["column", "push_filters", "spark_condition"]


def column(name: str) -> Column:
    """The column of exactly that name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


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


def push_filters(
    filters: Iterable[ds.Filter], schema: TableSchema
) -> tuple[Predicate | None, list[ds.Filter]]:
    """What a scan can do of a query's filters, and the filters left to Spark."""
    terms, left = [], []
    for item in filters:
        term = _from_filter(item, schema)
        if term is None:
            left.append(item)
        else:
            terms.append(term)
    return conjunction(terms), left


_COMPARE: dict[str, Callable[[Column, Column], Column]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_OPERATORS: dict[type[ds.Filter], str] = {
    ds.EqualTo: "=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
}


def _literal(value: Any) -> Any:
    # A datetime would be read in the zone of the session or of this machine; a text says its own.
    return value.isoformat() if isinstance(value, datetime) else value


def _from_filter(item: ds.Filter, schema: TableSchema) -> Predicate | None:
    if isinstance(item, ds.Not):
        term = _from_filter(item.child, schema)
        return None if term is None else Not(term)
    name, root = _filtered_column(item, schema)
    if name is None:
        return None
    if isinstance(item, ds.IsNull):
        return IsNull(name)
    if isinstance(item, ds.IsNotNull):
        return Not(IsNull(name))
    if type(item) in _OPERATORS:
        value = _value(item.value, root)
        return None if value is None else Comparison(name, _OPERATORS[type(item)], value)
    if isinstance(item, ds.In):
        values = [_value(v, root) for v in item.value]
        return None if None in values else In(name, tuple(values))
    return None


def _filtered_column(item: ds.Filter, schema: TableSchema) -> tuple[str | None, str]:
    path: Sequence[str] = getattr(item, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None, ""
    kind = schema.field(path[0]).type
    return path[0], kind.root if isinstance(kind, AtomicType) else ""


def _value(value: Any, root: str) -> Any:
    """The filter's value in the column's own type; None where the two do not clearly agree."""
    expected = _PYTHON_TYPES.get(root)
    if expected is None or type(value) is not expected:
        return None
    if isinstance(value, datetime):
        aware = value.tzinfo is not None
        if aware != (root == "TIMESTAMP_LTZ"):
            return None
        return value.astimezone(timezone.utc) if aware else value
    return value


_PYTHON_TYPES: dict[str, type] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), int),
    **dict.fromkeys(("FLOAT", "DOUBLE"), float),
    **dict.fromkeys(("CHAR", "VARCHAR"), str),
    **dict.fromkeys(("BINARY", "VARBINARY"), bytes),
    "BOOLEAN": bool,
    "DECIMAL": Decimal,
    "DATE": date,
    "TIMESTAMP": datetime,
    "TIMESTAMP_LTZ": datetime,
}
