"""How rows are merged at write time, in tables with a key index."""

from __future__ import annotations

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.merge.checks import check_functions
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["check_row_merging", "merged_fields"]


def merged_fields(schema: TableSchema, options: TableOptions) -> tuple[Field, ...]:
    """The columns that are merged: all except those by which rows are found, compared or marked."""
    fixed = {*schema.primary_keys, *options.sequence_field, options.out_of_order_column}
    return tuple(field for field in schema.fields if field.name not in fixed)


def check_row_merging(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for functions that do not fit, or for columns that are not merged."""
    merged = {field.name: field for field in merged_fields(schema, options)}
    for name, function in options.by_columns(keys.AGGREGATE_FUNCTION).items():
        if name in schema.by_name and name not in merged:
            raise InvalidError(
                f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}' = {function!r}: column {name!r} "
                "identifies, orders or marks rows, so it is not merged; remove the option"
            )
    check_functions(merged, function_names(merged, options, DEFAULT_FUNCTION), options)
