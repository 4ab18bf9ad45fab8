"""Commits, schemas, tags, branches and rollbacks of a table whose catalog service writes them.

The catalog determines the latest snapshot. Schema changes are sent in the format of the protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from keytide.base.dataclass import dataclass
from keytide.catalogs.rest.client import (
    MISSING,
    TAKEN,
    Answer,
    LostAnswerError,
    RestTable,
    options_in,
)
from keytide.definition.schema_evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
)
from keytide.errors import ConflictError, DataError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.checksum import SEAL_KEY
from keytide.format.paths import branch_of, main_store
from keytide.format.schema import TableSchema, assign_field_ids
from keytide.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot, Tag
from keytide.options import keys
from keytide.snapshot.authority import (
    FOLDER_COMMITS,
    NumberedDocument,
    TellChanges,
    UnknownOutcomeError,
    no_changes,
)
from keytide.snapshot.lineage import last_seen
from keytide.store import Store
from keytide.types import DataType, Field

# -- schema changes in the format of the protocol --------------------------------------------------


ChangeDocument = dict[str, Any]


def schema_changes(changes: Sequence[SchemaChange]) -> list[ChangeDocument]:
    """The changes as a request body, in order. Raises `UnsupportedError`."""
    return [document for change in changes for document in _documents(change)]


def _documents(change: SchemaChange) -> Iterator[ChangeDocument]:
    match change:
        case SetOption():
            yield {"action": "setOption", "key": change.key, "value": change.value}
        case RemoveOption():
            yield {"action": "removeOption", "key": change.key}
        case ChangeComment(path=()):
            yield {"action": "updateComment", "comment": change.comment}
        case ChangeComment():
            yield _column("updateColumnComment", change.path, newComment=change.comment)
        case AddColumn():
            move = None if change.position is None else _move(change.path[-1], change.position)
            type_, note = _stored(change.type), change.comment
            yield _column("addColumn", change.path, dataType=type_, comment=note, move=move)
            if change.default is not None:
                value = change.default
                yield _column("updateColumnDefaultValue", change.path, newDefaultValue=value)
        case RenameColumn():
            yield _column("renameColumn", change.path, newName=change.new_name)
        case DropColumn():
            yield _column("dropColumn", change.path)
        case ChangeColumnType():
            type_ = _stored(change.type)
            yield _column("updateColumnType", change.path, newDataType=type_, keepNullability=True)
        case ChangeColumnNullability():
            yield _column("updateColumnNullability", change.path, newNullability=change.nullable)
        case MoveColumn():
            if len(change.path) > 1:
                raise UnsupportedError(
                    f"column {'.'.join(change.path)} cannot be moved: a REST catalog moves only "
                    "top-level columns, not fields of a ROW"
                )
            yield {"action": "updateColumnPosition", "move": _move(change.path[0], change.position)}
        case _:
            raise AssertionError(change)


def _column(action: str, path: Sequence[str], **members: Any) -> ChangeDocument:
    return {"action": action, "fieldNames": [*path], **members}


def _move(name: str, position: Position) -> ChangeDocument:
    if isinstance(position, After):
        return {"fieldName": name, "referenceFieldName": position.name, "type": "AFTER"}
    return {"fieldName": name, "referenceFieldName": None, "type": "FIRST"}


def _stored(type_: DataType) -> str | ChangeDocument:
    """A type in schema format. The catalog assigns new ids to its parts, but requires some."""
    (numbered,) = assign_field_ids([Field(-1, "any", type_)], 0)
    return numbered.type.to_json()


# -- schemas ---------------------------------------------------------------------------------------


_TRIES = 3
_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class RestKeeper:
    """Sends a request to the catalog for each change. See `Keeper`.

    The requests do not contain the table's id, so the table is checked before each of them.
    """

    table: RestTable

    def alter(self, store: Store, changes: Sequence[SchemaChange]) -> None:
        """See `Keeper`."""
        answer = self._asked(store, body={"changes": schema_changes(changes)})
        if not answer.is_done:
            raise ConflictError(
                f"{self.table}: {self.table.client.uri} did not make the changes "
                f"({_said(answer)}): another change was made first; check the new schema and try "
                "again"
            )

    def create_tag(self, store: Store, name: str, tag: Tag) -> bool:
        """See `Keeper`. Raises `NotFoundError` for a snapshot that only exists in other tags."""
        # Raise `UnsupportedError` if the catalog would not keep a tag forever as requested.
        options = options_in(self.table.description(store), str(self.table))
        default = options.get(keys.TAG_DEFAULT_TIME_RETAINED)
        if tag.time_retained_ns is None and default is not None:
            raise UnsupportedError(
                f"{self.table}: tag {name!r} should be kept forever, but the catalog keeps tags "
                f"for '{default}' ('{keys.TAG_DEFAULT_TIME_RETAINED}') unless a time is given; "
                "give one, or RESET the option"
            )
        number, retained = tag.snapshot.id, None
        if tag.time_retained_ns is not None:
            # A duration in Paimon's format.
            millis, rest = divmod(tag.time_retained_ns, _NS_PER_MS)
            retained = f"{tag.time_retained_ns} ns" if rest else f"{millis} ms"
        body = {"tagName": name, "snapshotId": number, "timeRetained": retained}
        try:
            answer = self._asked(store, "tags", body=body)
        except UnknownOutcomeError:
            path = paths.tag_path(name)
            (data,) = store.read_present([path])
            with suppress(DataError):
                if data is not None and Tag.from_json(data, path).snapshot == tag.snapshot:
                    return True
            raise
        if answer.status == MISSING:
            raise NotFoundError(
                f"{self.table} has no snapshot {number} that the catalog could tag "
                f"({_said(answer)}); use one that has not expired"
            )
        return answer.is_done

    def delete_tag(self, store: Store, name: str) -> None:
        """See `Keeper`."""
        self._forgotten(store, "tags", name)

    def roll_back(self, store: Store, newest_id: int, target_id: int, tag: str | None) -> None:
        """See `Keeper`."""
        place: dict[str, Any] = {"type": "snapshot", "snapshotId": target_id}
        if tag is not None:
            place = {"type": "tag", "tagName": tag}
        body = {"instant": place, "fromSnapshot": newest_id}
        try:
            answer = self._asked(store, "rollback", body=body)
        except UnknownOutcomeError as lost:
            # The response is the same for a failure and for a commit by others.
            newest = max(FOLDER_COMMITS.ids(store), default=0)
            if newest == target_id:
                return
            if newest > newest_id:
                raise ConflictError(
                    f"{self.table}: other writers committed during the rollback, so nothing was "
                    "changed; check their commits, and try again"
                ) from lost
            raise
        if not answer.is_done:
            raise NotFoundError(
                f"{self.table} has no snapshot {target_id} that the catalog could roll back to "
                f"({_said(answer)}); use an existing one"
            )

    def create_branch(self, store: Store, name: str, tag: str | None) -> bool:
        """See `Keeper`."""
        answer = self._asked(store, "branches", body={"branch": name, "fromTag": tag})
        if answer.status == MISSING:
            raise NotFoundError(
                f"{self.table}: the catalog did not create branch {name!r} from tag {tag!r} "
                f"({_said(answer)}); check that the tag exists"
            )
        return answer.is_done

    def delete_branch(self, store: Store, name: str) -> None:
        """See `Keeper`."""
        self._forgotten(main_store(store), "branches", name)

    def rename_branch(self, store: Store, name: str, new_name: str) -> bool:
        """See `Keeper`."""
        main = main_store(store)
        answer = self._asked(main, "branches", name, "rename", body={"toBranch": new_name})
        self._check_branch(name, answer)
        return answer.is_done

    def fast_forward(self, store: Store, name: str) -> None:
        """See `Keeper`. Raises `UnsupportedError` for a table that is a branch."""
        if branch_of(store) != paths.MAIN_BRANCH:
            raise UnsupportedError(
                f"{self.table}: a REST catalog can fast-forward only the main branch; write the "
                f"rows of {name!r} to branch {branch_of(store)!r} instead"
            )
        self._check_branch(name, self._asked(store, "branches", name, "forward", body={}))

    # -- requests ---------------------------------------------------------------------------------

    def _asked(self, store: Store, *rest: str, body: Mapping[str, Any]) -> Answer:
        """The catalog's response to a change. An object may be missing or exist already."""
        self.table.description(store)
        try:
            answer = self.table.post(store, *rest, body=body)
        except LostAnswerError as lost:
            raise UnknownOutcomeError(
                f"{lost}; check the table to see whether it was done"
            ) from lost
        if answer.status == MISSING and answer.about == "TABLE":
            raise self.table.gone_error(answer)
        return answer

    def _forgotten(self, store: Store, *rest: str) -> None:
        """Remove something. It is no error if it does not exist."""
        self.table.description(store)
        for _ in range(_TRIES - 1):
            with suppress(LostAnswerError):
                self.table.delete(store, *rest)
                return
        self.table.delete(store, *rest)

    def _check_branch(self, name: str, answer: Answer) -> None:
        if answer.status == MISSING:
            raise NotFoundError(
                f"{self.table} has no branch {name!r} in its catalog ({_said(answer)}); it can "
                "have been deleted meanwhile"
            )


