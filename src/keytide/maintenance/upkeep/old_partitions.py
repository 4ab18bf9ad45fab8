"""Expiry of partitions on request, and what follows it."""

from __future__ import annotations

from datetime import timedelta

from keytide.maintenance.expiry import partition_expiry
from keytide.maintenance.expiry.partition_expiry import ExpiredPartitions, PartitionAge
from keytide.maintenance.upkeep.afterwards import follow_newest
from keytide.snapshot.pinned import StoredTable

__all__ = ["expire_partitions"]


def expire_partitions(
    table: StoredTable,
    expiration_time: str | timedelta | None = None,
    *,
    strategy: str | None = None,
    timestamp_pattern: str | None = None,
    timestamp_formatter: str | None = None,
    max_expires: int | None = None,
    dry_run: bool = False,
) -> ExpiredPartitions:
    """Drop partitions that are older than a time such as '7 d', in one atomic commit.

    The time is a string or a timedelta, not negative and at most 292 years. The defaults of the
    arguments are the options 'partition.expiration-time', 'partition.expiration-strategy',
    'partition.timestamp-pattern', 'partition.timestamp-formatter' and
    'partition.expiration-max-num', with which writes do the same. With the strategy 'values-time',
    the values determine the age of a partition, and what others write there in the meantime is
    dropped too. A partition whose values are not a time stays. With 'update-time', the age counts
    from the last write, and nothing is dropped if others write in the meantime. Times are compared
    with the wall clock of this machine. `dry_run` reports what would be dropped.

    Raises `InvalidError` for a table without partitions and for invalid arguments, and the errors
    of `write`.
    """
    age = PartitionAge(
        expiration_time, strategy, timestamp_pattern, timestamp_formatter, max_expires
    )
    done = partition_expiry.expire_partitions(table, age, dry_run=dry_run)
    if done.snapshot_id is not None:
        follow_newest(table, "the partitions are expired")
    return done
