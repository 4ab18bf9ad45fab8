"""How late rows may come, and how long deletes are kept, where an index of keys has the order.

Both count in what rows are compared by, and not by the clock: how far a row lies behind the
freshest one. So neither says anything of when a row was written or a compaction ran.
"""

from __future__ import annotations

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.index.comparison import Comparison
from keytide.options import Age, TableOptions, keys

__all__ = ["check_times_to_live", "ticks_of"]

_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TIMES = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")


def ticks_of(age: Age, comparison: Comparison) -> int:
    """How far the numbers of two values lie apart that are so far from each other."""
    return comparison.ticks(age.amount) if age.is_time else age.amount


def check_times_to_live(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a time to live that does not count in what rows are compared by."""
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
