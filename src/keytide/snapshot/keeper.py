"""A catalog that alone changes a table's schemas, tags, branches and list of snapshots.

In a table in a folder these are files, and each writer changes them directly: there is no keeper.
In a table of a catalog service, they are files that everybody can read, but only the service writes
them, on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keytide.definition.evolution import SchemaChange
from keytide.format.snapshot import Tag
from keytide.store import Store

__all__ = ["Keeper"]


class Keeper(Protocol):
    """Changes that only the catalog can make. `store` is rooted at the table or at a branch of it.

    Each call is one step: after it, the files in the store contain the requested change. Methods
    raise these errors:

    - `ConflictError`, with nothing changed, if the table is gone or was replaced by another one
    - `UnsupportedError` if the catalog does not support the operation
    - `DataError` if the catalog fails
    - `UnknownOutcomeError` if it fails but may have made the change
    """

    def alter(self, store: Store, changes: Sequence[SchemaChange]) -> None:
        """Make the changes in one new schema, based on the latest one."""
        ...

    def create_tag(self, store: Store, name: str, tag: Tag) -> bool:
        """Create a tag for a snapshot. False if a tag with that name exists."""
        ...

    def delete_tag(self, store: Store, name: str) -> None:
        """Delete a tag. It may be gone already."""
        ...

    def roll_back(self, store: Store, newest_id: int, target_id: int, tag: str | None) -> None:
        """Remove everything later than a snapshot. `tag` names the snapshot if only a tag keeps it.

        Raises `ConflictError` if `newest_id` is no longer the latest snapshot.
        """
        ...

    def create_branch(self, store: Store, name: str, tag: str | None) -> bool:
        """Create a branch from a tag, or an empty one. False if a branch with that name exists."""
        ...

    def delete_branch(self, store: Store, name: str) -> None:
        """Delete a branch. It may be gone already."""
        ...

    def rename_branch(self, store: Store, name: str, new_name: str) -> bool:
        """Rename a branch. False if a branch with the new name exists."""
        ...

    def fast_forward(self, store: Store, name: str) -> None:
        """Replace the state of the table with that of a branch."""
        ...
