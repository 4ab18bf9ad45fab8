"""A catalog that alone changes a table's schemas, tags, branches and line of snapshots.

Of a table in a folder these are files, written by whoever changes them, and it has no keeper. Of a
table that a service keeps they are files as well, which anybody reads, and the service writes them
when it is asked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keytide.format.snapshot import Tag
from keytide.store import Store
from keytide.table.definition.evolution import SchemaChange

__all__ = ["Keeper"]


class Keeper(Protocol):
    """Changes what only it may change. `store` is rooted at the table, or at a branch of it.

    Each call is one step: afterwards, the files in the store are what was asked for. Methods raise
    `ConflictError`, with nothing changed, where the table is gone or is another one by now;
    `UnsupportedError` for what the catalog has no way to do; `DataError` when it fails,
    `UnknownOutcomeError` where it may have done it all the same.
    """

    def alter(self, store: Store, changes: Sequence[SchemaChange]) -> None:
        """Make the changes, in one schema, on top of whatever is the newest one."""
        ...

    def create_tag(self, store: Store, name: str, tag: Tag) -> bool:
        """Name a snapshot; False where there is a tag of that name."""
        ...

    def delete_tag(self, store: Store, name: str) -> None:
        """Forget a tag, which may be gone already."""
        ...

    def roll_back(self, store: Store, newest_id: int, target_id: int, tag: str | None) -> None:
        """Take everything later than a snapshot away; `tag` names it where a tag alone keeps it.

        Raises `ConflictError` where the newest snapshot is not `newest_id` any more.
        """
        ...

    def create_branch(self, store: Store, name: str, tag: str | None) -> bool:
        """Make a branch of a tag, or an empty one; False where there is one of that name."""
        ...

    def delete_branch(self, store: Store, name: str) -> None:
        """Forget a branch, which may be gone already."""
        ...

    def rename_branch(self, store: Store, name: str, new_name: str) -> bool:
        """Give a branch another name; False where there is one of that name."""
        ...

    def fast_forward(self, store: Store, name: str) -> None:
        """Make the table what a branch of it is."""
        ...
