"""Schema changes that a feed needs: new columns, and types that values do not fit.

Messages are checked in parts, in any order. `together` combines the results to one answer, which
does not depend on how the messages were divided.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from keytide.definition.evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.format.schema import TableSchema
from keytide.types import STRING, AtomicType, DataType, Field
from keytide.types.widening import common_type

__all__ = ["feed_growth", "together"]


def feed_growth(schema: TableSchema, brought: Iterable[Field]) -> list[SchemaChange]:
    """The schema changes for a table to accept the columns of a feed.

    New columns are nullable and come last. Types are widened to the narrowest type that holds the
    values of both. If there is none, and for key and partition columns, the type stays, and
    messages with values that do not fit are rejected.
    """
    fixed = {*schema.primary_keys, *schema.partition_keys}
    changes: list[SchemaChange] = []
    for field in brought:
        if field.name not in schema.by_name:
            changes.append(AddColumn((field.name,), field.type.with_nullable(True)))
        elif field.name not in fixed:
            old = schema.field(field.name).type
            wider = _common(old, field.type)
            if wider is not None and wider.with_nullable(True) != old.with_nullable(True):
                changes.append(ChangeColumnType((field.name,), wider))
    return changes


def together(brought: Iterable[Field]) -> list[Field]:
    """One field for each column from several parts. Types without a common type become STRING."""
    types: dict[str, set[DataType]] = {}
    for field in brought:
        types.setdefault(field.name, set()).add(field.type.with_nullable(True))
    return [Field(-1, name, _of_all(found)) for name, found in types.items()]


def _of_all(types: set[DataType]) -> DataType:
    return reduce(_of_both, sorted(types, key=lambda type_: type_.sql()))


def _of_both(one: DataType, other: DataType) -> DataType:
    if one == other:
        return one
    common = _common(one, other)
    if common is not None:
        return common
    roots = {type_.root for type_ in (one, other) if isinstance(type_, AtomicType)}
    if len(roots) == 2 and roots <= _NUMBERS:
        return AtomicType("DOUBLE")
    if roots == {"TIMESTAMP", "TIMESTAMP_LTZ"}:
        return AtomicType("TIMESTAMP_LTZ", precision=6)
    return STRING


_NUMBERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"})


def _common(old: DataType, new: DataType) -> DataType | None:
    if isinstance(old, AtomicType) and isinstance(new, AtomicType):
        return common_type(old, new)
    return None
