"""What a write did, as its caller is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.callers import warn_caller
from keytide.options import keys
from keytide.record import Record

__all__ = ["WriteResult", "warn_of_errors"]


@dataclass(frozen=True)
class WriteResult(Record):
    """What a write did.

    `snapshot_id` is None when there was nothing to commit. `rows` counts the rows given,
    `rows_stored` those left after merging per key. `is_new` is false when the same commit user
    and identifier had been committed before: nothing was written again.

    `out_of_order` counts the rows that were older, by the sequence fields, than a version of their
    key in the snapshot that the write began with, or than a row before them in the same write.
    None unless the table has 'write.count-out-of-order', which costs a lookup of the keys, or drops
    or marks such rows ('upsert.drop-out-of-order-record', 'upsert.out-of-order-record-column'), or
    says how old they may be ('upsert.metadata-ttl', 'upsert.deleted-keys-ttl'), and for what
    `overwrite` and SQL's UPDATE and DELETE write.

    `errors` counts, of the rows given, those that the table could not take and that were left out,
    by what is wrong with them: 'null-primary-key', 'null-in-not-null-column',
    'no-comparison-value', 'several-comparison-values', 'unmergeable'. None unless the table has
    'upsert.row-errors' = 'count', for other tables refuse such rows; and where nothing was written
    again.

    `bytes` is the size of the `files` that were committed, `retries` counts the tries to commit
    that other writers' commits came before, and `milliseconds` is the time from the first look at
    the table until the commit was durable, which two results may differ in and be equal.
    """

    snapshot_id: int | None
    rows: int
    rows_stored: int
    files: int
    is_new: bool = True
    out_of_order: int | None = None
    errors: Mapping[str, int] | None = None
    bytes: int = field(default=0, compare=False)
    retries: int = field(default=0, compare=False)
    milliseconds: int = field(default=0, compare=False)


def warn_of_errors(table: str, result: WriteResult) -> None:
    """Warn of rows that were left out, where nobody is given the result."""
    if result.errors:
        told = ", ".join(f"{count} for {name}" for name, count in result.errors.items())
        left_out = sum(result.errors.values())
        warn_caller(
            f"table {table}: {left_out} of {result.rows} rows were left out as errors, {told}; "
            f"set '{keys.UPSERT_ROW_ERRORS}' = 'refuse' to have such rows refused"
        )
