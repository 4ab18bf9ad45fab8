"""Commits of a table whose catalog says which snapshot is the newest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keytide.errors import DataError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.branch import branch_of
from keytide.format.checksum import SEAL_KEY
from keytide.format.schema import TableSchema
from keytide.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot
from keytide.rest.client import MISSING, Answer, LostAnswerError
from keytide.rest.keeper import RestKeeper
from keytide.rest.table import RestTable
from keytide.store import Store
from keytide.table.state.commits import (
    FOLDER_COMMITS,
    Found,
    PartitionChange,
    TellChanges,
    UnknownOutcomeError,
    no_changes,
)
from keytide.table.state.lineage import known_newest

__all__ = ["RestCommits"]

_TRIES = 3
_DELTA = "deltaManifestList"


@dataclass(frozen=True)
class RestCommits:
    """The catalog takes a snapshot whose base, told by its uuid, is the newest one: see `Commits`.

    It stores each under the name of the format. To the catalog a branch is a table of its own,
    whose newest snapshot is read from its folder: what catalogs tell of a new branch may be the
    newest one of the table.
    """

    table: RestTable

    @property
    def keeper(self) -> RestKeeper:
        """See `Commits`."""
        return RestKeeper(self.table)

    def newest(self, store: Store, known: Found | None) -> Sequence[Found]:
        """See `Commits`. One request, and one of the store where the table went on."""
        if _is_branch(store):
            return FOLDER_COMMITS.newest(store, known)
        head = self._head(store)
        if head is None or known is None or known.number > head.number:
            return [] if head is None else [head]
        there = head if known.number == head.number else _stored(store, known.number)
        # Catalogs and engines write the same snapshot in other words.
        if there is None or not _is_same(there, known):
            return [head]
        return [known] if there is head else [known, head]

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """See `Commits`. After a lost answer the snapshot is looked for, by the files it names.

        Where it is not there it is sent again, which does no harm: of all that are sent on top of
        one snapshot, the catalog takes one. Raises `ConflictError` where the table is no more.
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
            # An answer that was lost may have been to the very same snapshot.
            if is_made or self._is_found(store, snapshot_id, sent, lost):
                return True
            if lost is None:
                return False
        raise UnknownOutcomeError(str(lost)) from lost

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """See `Commits`. Raises `UnsupportedError`: the catalog rolls back, see `RestKeeper`."""
        raise UnsupportedError(
            f"{self.table}: its catalog alone takes snapshots back; call Table.rollback_to, or "
            f"write the rows of the older snapshot as new ones: "
            f"table.overwrite(table.scan(snapshot_id=...))"
        )

    def ids(self, store: Store) -> list[int]:
        """See `Commits`."""
        there, head = FOLDER_COMMITS.ids(store), self._head(store)
        return [] if head is None else [number for number in there if number <= head.number]

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`. The catalog has made the schema itself."""

    def _id(self, store: Store) -> str:
        """The id by which the catalog knows the table, or the branch."""
        return str(self.table.described(store).get("id")) if _is_branch(store) else self.table.id

    def _sent(self, store: Store, body: Mapping[str, Any]) -> tuple[bool, LostAnswerError | None]:
        """Whether the catalog took a snapshot; or, where nobody can tell, what was lost."""
        try:
            answer = self.table.post(store, "commit", body=body)
        except LostAnswerError as lost:
            return False, lost
        if answer.status == MISSING:
            raise self.table.gone(self.table.get(store))
        return answer.is_done and answer.document.get("success") is True, None

    def _head(self, store: Store) -> Found | None:
        """The newest snapshot, as Keytide writes it."""
        if _is_branch(store):
            return next(iter(FOLDER_COMMITS.newest(store, None)[-1:]), None)
        answer = self.table.get(store, "snapshot")
        if not answer.is_done:
            self._check_table(store, answer)
            return None
        told = (answer.document.get("snapshot") or {}).get("snapshot")
        where = f"the newest snapshot of {self.table} in {self.table.client.uri}"
        if not isinstance(told, dict):
            raise DataError(f"{where}: the answer names no snapshot; look at the service")
        snapshot = Snapshot.from_json(json.dumps(_unsealed(told)).encode(), where)
        return Found(snapshot.id, snapshot.to_json())

    def _check_table(self, store: Store, answer: Answer) -> None:
        """Raise `NotFoundError` unless it is a snapshot alone that is missing."""
        if answer.about != "SNAPSHOT" and not self.table.get(store).is_done:
            raise NotFoundError(
                f"{self.table} is not in the catalog {self.table.client.uri} any more: it was "
                f"renamed or dropped; open it by its new name"
            )

    def _base_uuid(self, store: Store, snapshot_id: int) -> str | None:
        """What tells the snapshot that another one is made on; None where it has no such mark.

        Paimon before 2.0 has none: of two snapshots of one id its catalogs take the first.
        """
        known = known_newest(store)
        if known is None or known.number != snapshot_id - 1:
            known = _stored(store, snapshot_id - 1) if snapshot_id > FIRST_SNAPSHOT_ID else None
        return None if known is None else _members(known.data).get("uuid")

    def _is_found(
        self, store: Store, snapshot_id: int, sent: Mapping[str, Any], lost: LostAnswerError | None
    ) -> bool:
        """Whether a snapshot is there that the catalog did not say it took."""
        try:
            return self._has(store, snapshot_id, sent)
        except DataError as error:
            raise UnknownOutcomeError(
                f"{lost or error}; whether {self.table} has the commit could not be seen"
            ) from error

    def _has(self, store: Store, snapshot_id: int, sent: Mapping[str, Any]) -> bool:
        head = self._head(store)
        if head is None or head.number < snapshot_id:
            return False
        there = head if head.number == snapshot_id else _stored(store, snapshot_id)
        # No two snapshots name the same list, and catalogs keep no more than the members they know.
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
    """The members of a snapshot of the table, which was read or written as such before."""
    return _unsealed(json.loads(data))


def _unsealed(members: dict[str, Any]) -> dict[str, Any]:
    """Without the checksum, which is of bytes: a catalog stores members in its own words."""
    return {name: value for name, value in members.items() if name != SEAL_KEY}
