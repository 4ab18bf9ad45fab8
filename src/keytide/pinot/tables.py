"""Creates tables of a lake from Pinot's table config and schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keytide.base.arguments import checked
from keytide.base.callers import warn_caller
from keytide.definition.row_merging import merged_fields
from keytide.errors import AlreadyExistsError, InvalidError
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.options import TableOptions, keys
from keytide.pinot import definition
from keytide.pinot.case import Case
from keytide.pinot.config import parse_schema, parse_table_config
from keytide.pinot.rules import check, idle_members

__all__ = ["create_table"]


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
    idle = [*idle_members(case), *definition.unused_defaults(case)]
    if idle:
        warn_caller(f"table {name}: {_IDLE} {', '.join(idle)}")
    fields, options = definition.columns(case), definition.options(case)
    try:
        return lake.create_table(name, fields, case.schema.primary_key, options=options)
    except AlreadyExistsError:
        table = Table.of(lake.catalog.table(name), lake.spark, lake.catalog)
    _check_immutable(table, case)
    _warn_of_columns(table, case)
    _warn_of_ttls(table, case)
    return table


_IDLE = "these settings have no effect, because Keytide has no servers and does not transform rows:"


def _check_immutable(table: Table, case: Case) -> None:
    """Raise `InvalidError` if the table differs in a setting that cannot change."""
    pairs: dict[str, tuple[Any, Any]] = {
        "primaryKeyColumns": (table.table_schema.primary_keys, case.schema.primary_key)
    }
    stored = TableOptions.parse(table.options)
    wanted = TableOptions.parse(definition.options(case))
    for member, key in definition.IMMUTABLE.items():
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
                f"table {table.name} was created with {_told(has)} as '{member}', found "
                f"{_told(asked)}; it cannot be changed. Write the rows to a new table"
            )


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        value = ", ".join(value)
    return "nothing" if value in (None, "") else repr(value)


def _warn_of_columns(table: Table, case: Case) -> None:
    """Warn about schema differences, because opening a table does not change it."""
    has = {f.name: f.type.with_nullable(True).sql() for f in table.table_schema.fields}
    asked = {f.name: f.type.with_nullable(True).sql() for f in definition.columns(case)}
    differing = [name for name in {**has, **asked} if has.get(name) != asked.get(name)]
    if differing:
        warn_caller(
            f"table {table.name} has different columns from the schema: "
            f"{', '.join(f'{n} {has.get(n)}, not {asked.get(n)}' for n in differing)}; change them "
            f"with Table.alter"
        )


def _warn_of_ttls(table: Table, case: Case) -> None:
    """Warn about different TTLs, because opening a table does not change them."""
    has, asked = table.options, definition.options(case)
    differing = [key for key in definition.TTLS if has.get(key) != asked.get(key)]
    if differing:
        told = (f"'{k}' {_told(has.get(k))}, not {_told(asked.get(k))}" for k in differing)
        warn_caller(
            f"table {table.name} has different TTLs from the config: {', '.join(told)}; "
            f"change them with Table.alter"
        )
