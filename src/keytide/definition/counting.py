"""The aggregate function `count`: how many values were written.

A stored count cannot be distinguished from a value to count. So values are counted when they are
written: a row is stored with 1 in place of a value, and merging adds up, in any order and grouping.
Tables store the function as `sum`, which every engine of the format knows, and record separately
that written values must be counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys

__all__ = ["check_counted", "counted_columns", "with_stored_counts"]


def with_stored_counts(raw: Mapping[str, str]) -> dict[str, str]:
    """The options to store, with `count` as a sum of counted values."""
    stored = dict(raw)
    for key, value in raw.items():
        column = keys.columns_in(keys.AGGREGATE_FUNCTION, key)
        if column is not None and value.strip().lower() == "count":
            stored[key] = "sum"
            stored[keys.key_of(keys.COUNT_VALUES, column)] = "true"
    return stored


def counted_columns(options: TableOptions) -> frozenset[str]:
    """The columns whose written values are counted."""
    chosen = options.by_columns(keys.COUNT_VALUES)
    return frozenset(column for column, value in chosen.items() if value.lower() == "true")


def check_counted(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for counts that do not fit the type of their column."""
    for name in sorted(counted_columns(options)):
        if name not in schema.names:
            continue  # the column was dropped, but not the option
        type_ = schema.field(name).type
        if not pa.types.is_integer(type_.to_arrow()):
            raise InvalidError(
                f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}' = 'count' requires an integer "
                f"column, and {name!r} is {type_.sql()}; change it to BIGINT"
            )
