"""What a write did, as its caller is told."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.record import Record

__all__ = ["WriteResult"]


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
    """

    snapshot_id: int | None
    rows: int
    rows_stored: int
    files: int
    is_new: bool = True
    out_of_order: int | None = None
