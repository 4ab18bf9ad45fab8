"""Procedures with the names and arguments of Iceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from keytide.compaction.compact import CompactionResult
from keytide.errors import InvalidError
from keytide.maintenance.history.rollback import RollbackResult
from keytide.maintenance.upkeep import going_back, restore
from keytide.maintenance.upkeep.compacting import compact
from keytide.maintenance.upkeep.manifests import compact_manifest
from keytide.snapshot.stored import StoredTable
from keytide.sql.procedure import Procedure, chosen, procedure

__all__ = ["ICEBERG"]


def rollback_to_snapshot(table: StoredTable, snapshot: int) -> RollbackResult:
    """Roll back to a snapshot. Later snapshots are removed."""
    return going_back.rollback_to(table, snapshot)


def set_current_snapshot(
    table: StoredTable, snapshot: int | None = None, ref: str | None = None
) -> restore.RestoreResult:
    """Restore the table to a snapshot or a tag in a new commit. No snapshot is removed."""
    if (snapshot is None) == (ref is None):
        raise InvalidError(
            "sys.set_current_snapshot: give a snapshot id, or a tag as ref => 'name'"
        )
    return restore.restore(table, ref if snapshot is None else snapshot)


def rewrite_data_files(
    table: StoredTable,
    strategy: Literal["binpack", "sort"] = "binpack",
    sort_order: str | None = None,
    where: str | None = None,
) -> CompactionResult:
    """Compact all files of the table, or of the partitions that match a condition."""
    partitions = chosen("rewrite_data_files", table, None, where)
    if (strategy == "sort") != (sort_order is not None):
        raise InvalidError(
            "sys.rewrite_data_files: strategy => 'sort' and sort_order require each other; rows "
            "of a table with a primary key are always sorted by the key"
        )
    if sort_order is None:
        return compact(table, full=True, partitions=partitions)
    curve = re.fullmatch(r"\s*zorder\s*\((.*)\)\s*", sort_order, re.IGNORECASE)
    columns = [name.strip() for name in (curve[1] if curve else sort_order).split(",")]
    way = "zorder" if curve else "order"
    return compact(table, full=True, order_by=columns, order_strategy=way, partitions=partitions)


def rewrite_position_delete_files(table: StoredTable) -> CompactionResult:
    """Rewrite files without the rows that are marked as deleted."""
    return compact(table, full=True)


ICEBERG: Mapping[str, Procedure] = {
    "rewrite_data_files": procedure(rewrite_data_files),
    "rewrite_manifests": procedure(compact_manifest),
    "rewrite_position_delete_files": procedure(rewrite_position_delete_files),
    "rollback_to_snapshot": procedure(rollback_to_snapshot),
    "set_current_snapshot": procedure(set_current_snapshot),
}
"""The procedures by name."""
