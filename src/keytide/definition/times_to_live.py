"""Limits for late rows and for the retention of deletes, in tables with a key index.

Both are measured in the comparison values, not in wall-clock time: how far a row is behind the
latest row. So they do not depend on when a row was written or a compaction ran.
"""

from __future__ import annotations

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.key_index.comparison import Comparison
from keytide.options import Age, TableOptions, keys

__all__ = ["check_times_to_live", "ticks_of"]

_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TIMES = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")


def ticks_of(age: Age, comparison: Comparison) -> int:
    """The difference of the comparison numbers of two values with this distance."""
    return comparison.ticks(age.amount) if age.is_time else age.amount


def check_times_to_live(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a time to live that cannot be measured in the comparison values."""
    given = {
        keys.UPSERT_METADATA_TTL: options.metadata_ttl,
        keys.UPSERT_DELETED_KEYS_TTL: options.deleted_keys_ttl,
    }
    for key, age in given.items():
        if age is not None:
            _check(f"'{key}' = '{options.raw[key]}'", age, schema, options.sequence_field)


def _check(role: str, age: Age, schema: TableSchema, compared: tuple[str, ...]) -> None:
    fields = schema.select(compared)
    if len(fields) != 1:
        found = ", ".join(compared) or "nothing"
        raise InvalidError(
            f"{role} is measured in the sequence field, which must be one column; "
            f"'{keys.SEQUENCE_FIELD}' names {found}; name one column, or remove the option"
        )
    root, type_ = fields[0].type.root, fields[0].type.sql()
    if root not in (*_NUMBERS, *_TIMES):
        raise InvalidError(
            f"{role} is measured in the sequence field, which must be a time or an integer, and "
            f"{compared[0]!r} is {type_}; use another sequence field, or remove the option"
        )
    if age.is_time != (root in _TIMES):
        expected = "a duration such as '7 d'" if root in _TIMES else "an integer such as '1000'"
        raise InvalidError(
            f"{role} is measured in {compared[0]!r}, which is {type_}; expected {expected}"
        )
