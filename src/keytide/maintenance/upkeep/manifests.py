"""Merges manifests on request, not only as part of other commits."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.base.record import Record
from keytide.commit.change import Conflict
from keytide.commit.manifest_picking import MergeRules, pick_all
from keytide.commit.transaction import Transaction
from keytide.errors import ConflictError
from keytide.format.snapshot import Snapshot
from keytide.maintenance.upkeep.afterwards import Made, follow
from keytide.snapshot.stored import StoredTable
from keytide.write.writable import writable_view

__all__ = ["MergedManifests", "commit_alike", "compact_manifest"]


@dataclass(frozen=True)
class MergedManifests(Record):
    """The number of manifests of a table, before and after they were merged.

    `snapshot_id` is None if there was nothing to merge, and no commit.
    """

    snapshot_id: int | None
    manifests_before: int
    manifests_after: int


def compact_manifest(table: StoredTable) -> MergedManifests:
    """Merge the manifests that are small or delete files, in a commit that changes no file.

    Other commits can be made at the same time. Older snapshots keep their manifests. Raises
    `ConflictError` if too many races were lost, and `DataError` if the store fails. Nothing is
    changed then.
    """
    view = writable_view(table)
    transaction = Transaction.begin(table, view)
    snapshot, metadata = transaction.state.snapshot, table.metadata
    before = [] if snapshot is None else metadata.manifests(snapshot)
    if not pick_all(before, MergeRules.of(view.options)).places:
        return MergedManifests(None, len(before), len(before))
    committed = _committed(transaction)
    after = metadata.manifests(committed)
    follow(Made(table, view, committed.id, "the manifests are merged"))
    return MergedManifests(committed.id, len(before), len(after))


def commit_alike(table: StoredTable, done: str) -> Snapshot:
    """The same in any case: a new snapshot that shows the same as the latest one.

    `done` says what this did.
    """
    view = writable_view(table)
    committed = _committed(Transaction.begin(table, view))
    follow(Made(table, view, committed.id, done))
    return committed


def _committed(transaction: Transaction) -> Snapshot:
    outcome = transaction.merge_manifests()
    if outcome is None or isinstance(outcome, Conflict):
        reason = "nothing was changed" if outcome is None else outcome.reason
        raise ConflictError(f"table {transaction.view.name}: {reason}")
    return outcome.snapshot
