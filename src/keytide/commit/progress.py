"""The progress of a feed, stored in the properties of the snapshot that contains its rows.

Rows and progress are one commit. So a reader that continues from the stored progress skips nothing
and repeats nothing. A rollback takes the progress back with the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from keytide.errors import NotFoundError
from keytide.format.snapshot import Snapshot
from keytide.snapshot.metadata import TableMetadata

__all__ = ["Progress", "told_progress"]


@dataclass(frozen=True)
class Progress:
    """Properties that a commit sets, and the values that they must have before. None: not set."""

    before: Mapping[str, str | None]
    after: Mapping[str, str]
    stands_alone: bool = True
    """Whether it is worth a commit without rows."""

    def differing(self, told: Mapping[str, str]) -> str | None:
        """The first property that somebody else has set since then. None if there is none."""
        changed = (name for name, value in self.before.items() if told.get(name) != value)
        return next(changed, None)


def told_progress(
    metadata: TableMetadata, newest: Snapshot | None, names: Collection[str]
) -> dict[str, str]:
    """The latest values of those properties that are set.

    Every commit of Keytide carries them on. Other engines do not, so earlier snapshots are searched
    too, as far as they exist.
    """
    told: dict[str, str] = {}
    for snapshot_id in range(0 if newest is None else newest.id, 0, -1):
        try:
            snapshot = metadata.remembered(snapshot_id)
        except NotFoundError:
            break
        found = snapshot.properties or {}
        told = {**{name: found[name] for name in names if name in found}, **told}
        if len(told) == len(names):
            break
    return told
