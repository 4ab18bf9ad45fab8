"""Schemas, tags, branches and rollbacks of a table whose catalog writes these files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from keytide.catalogs.rest.client import (
    MISSING,
    TAKEN,
    Answer,
    LostAnswerError,
    RestTable,
    options_in,
)
from keytide.catalogs.rest.schema_changes import schema_changes
from keytide.definition.schema_evolution import SchemaChange
from keytide.errors import ConflictError, DataError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.branch import branch_of, main_store
from keytide.format.snapshot import Snapshot, Tag
from keytide.options import keys
from keytide.snapshot.commits import FOLDER_COMMITS, UnknownOutcomeError
from keytide.store import Store

__all__ = ["RestKeeper"]

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
        self._check_retention(store, name, tag)
        number, retained = tag.snapshot.id, _retained(tag)
        body = {"tagName": name, "snapshotId": number, "timeRetained": retained}
        try:
            answer = self._asked(store, "tags", body=body)
        except UnknownOutcomeError:
            if not _has_tag(store, name, tag.snapshot):
                raise
            return True
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
            self._check_newest(store, newest_id, target_id, lost)
            return
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
        self.table.described(store)
        try:
            answer = self.table.post(store, *rest, body=body)
        except LostAnswerError as lost:
            raise UnknownOutcomeError(
                f"{lost}; check the table to see whether it was done"
            ) from lost
        if answer.status == MISSING and answer.about == "TABLE":
            raise self.table.gone(answer)
        return answer

    def _forgotten(self, store: Store, *rest: str) -> None:
        """Remove something. It is no error if it does not exist."""
        self.table.described(store)
        for _ in range(_TRIES - 1):
            with suppress(LostAnswerError):
                self.table.delete(store, *rest)
                return
        self.table.delete(store, *rest)

    # -- responses --------------------------------------------------------------------------------

    def _check_retention(self, store: Store, name: str, tag: Tag) -> None:
        """Raise `UnsupportedError` if the catalog would not keep a tag forever as requested."""
        options = options_in(self.table.described(store), str(self.table))
        default = options.get(keys.TAG_DEFAULT_TIME_RETAINED)
        if tag.time_retained_ns is None and default is not None:
            raise UnsupportedError(
                f"{self.table}: tag {name!r} should be kept forever, but the catalog keeps tags "
                f"for '{default}' ('{keys.TAG_DEFAULT_TIME_RETAINED}') unless a time is given; "
                "give one, or RESET the option"
            )

    def _check_newest(
        self, store: Store, newest_id: int, target_id: int, lost: UnknownOutcomeError
    ) -> None:
        """Raise unless the latest snapshot is the rollback target."""
        newest = max(FOLDER_COMMITS.ids(store), default=0)
        if newest == target_id:
            return
        if newest > newest_id:
            raise ConflictError(
                f"{self.table}: other writers committed during the rollback, so nothing was "
                "changed; check their commits, and try again"
            ) from lost
        raise lost

    def _check_branch(self, name: str, answer: Answer) -> None:
        if answer.status == MISSING:
            raise NotFoundError(
                f"{self.table} has no branch {name!r} in its catalog ({_said(answer)}); it can "
                "have been deleted meanwhile"
            )


def _said(answer: Answer) -> str:
    status = "taken" if answer.status == TAKEN else "not found"
    return str(answer.document.get("message") or status)


def _retained(tag: Tag) -> str | None:
    """A duration in Paimon's format."""
    if tag.time_retained_ns is None:
        return None
    millis, rest = divmod(tag.time_retained_ns, _NS_PER_MS)
    return f"{tag.time_retained_ns} ns" if rest else f"{millis} ms"


def _has_tag(store: Store, name: str, snapshot: Snapshot) -> bool:
    path = paths.tag_path(name)
    (data,) = store.read_present([path])
    with suppress(DataError):
        return data is not None and Tag.from_json(data, path).snapshot == snapshot
    return False
