"""Expiry of partitions as somebody asks for it, and what follows it."""

from __future__ import annotations

from datetime import timedelta

from keytide.table.expiry import partition_expiry
from keytide.table.expiry.partition_expiry import ExpiredPartitions, PartitionAge
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.afterwards import follow_newest

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

    The time is a text or a timedelta, not negative and of at most 292 years.
    What is left out is as the options 'partition.expiration-time',
    'partition.expiration-strategy', 'partition.timestamp-pattern',
    'partition.timestamp-formatter' and 'partition.expiration-max-num' say, by which writes do
    the same. By the strategy 'values-time' the values tell how old a partition is, and what
    others write there meanwhile goes with it; one whose values tell no time stays. By
    'update-time' it counts from the last write, and nothing is dropped where others write
    meanwhile. Time goes by the wall clock of this machine. `dry_run` tells what would go.

    Raises `InvalidError` for a table without partitions and for what is not to be understood,
    and what `write` raises.
    """
    age = PartitionAge(
        expiration_time, strategy, timestamp_pattern, timestamp_formatter, max_expires
    )
    done = partition_expiry.expire_partitions(table, age, dry_run=dry_run)
    if done.snapshot_id is not None:
        follow_newest(table, "the partitions are expired")
    return done