def _said(answer: Answer) -> str:
    status = "taken" if answer.status == TAKEN else "not found"
    return str(answer.document.get("message") or status)


# -- commits ---------------------------------------------------------------------------------------


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

    def newest(self, store: Store, known: NumberedDocument | None) -> Sequence[NumberedDocument]:
        """See `Commits`. One request, and one to the store if the table has changed."""
        if branch_of(store) != paths.MAIN_BRANCH:
            return FOLDER_COMMITS.newest(store, known)
        head = self._head(store)
        if head is None or known is None or known.number > head.number:
            return [] if head is None else [head]
        there = head if known.number == head.number else _commits_stored(store, known.number)
        if there is None:
            return [head]
        if there.data != known.data:
            # Catalogs and engines serialize the same snapshot differently.
            now, before = (Snapshot.from_json(each.data, "snapshot") for each in (there, known))
            if now != before:
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

        # The uuid of the base snapshot, None if it has none. Snapshots of Paimon before 2.0 have
        # none. Then its catalogs accept the first of two snapshots with the same id.
        known = last_seen(store).snapshot
        if known is None or known.number != snapshot_id - 1:
            known = (
                _commits_stored(store, snapshot_id - 1) if snapshot_id > FIRST_SNAPSHOT_ID else None
            )
        base_uuid = None if known is None else _members(known.data).get("uuid")
        # A branch has its own id.
        is_branch = branch_of(store) != paths.MAIN_BRANCH
        table_id = str(self.table.description(store).get("id")) if is_branch else self.table.id
        body: dict[str, Any] = {
            "tableId": table_id,
            "baseSnapshotUuid": base_uuid,
            "snapshot": sent,
            "statistics": [
                {
                    "spec": dict(change.values),
                    "recordCount": change.rows,
                    "fileSizeInBytes": change.file_bytes,
                    "fileCount": change.files,
                    "lastFileCreationTime": change.newest_file_ms,
                    "totalBuckets": change.total_buckets,
                }
                for change in changes()
            ],
        }
        for _ in range(_TRIES):
            lost: LostAnswerError | None = None
            try:
                answer = self.table.post(store, "commit", body=body)
            except LostAnswerError as error:
                lost = error
            else:
                if answer.status == MISSING:
                    raise self.table.gone_error(self.table.get(store))
                if answer.is_done and answer.document.get("success") is True:
                    return True
            # The lost response may have been for this very snapshot.
            if self._is_found(store, snapshot_id, sent, lost):
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

    def _head(self, store: Store) -> NumberedDocument | None:
        """The latest snapshot in Keytide's serialization."""
        if branch_of(store) != paths.MAIN_BRANCH:
            return next(iter(FOLDER_COMMITS.newest(store, None)[-1:]), None)
        answer = self.table.get(store, "snapshot")
        if not answer.is_done:
            # Raise `NotFoundError` unless only the snapshot is missing.
            if answer.about != "SNAPSHOT" and not self.table.get(store).is_done:
                raise NotFoundError(
                    f"{self.table} is no longer in the catalog {self.table.client.uri}: it was "
                    "renamed or dropped; open it by its new name"
                )
            return None
        where = f"the latest snapshot of {self.table} in {self.table.client.uri}"
        document = answer.object("snapshot", where).get("snapshot")
        if not isinstance(document, dict):
            raise DataError(f"{where}: the response contains no snapshot; check the service")
        snapshot = Snapshot.from_json(json.dumps(_unsealed(document)).encode(), where)
        return NumberedDocument(snapshot.id, snapshot.to_json())

    def _is_found(
        self, store: Store, snapshot_id: int, sent: Mapping[str, Any], lost: LostAnswerError | None
    ) -> bool:
        """Whether a snapshot exists whose acceptance the catalog did not confirm."""
        try:
            head = self._head(store)
            if head is None or head.number < snapshot_id:
                return False
            there = head if head.number == snapshot_id else _commits_stored(store, snapshot_id)
            # A manifest list is unique to a snapshot. Catalogs keep only the members that they
            # know.
            return there is not None and _members(there.data).get(_DELTA) == sent[_DELTA]
        except DataError as error:
            raise UnknownOutcomeError(
                f"{lost or error}; it is unknown whether {self.table} has the commit"
            ) from error


def _commits_stored(store: Store, number: int) -> NumberedDocument | None:
    (data,) = store.read_present([paths.snapshot_path(number)])
    return None if data is None else NumberedDocument(number, data)


def _members(data: bytes) -> dict[str, Any]:
    """The members of a snapshot, which was parsed or written before."""
    return _unsealed(json.loads(data))


def _unsealed(members: dict[str, Any]) -> dict[str, Any]:
    """The members without the checksum of bytes, because a catalog serializes them differently."""
    return {name: value for name, value in members.items() if name != SEAL_KEY}
