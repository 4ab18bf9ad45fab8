"""Whether the rows of a write can be distributed over tasks in any way."""

from __future__ import annotations

from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys

__all__ = ["check_distribution", "why_brought_together"]


def check_distribution(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` if rows must not be shuffled but one task must see all of a bucket."""
    reason = why_brought_together(schema, options)
    if options.write_distribution == "none" and reason is not None:
        raise InvalidError(
            f"'{keys.WRITE_DISTRIBUTION}' = 'none' leaves the rows of a bucket in several tasks, "
            f"but {reason}; set it to 'auto' or 'hash'"
        )


def why_brought_together(schema: TableSchema, options: TableOptions) -> str | None:
    """Why one task must write all rows of a bucket. None if several can."""
    if schema.is_indexed:
        return (
            f"'{keys.UPSERT_MODE}' = '{schema.upsert_mode}' maintains a key index, which needs "
            "all rows of a bucket in order"
        )
    if schema.primary_keys and options.bucket == -1:
        return f"'{keys.BUCKET}' = '-1' requires one task to assign each key"
    if options.counts_out_of_order:
        return f"'{keys.WRITE_COUNT_OUT_OF_ORDER}' compares each row with earlier rows of its key"
    if options.sequence_auto_padding:
        return f"'{keys.SEQUENCE_AUTO_PADDING}' counts the rows of a key one by one"
    return None
