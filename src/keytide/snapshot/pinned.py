"""The metadata of a table at one moment.

Readers of pinned metadata always see the same state, no matter how much others commit in the
meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from keytide.errors import NotFoundError
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot, Tag
from keytide.snapshot.in_force import SchemasInForce
from keytide.snapshot.lineage import Known, Lineage
from keytide.snapshot.metadata import Look, TableMetadata

__all__ = ["PinnedMetadata", "pinned", "unmade"]

T = TypeVar("T")


@dataclass
class PinnedMetadata(TableMetadata):
    """The metadata of a table at the moment of a read from the store.

    What was not read at that moment, such as tags, is read on demand, and only once. Later
    snapshots do not exist here.
    """

    seen: Look = field(kw_only=True)
    _known: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def look(self) -> Look:
        """The result of the read."""
        return self.seen

    @property
    def lineage(self) -> Lineage:
        """Identifies which documents are meant."""
        return self.seen.lineage

    def _known_now(self) -> Known:
        return Known(self.lineage, self.latest_snapshot_id() or 0)

    def _remembered_so_far(self) -> Known:
        return self._known_now()

    def newest_schema(self) -> TableSchema:
        """The latest schema at that moment."""
        return self.seen.schemas.newest

    def schemas_in_force(self) -> SchemasInForce:
        """The schemas in force at that moment."""
        return self.seen.schemas

    def schema(self, schema_id: int) -> TableSchema:
        """See `TableMetadata`."""
        newest = self.seen.schemas.newest
        return newest if schema_id == newest.id else super().schema(schema_id)

    def latest_snapshot(self) -> Snapshot | None:
        """The latest snapshot at that moment. None if nothing was ever written."""
        return self._found(self.lineage, self.seen.snapshot)

    def latest_snapshot_id(self) -> int | None:
        """Its id."""
        return None if self.seen.snapshot is None else self.seen.snapshot.number

    def earliest_snapshot_id(self) -> int | None:
        """The id of the oldest snapshot."""
        return self.once("earliest", super().earliest_snapshot_id)

    def snapshot_ids(self) -> list[int]:
        """Ids of all snapshots, ascending."""
        last = self.latest_snapshot_id() or 0
        ids, _ = self.once("ids", self._listed_and_known)
        return [number for number in ids if number <= last]

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether the snapshot with that id existed."""
        return snapshot_id in self.snapshot_ids()

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """See `TableMetadata`."""
        newest_id = self.latest_snapshot_id() or 0
        if snapshot_id > newest_id:
            raise NotFoundError(self._why_missing(snapshot_id))
        newest = self.latest_snapshot() if snapshot_id == newest_id else None
        if newest is not None:
            return newest
        read = partial(super().snapshot, snapshot_id)
        return self.once(("snapshot", snapshot_id), read)

    def changelog_ids(self) -> list[int]:
        """Ids of the changelogs that have outlived their snapshots, ascending."""
        return self.once("changelogs", super().changelog_ids)

    def tag_names(self) -> list[str]:
        """Names of all tags, sorted."""
        return self.once("tags", super().tag_names)

    def has_tag(self, name: str) -> bool:
        """Whether there was a tag with that name."""
        return self._tag_if_there(name) is not None

    def _tag_if_there(self, name: str) -> Tag | None:
        return self.once(("tag", name), partial(super()._tag_if_there, name))

    def once(self, what: Hashable, read: Callable[[], T]) -> T:
        """The result of `read`, which is called once and cached for this moment under the key
        `what`.
        """
        # If two threads call at the same time, one wins, and both get its result.
        if what not in self._known:
            self._known.setdefault(what, read())
        value: T = self._known[what]
        return value


def pinned(metadata: TableMetadata) -> PinnedMetadata:
    """The current metadata of a table: one read, unless they are pinned already."""
    if isinstance(metadata, PinnedMetadata):
        return metadata
    look = metadata.look()
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, seen=look)


def unmade(metadata: TableMetadata, definition: TableSchema) -> PinnedMetadata:
    """The metadata that a table that does not exist yet would have right after its creation."""
    look = Look(Lineage(), SchemasInForce.of([definition]))
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, seen=look)
