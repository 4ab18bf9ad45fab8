"""Purging: deletes all rows and the history of a table, as if it had just been created.

The rows are deleted first, in a normal commit. From then on the table is empty, wherever this
stops, and a repeated call continues. Then everything that keeps older snapshots (branches, tags and
consumers) is deleted, and last these snapshots themselves, with the files that only they have.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from keytide.base.record import Record
from keytide.errors import InvalidError
from keytide.format.branch import BranchStore
from keytide.maintenance.expiry.expiry import expire_changelogs, expire_snapshots
from keytide.maintenance.history.branches import delete_branch, refuse_named
from keytide.maintenance.history.guards import is_guard
from keytide.maintenance.history.log import clear_consumers, consumers_of
from keytide.maintenance.history.tags import delete_tag
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.maintenance.upkeep.writing import writing
from keytide.snapshot.branches import branch_names, table_name
from keytide.snapshot.pinned import StoredTable
from keytide.write.partition_spec import every_partition
from keytide.write.refusals import writable_view

__all__ = ["PurgeResult", "purge_files"]


@dataclass(frozen=True)
class PurgeResult(Record):
    """What a purge did or, in a dry run, what it would do.

    `rows` is the number of rows that were stored. `snapshots`, `changelogs`, `tags`, `branches` and
    `consumers` are the numbers of those that were removed. `files` is the number of files deleted
    with the snapshots, which is None in a dry run.
    """

    rows: int
    snapshots: int
    changelogs: int
    tags: int
    branches: int
    consumers: int
    files: int | None


def purge_files(table: StoredTable, *, dry_run: bool = False) -> PurgeResult:
    """Delete all rows and all history: only the definition and one empty snapshot stay.

    The rows are deleted first, in one atomic commit. From then on the table is empty, and after an
    interruption a repeated call continues. Then branches, tags, consumers, changelogs and snapshots
    are deleted, with their files. Other processes can write at the same time, and what they commit
    stays. The files of writers that died, and files of restored snapshots, are left for orphan
    removal. `dry_run` reports what would be deleted.

    Raises `InvalidError` for a branch, and if an option names one. Raises `UnsupportedError`,
    `ConflictError` and `DataError` like `truncate` and `expire_snapshots`.
    """
    BEHIND.settle_whole(table.uri)
    if isinstance(table.store, BranchStore):
        raise InvalidError(
            f"table {table.name}: only a whole table can be purged; purge {table_name(table)}, "
            "or delete this branch"
        )
    branches = branch_names(table.store)
    for branch in branches:
        refuse_named(table, branch, "deleted")
    found = _found(table, branches)
    return found if dry_run else _purged(table, branches, found)


def _found(table: StoredTable, branches: list[str]) -> PurgeResult:
    metadata = table.metadata
    newest = metadata.latest_snapshot()
    return PurgeResult(
        0 if newest is None else newest.total_record_count,
        len(metadata.snapshot_ids()),
        len(metadata.changelog_ids()),
        len(metadata.tag_names()),
        len(branches),
        len(consumers_of(metadata)),
        None,
    )


def _purged(table: StoredTable, branches: list[str], found: PurgeResult) -> PurgeResult:
    metadata = table.metadata
    with writing(table, writable_view(table)) as transaction:
        transaction.replace(every_partition)
    for branch in branches:
        delete_branch(table, branch)
    clear_consumers(table)
    # Tags that protect restored files must outlive the snapshots from before the restore.
    guards = [name for name in metadata.tag_names() if is_guard(name)]
    for tag in metadata.tag_names():
        if tag not in guards:
            delete_tag(table, tag)
    # Both count back from the latest snapshot, which always exists.
    gone = [expire_snapshots(table, 1, 1), expire_changelogs(table, 1, 1)]
    for tag in guards:
        if tag in metadata.tag_names():
            delete_tag(table, tag)
    counted: dict[str, Any] = {
        "snapshots": sum(each.snapshots for each in gone),
        "changelogs": sum(each.changelogs for each in gone),
        "files": sum(each.files for each in gone),
    }
    return PurgeResult(**{**{f.name: getattr(found, f.name) for f in fields(found)}, **counted})
