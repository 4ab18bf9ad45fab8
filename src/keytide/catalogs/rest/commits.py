"""Commits of a table whose catalog determines the latest snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keytide.catalogs.rest.client import MISSING, Answer, LostAnswerError, RestTable
from keytide.catalogs.rest.keeper import RestKeeper
from keytide.errors import DataError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.checksum import SEAL_KEY
from keytide.format.schema import TableSchema
from keytide.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot
from keytide.snapshot.commits import (
    FOLDER_COMMITS,
    Found,
    PartitionChange,
    TellChanges,
    UnknownOutcomeError,
    no_changes,
)
from keytide.snapshot.lineage import known_newest
from keytide.store import Store

__all__ = ["RestCommits"]

_TRIES = 3
_DELTA = "deltaManifestList"


@dataclass(frozen=True)
class RestCommits:
    """The catalog accepts a snapshot if its base, given by uuid, is the latest one. See `Commits`.

    It stores each snapshot under the format's name. For the catalog, a branch is a separate table.
    Its latest snapshot is read from its folder, because catalogs may return the table's latest
    snapshot for a new branch.
    """

    table: RestTable

    @property
    def keeper(self) -> RestKeeper:
        """See `Commits`."""
        return RestKeeper(self.table)

    def newest(self, store: Store, known: Found | None) -> Sequence[Found]:
        """See `Commits`. One request, and one to the store if the table has changed."""
        if _is_branch(store):
            return FOLDER_COMMITS.newest(store, known)
        head = self._head(store)
        if head is None or known is None or known.number > head.number:
            return [] if head is None else [head]
        there = head if known.number == head.number else _stored(store, known.number)
        # Catalogs and engines serialize the same snapshot differently.
        if there is None or not _is_same(there, known):
            return [head]
        return [known] if there is head else [known, head]

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """See `Commits`. After a lost response, look for the snapshot by the files that it names.

        If it does not exist, it is sent again. This is safe, because the catalog accepts only one
        snapshot on top of the same base. Raises `ConflictError` if the table no longer exists.
        """
        sent = _members(data)
        body: dict[str, Any] = {
            "tableId": self._id(store),
            "baseSnapshotUuid": self._base_uuid(store, snapshot_id),
            "snapshot": sent,
            "statistics": [_statistics(change) for change in changes()],
        }
        for _ in range(_TRIES):
            is_made, lost = self._sent(store, body)
            # The lost response may have been for this very snapshot.
            if is_made or self._is_found(store, snapshot_id, sent, lost):
                return True
            if lost is None:
                return False
        raise UnknownOutcomeError(str(lost)) from lost

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """See `Commits`.

        Raises `UnsupportedError`. The catalog does rollbacks, see `RestKeeper`.
        """
        raise UnsupportedError(
            f"{self.table}: only its catalog can roll back snapshots; call Table.rollback_to, or "
            "write the rows of the older snapshot again: "
            "table.overwrite(table.scan(snapshot_id=...))"
        )

    def ids(self, store: Store) -> list[int]:
        """See `Commits`."""
        there, head = FOLDER_COMMITS.ids(store), self._head(store)
        return [] if head is None else [number for number in there if number <= head.number]

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`. The catalog has already created the schema."""

    def _id(self, store: Store) -> str:
        """The catalog's id of the table or the branch."""
        return str(self.table.described(store).get("id")) if _is_branch(store) else self.table.id

    def _sent(self, store: Store, body: Mapping[str, Any]) -> tuple[bool, LostAnswerError | None]:
        """Whether the catalog accepted a snapshot and, if that is unknown, the error."""
        try:
            answer = self.table.post(store, "commit", body=body)
        except LostAnswerError as lost:
            return False, lost
        if answer.status == MISSING:
            raise self.table.gone(self.table.get(store))
        return answer.is_done and answer.document.get("success") is True, None

    def _head(self, store: Store) -> Found | None:
        """The latest snapshot in Keytide's serialization."""
        if _is_branch(store):
            return next(iter(FOLDER_COMMITS.newest(store, None)[-1:]), None)
        answer = self.table.get(store, "snapshot")
        if not answer.is_done:
            self._check_table(store, answer)
            return None
        where = f"the latest snapshot of {self.table} in {self.table.client.uri}"
        told = answer.object("snapshot", where).get("snapshot")
        if not isinstance(told, dict):
            raise DataError(f"{where}: the response contains no snapshot; check the service")
        snapshot = Snapshot.from_json(json.dumps(_unsealed(told)).encode(), where)
        return Found(snapshot.id, snapshot.to_json())

    def _check_table(self, store: Store, answer: Answer) -> None:
        """Raise `NotFoundError` unless only the snapshot is missing."""
        if answer.about != "SNAPSHOT" and not self.table.get(store).is_done:
            raise NotFoundError(
                f"{self.table} is no longer in the catalog {self.table.client.uri}: it was "
                "renamed or dropped; open it by its new name"
            )

    def _base_uuid(self, store: Store, snapshot_id: int) -> str | None:
        """The uuid of the base snapshot, None if it has none.

        Snapshots of Paimon before 2.0 have none. Then its catalogs accept the first of two
        snapshots with the same id.
        """
        known = known_newest(store)
        if known is None or known.number != snapshot_id - 1:
            known = _stored(store, snapshot_id - 1) if snapshot_id > FIRST_SNAPSHOT_ID else None
        return None if known is None else _members(known.data).get("uuid")

    def _is_found(
        self, store: Store, snapshot_id: int, sent: Mapping[str, Any], lost: LostAnswerError | None
    ) -> bool:
        """Whether a snapshot exists whose acceptance the catalog did not confirm."""
        try:
            return self._has(store, snapshot_id, sent)
        except DataError as error:
            raise UnknownOutcomeError(
                f"{lost or error}; it is unknown whether {self.table} has the commit"
            ) from error

    def _has(self, store: Store, snapshot_id: int, sent: Mapping[str, Any]) -> bool:
        head = self._head(store)
        if head is None or head.number < snapshot_id:
            return False
        there = head if head.number == snapshot_id else _stored(store, snapshot_id)
        # A manifest list is unique to a snapshot. Catalogs keep only the members that they know.
        return there is not None and _members(there.data).get(_DELTA) == sent[_DELTA]


def _statistics(change: PartitionChange) -> dict[str, Any]:
    return {
        "spec": dict(change.values),
        "recordCount": change.rows,
        "fileSizeInBytes": change.file_bytes,
        "fileCount": change.files,
        "lastFileCreationTime": change.newest_file_ms,
        "totalBuckets": change.total_buckets,
    }


def _is_branch(store: Store) -> bool:
    return branch_of(store) != paths.MAIN_BRANCH


def _stored(store: Store, number: int) -> Found | None:
    (data,) = store.read_present([paths.snapshot_path(number)])
    return None if data is None else Found(number, data)


def _is_same(one: Found, other: Found) -> bool:
    if one.data == other.data:
        return True
    first, second = (Snapshot.from_json(each.data, "snapshot") for each in (one, other))
    return first == second


def _members(data: bytes) -> dict[str, Any]:
    """The members of a snapshot, which was parsed or written before."""
    return _unsealed(json.loads(data))


def _unsealed(members: dict[str, Any]) -> dict[str, Any]:
    """The members without the checksum of bytes, because a catalog serializes them differently."""
    return {name: value for name, value in members.items() if name != SEAL_KEY}
