"""Expiry of partitions as somebody asks for it, and what follows it."""

from __future__ import annotations

from keytide.table.expiry import partition_expiry
from keytide.table.expiry.partition_expiry import ExpiredPartitions, PartitionAge
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.afterwards import follow_newest

__all__ = ["expire_partitions"]


def expire_partitions(
    table: StoredTable, age: PartitionAge, *, dry_run: bool = False
) -> ExpiredPartitions:
    """Drop partitions, as `Table.expire_partitions` says."""
    done = partition_expiry.expire_partitions(table, age, dry_run=dry_run)
    if done.snapshot_id is not None:
        follow_newest(table, "the partitions are expired")
    return done
