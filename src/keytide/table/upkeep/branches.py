"""Branches that go or get another name, once nothing is compacted behind their writers any more.

A compaction that committed to a branch which is gone would leave a piece of it there.
"""

from __future__ import annotations

from keytide.format.branch import BranchStore, main_store
from keytide.table.history import branch_renaming, branches
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.behind import BEHIND

__all__ = ["delete_branch", "rename_branch"]


def delete_branch(table: StoredTable, name: str) -> None:
    """Delete a branch. What only it had stays for orphan cleaning.

    Raises `NotFoundError` naming the branches there are, `InvalidError` for one that an option
    of the table names, `DataError` when the store fails; after that it may be half deleted, and
    the same call goes on.
    """
    _settle(table, name)
    branches.delete_branch(table, name)


def rename_branch(table: StoredTable, name: str, new_name: str) -> StoredTable:
    """Give a branch another name. No data is copied, and none that is committed is lost.

    Until the new branch is there the old one is as it was. For a moment both are there, and
    what writers commit to the old one then moves along; after a stop in between, the same call
    goes on. Who has the branch open under its old name does not find it any more.

    Raises `NotFoundError` naming the branches there are, `AlreadyExistsError` and
    `InvalidError` for a new name that is taken or cannot be, `InvalidError` for 'main', and
    for a branch that an option of the table names; `ConflictError`, with both branches there,
    when somebody writes to the new name and another one to the old one meanwhile; `DataError`
    when the store fails.
    """
    _settle(table, name)
    return branch_renaming.rename_branch(table, name, new_name)


def _settle(table: StoredTable, name: str) -> None:
    BEHIND.settle(BranchStore(main_store(table.store), name).uri_of(""))
