"""The result of a write, for its caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keytide.base.callers import warn_caller
from keytide.base.record import Record
from keytide.options import keys

__all__ = ["WriteResult", "warn_of_errors"]


@dataclass(frozen=True)
class WriteResult(Record):
    """What a write did.

    - `snapshot_id` is the new snapshot, None when there was nothing to commit.
    - `rows` is the number of rows given, and `rows_stored` the number left after merging per key.
    - `files` is the number of committed files, and `bytes` their total size.
    - `is_new` is false when the same commit user and identifier had already been committed. Nothing
      was written again.
    - `out_of_order` is the number of rows that were older, by the sequence fields, than a version
      of their key in the snapshot that the write started from, or than an earlier row in the same
      write. It is None for `overwrite`, for SQL's UPDATE and DELETE, and unless the table sets one
      of these options: 'write.count-out-of-order' (which costs a lookup of the keys),
      'upsert.drop-out-of-order-record', 'upsert.out-of-order-record-column', 'upsert.late-rows' =
      'leave-out', 'upsert.metadata-ttl' or 'upsert.deleted-keys-ttl'.
    - `errors` counts the given rows that were skipped because they are invalid, by reason:
      'null-primary-key', 'null-in-not-null-column', 'no-comparison-value',
      'several-comparison-values' or 'unmergeable'. It is None unless the table has
      'upsert.row-errors' = 'count' (other tables refuse such rows), and when nothing was written
      again.
    - `retries` is the number of commit attempts that lost a race with another writer.
    - `milliseconds` is the time from the first request for the table until the commit was durable.

    `bytes`, `retries` and `milliseconds` are ignored when two results are compared.
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
    """Warn about rows that were left out, if nobody receives the result."""
    if result.errors:
        told = ", ".join(f"{count} for {name}" for name, count in result.errors.items())
        left_out = sum(result.errors.values())
        warn_caller(
            f"table {table}: {left_out} of {result.rows} rows were skipped as invalid: {told}; "
            f"to refuse such rows, set '{keys.UPSERT_ROW_ERRORS}' = 'refuse'"
        )
