"""What a feed brings that its table does not take yet: columns, and types that values outgrow.

Messages are looked at in parts, in any order; `together` makes of what was found one answer, which
is the same however the messages were cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from keytide.format.schema import TableSchema
from keytide.table.definition.evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.types import STRING, AtomicType, DataType, Field
from keytide.types.widening import common_type

__all__ = ["feed_growth", "together"]


def feed_growth(schema: TableSchema, brought: Iterable[Field]) -> list[SchemaChange]:
    """What has to change so that the table takes what a feed brings.

    New columns are nullable and come last. Types widen to the narrowest that holds the values of
    both; where there is none, and in key and partition columns, they stay, and messages with values
    that do not fit are rejected as ever.
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
    """One field for each column of several looks; of types that have none in common, STRING."""
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
