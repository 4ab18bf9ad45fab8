"""Deletes and renames branches after their background compactions have ended.

Otherwise, a compaction could commit to a branch that is gone, and leave a part of it.
"""

from __future__ import annotations

from keytide.format.branch import BranchStore, main_store
from keytide.maintenance.history import branches
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.snapshot.pinned import StoredTable

__all__ = ["delete_branch", "rename_branch"]


def delete_branch(table: StoredTable, name: str) -> None:
    """Delete a branch. Its own files are left for orphan removal.

    Raises `NotFoundError`, which lists the existing branches, `InvalidError` for one that an option
    of the table names, and `DataError` if the store fails. After that, it may be half deleted, and
    a repeated call continues.
    """
    _settle(table, name)
    branches.delete_branch(table, name)


def rename_branch(table: StoredTable, name: str, new_name: str) -> StoredTable:
    """Rename a branch. No data is copied, and no commit is lost.

    Until the new branch exists, the old one is unchanged. For a moment both exist, and commits to
    the old one are then moved too. After an interruption in between, a repeated call continues. A
    process that has the branch open under its old name no longer finds it.

    Raises `NotFoundError`, which lists the existing branches. Raises `AlreadyExistsError` or
    `InvalidError` for a new name that is taken or invalid. Raises `InvalidError` for 'main', and
    for a branch that an option of the table names. Raises `ConflictError`, and both branches exist,
    if one writer writes to the new name and another one to the old name in the meantime. Raises
    `DataError` if the store fails.
    """
    _settle(table, name)
    return branches.rename_branch(table, name, new_name)


def _settle(table: StoredTable, name: str) -> None:
    BEHIND.settle(BranchStore(main_store(table.store), name).uri_of(""))
