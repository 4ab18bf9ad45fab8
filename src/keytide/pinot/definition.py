"""Converts a table config and its schema to columns, options and immutable settings."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any

from keytide.options import keys
from keytide.pinot.case import Case
from keytide.pinot.config import Column
from keytide.pinot.functions import sql_of
from keytide.types import ArrayType, Field, parse_sql_type

__all__ = ["IMMUTABLE", "TTLS", "columns", "options", "unused_defaults"]

_TYPES = {
    "INT": "INT", "LONG": "BIGINT", "FLOAT": "FLOAT", "DOUBLE": "DOUBLE",
    "BIG_DECIMAL": "DECIMAL(38, 18)", "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP(3) WITH LOCAL TIME ZONE", "STRING": "STRING", "JSON": "STRING",
    "BYTES": "BYTES", "UUID": "STRING",
}  # fmt: skip

IMMUTABLE = {
    "upsertConfig.mode": keys.UPSERT_MODE,
    "upsertConfig.hashFunction": keys.UPSERT_HASH_FUNCTION,
    "upsertConfig.comparisonColumns": keys.SEQUENCE_FIELD,
    "upsertConfig.deleteRecordColumn": keys.UPSERT_DELETE_RECORD_COLUMN,
    "upsertConfig.dropOutOfOrderRecord": keys.UPSERT_DROP_OUT_OF_ORDER,
    "upsertConfig.outOfOrderRecordColumn": keys.UPSERT_OUT_OF_ORDER_COLUMN,
    "segmentPartitionConfig.columnPartitionMap": keys.BUCKET,
}
"""Members that cannot change, by the options that store them. The primary key cannot either.

If there are no comparison columns, the time column cannot change.
"""


def columns(case: Case) -> list[Field]:
    """The columns of the table. Key columns become NOT NULL when the table is created."""
    return [_field(column, case) for column in case.schema.columns]


def options(case: Case) -> dict[str, str]:
    """The options of the table."""
    (buckets,) = {*case.table.partitions.values()} or {1}
    found = {
        keys.UPSERT_MODE: case.upsert.mode.lower(),
        keys.UPSERT_HASH_FUNCTION: case.upsert.hash_function.lower(),
        keys.SEQUENCE_FIELD: ",".join(case.comparison),
        keys.BUCKET: str(buckets),
        keys.UPSERT_ROW_ERRORS: "count",
    }
    if case.upsert.delete is not None:
        found[keys.UPSERT_DELETE_RECORD_COLUMN] = case.upsert.delete
    if case.is_partial:
        found[keys.UPSERT_LATE_ROWS] = "leave-out"
        found[keys.DEFAULT_AGGREGATE_FUNCTION] = case.upsert.default_strategy
        for name, strategy in case.upsert.strategies.items():
            found[keys.key_of(keys.AGGREGATE_FUNCTION, name)] = strategy
        for name, _, tree in case.functions:
            if tree is not None:
                found[keys.key_of(keys.POST_MERGE_EXPRESSION, name)] = sql_of(tree, _wide(case))
    if case.upsert.drops_late:
        found[keys.UPSERT_DROP_OUT_OF_ORDER] = "true"
    if case.upsert.late_marker is not None:
        found[keys.UPSERT_OUT_OF_ORDER_COLUMN] = case.upsert.late_marker
    compaction = case.table.compaction
    if compaction.percent is not None:
        found[keys.UPSERT_COMPACTION_PERCENT] = str(compaction.percent)
    if compaction.count is not None:
        found[keys.UPSERT_COMPACTION_COUNT] = str(compaction.count)
    if compaction.buffer_ms is not None:
        found[keys.UPSERT_COMPACTION_BUFFER] = f"{compaction.buffer_ms} ms"
    for key, member in TTLS.items():
        if member in case.ttls:
            found[key] = _age(case.ttls[member], case)
    return found


def _wide(case: Case) -> dict[str, str]:
    """The columns for which Pinot computes with a wider type."""
    types = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
    return {c.name: types[c.type] for c in case.schema.columns if c.is_single and c.type in types}


TTLS = {
    keys.UPSERT_METADATA_TTL: "metadataTTL",
    keys.UPSERT_DELETED_KEYS_TTL: "deletedKeysTTL",
}
"""The options for TTLs, with their members."""


def _age(value: float, case: Case) -> str:
    """A TTL in the unit of the comparison column.

    Fractions can be rounded down, because no integer lies in between.
    """
    column = case.column(case.comparison[0])
    is_time = column is not None and column.type == "TIMESTAMP"
    return f"{int(value)} ms" if is_time else str(int(value))


def unused_defaults(case: Case) -> list[str]:
    """Columns whose default for NULL is not stored: key columns, and non-scalar columns."""
    return [
        f"defaultNullValue of column {column.name!r}"
        for column in case.schema.columns
        if column.default is not None and not _can_have_default(column, case)
    ]


def _field(column: Column, case: Case) -> Field:
    is_nullable = not (case.schema.has_nulls and column.is_not_null)
    one = parse_sql_type(_TYPES[column.type])
    type_ = one if column.is_single else ArrayType(one)
    told = ", ".join(filter(None, (column.format, column.granularity))) or None
    default = _default(column) if _takes_default(column, case) else None
    return Field(-1, column.name, type_.with_nullable(is_nullable), told, default)


def _takes_default(column: Column, case: Case) -> bool:
    """Whether NULL is replaced by the default when a row is written.

    With null handling, Pinot shows NULL, but still compares by the default. If there are several
    comparison columns, NULL means that a row does not belong to their producer.
    """
    is_compared = column.name in case.comparison
    if is_compared and len(case.comparison) > 1:
        return False
    is_replaced = not case.has_nulls or is_compared
    is_replaced = is_replaced or (case.schema.has_nulls and column.is_not_null)
    return column.default is not None and is_replaced and _can_have_default(column, case)


def _can_have_default(column: Column, case: Case) -> bool:
    is_plain = column.is_single and column.type != "BYTES"
    return is_plain and column.name not in case.schema.primary_key


def _default(column: Column) -> str:
    """The default as the text of a value."""
    found: Any = column.default
    if column.type == "BOOLEAN":
        return {"1": "true", "0": "false"}.get(str(found), str(found).lower())
    if column.type == "TIMESTAMP" and str(found).lstrip("-").isdecimal():
        with contextlib.suppress(OverflowError):
            moment = datetime(1970, 1, 1) + timedelta(milliseconds=int(found))
            return moment.isoformat(" ", "milliseconds")
    return str(found)
