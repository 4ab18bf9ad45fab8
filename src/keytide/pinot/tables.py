"""Tables created from Apache Pinot's table config and schema.

Both are converted to columns, options and immutable settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from keytide.base.arguments import checked, warn_caller
from keytide.definition.kind import merged_fields
from keytide.errors import AlreadyExistsError, InvalidError
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.options import TableOptions, keys
from keytide.pinot.config import Column, parse_schema, parse_table_config
from keytide.pinot.rules import Case, check, idle_members
from keytide.pinot.scalar_functions import sql_of
from keytide.types import ArrayType, Field, parse_sql_type

# -- columns, options and immutable settings -------------------------------------------------------


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
                # The columns for which Pinot computes with a wider type.
                types = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
                wide = {
                    c.name: types[c.type]
                    for c in case.schema.columns
                    if c.is_single and c.type in types
                }
                found[keys.key_of(keys.POST_MERGE_EXPRESSION, name)] = sql_of(tree, wide)
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


TTLS = {keys.UPSERT_METADATA_TTL: "metadataTTL", keys.UPSERT_DELETED_KEYS_TTL: "deletedKeysTTL"}
"""The options for TTLs, with their members."""


def _age(value: float, case: Case) -> str:
    """A TTL in the unit of the comparison column.

    Fractions can be rounded down, because no integer lies in between.
    """
    column = case.column(case.comparison[0])
    is_time = column is not None and column.type == "TIMESTAMP"
    return f"{int(value)} ms" if is_time else str(int(value))


def _field(column: Column, case: Case) -> Field:
    is_nullable = not (case.schema.has_nulls and column.is_not_null)
    one = parse_sql_type(_TYPES[column.type])
    type_ = one if column.is_single else ArrayType(one)
    spelling = ", ".join(filter(None, (column.format, column.granularity))) or None

    # NULL is replaced by the default when a row is written. With null handling, Pinot shows NULL,
    # but still compares by the default. If there are several comparison columns, NULL means that a
    # row does not belong to their producer.
    is_compared = column.name in case.comparison
    is_replaced = not case.has_nulls or is_compared or not is_nullable
    if is_compared and len(case.comparison) > 1:
        is_replaced = False
    default = None
    if column.default is not None and is_replaced and _can_have_default(column, case):
        default = str(column.default)
        if column.type == "BOOLEAN":
            default = {"1": "true", "0": "false"}.get(default, default.lower())
        if column.type == "TIMESTAMP" and default.lstrip("-").isdecimal():
            with contextlib.suppress(OverflowError):
                moment = datetime(1970, 1, 1) + timedelta(milliseconds=int(column.default))
                default = moment.isoformat(" ", "milliseconds")
    return Field(-1, column.name, type_.with_nullable(is_nullable), spelling, default)


def _can_have_default(column: Column, case: Case) -> bool:
    is_plain = column.is_single and column.type != "BYTES"
    return is_plain and column.name not in case.schema.primary_key


# -- creation of tables ----------------------------------------------------------------------------


@checked
def create_table(
    lake: Lake,
    table_config: Mapping[str, Any] | str | Path,
    schema: Mapping[str, Any] | str | Path,
    name: str | None = None,
) -> Table:
    """Create or open the table that Apache Pinot's table config and schema describe.

    Both arguments are dicts, JSON strings, or paths of files. The table has an index of its keys
    (`upsert.mode`). `name` is by default that of the config, without `_REALTIME` or `_OFFLINE`.
    docs/semantics.md, "Pinot's configuration", describes each member. If the table exists, settings
    that cannot change in Pinot are compared with it.

    Raises the following, with nothing created:

    - `InvalidError` for what Pinot refuses, for unknown members, and for an existing table with
      other settings.
    - `UnsupportedError` for what this release does not support.

    Warns once about all members that have no effect.
    """
    case = Case(parse_table_config(table_config), parse_schema(schema))
    check(case)
    name = name or case.table.name
    idle = idle_members(case)
    idle += [
        f"defaultNullValue of column {column.name!r}"
        for column in case.schema.columns
        if column.default is not None and not _can_have_default(column, case)
    ]
    if idle:
        warn_caller(f"table {name}: {_IDLE} {', '.join(idle)}")
    fields, wanted = columns(case), options(case)
    try:
        return lake.create_table(name, fields, case.schema.primary_key, options=wanted)
    except AlreadyExistsError:
        table = Table.of(lake.catalog.table(name), lake.spark, lake.catalog)
    _check_immutable(table, case)

    # Warn about schema differences, because opening a table does not change it.
    has = {f.name: f.type.with_nullable(True).sql() for f in table.table_schema.fields}
    asked = {f.name: f.type.with_nullable(True).sql() for f in columns(case)}
    differing = [name for name in {**has, **asked} if has.get(name) != asked.get(name)]
    if differing:
        warn_caller(
            f"table {table.name} has different columns from the schema: "
            f"{', '.join(f'{n} {has.get(n)}, not {asked.get(n)}' for n in differing)}; change them "
            f"with Table.alter"
        )
    _warn_of_ttls(table, case)
    return table


_IDLE = "these settings have no effect, because Keytide has no servers and does not transform rows:"


def _check_immutable(table: Table, case: Case) -> None:
    """Raise `InvalidError` if the table differs in a setting that cannot change."""
    pairs: dict[str, tuple[Any, Any]] = {
        "primaryKeyColumns": (table.table_schema.primary_keys, case.schema.primary_key)
    }
    stored = TableOptions.parse(table.options)
    wanted = TableOptions.parse(options(case))
    for member, key in IMMUTABLE.items():
        pairs[member] = (stored.value(key), wanted.value(key))
    if wanted.merges_rows:
        names = [f.name for f in merged_fields(table.table_schema, stored)]
        one, other = (function_names(names, each, DEFAULT_FUNCTION) for each in (stored, wanted))
        for name in names:
            pairs[f"upsertConfig.partialUpsertStrategies.{name}"] = (one[name], other[name])
        one, other = (each.by_columns(keys.POST_MERGE_EXPRESSION) for each in (stored, wanted))
        for name in {**one, **other}:
            member = f"upsertConfig.postPartialUpsertTransformConfigs.{name}"
            pairs[member] = (one.get(name), other.get(name))
    for member, (has, asked) in pairs.items():
        if has != asked:
            if member == "upsertConfig.comparisonColumns" and not case.upsert.comparison:
                member = "segmentsConfig.timeColumnName"
            raise InvalidError(
                f"table {table.name} was created with {_value_text(has)} as '{member}', found "
                f"{_value_text(asked)}; it cannot be changed. Write the rows to a new table"
            )


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        value = ", ".join(value)
    return "nothing" if value in (None, "") else repr(value)


def _warn_of_ttls(table: Table, case: Case) -> None:
    """Warn about different TTLs, because opening a table does not change them."""
    has, asked = table.options, options(case)
    differing = [key for key in TTLS if has.get(key) != asked.get(key)]
    if differing:
        lifetimes = (
            f"'{k}' {_value_text(has.get(k))}, not {_value_text(asked.get(k))}" for k in differing
        )
        warn_caller(
            f"table {table.name} has different TTLs from the config: {', '.join(lifetimes)}; "
            f"change them with Table.alter"
        )
