"""Which branches a table has, and each of them as a table."""

from __future__ import annotations

from keytide.errors import NotFoundError
from keytide.format import paths
from keytide.format.branch import BRANCH_MARK, BranchStore, branch_of, branched_name, main_store
from keytide.options import TableOptions, keys
from keytide.store import Store
from keytide.table.definition.external import refuse_external
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import PinnedTable, StoredTable

__all__ = [
    "branch_names",
    "has_branch",
    "open_branch",
    "open_table",
    "pinned_table",
    "table_name",
    "torn_branches",
]


def open_table(store: Store, name: str, branch: str | None = None) -> StoredTable:
    """The table that a store is rooted at, in a branch: that of its options where none is named.

    Raises `NotFoundError` where there is no such table or branch, `UnsupportedError` for an
    external table.
    """
    found = pinned_table(TableMetadata(store, name), branch)
    refuse_external(found.schema, found.name)
    return found.live


def pinned_table(metadata: TableMetadata, branch: str | None = None) -> PinnedTable:
    """The same as it is now: the look that opens it is the one by which it is read.

    Raises as `open_table`.
    """
    main = StoredTable.of(metadata).pinned()
    if branch is not None:
        return open_branch(main, branch).pinned()
    try:
        return open_branch(main, TableOptions.parse(main.schema.options).branch).pinned()
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; its option '{keys.BRANCH}' names that one: RESET it in "
            f"'{metadata.name}{BRANCH_MARK}{paths.MAIN_BRANCH}'"
        ) from error


def open_branch(table: StoredTable, branch: str) -> StoredTable:
    """A branch of the table that `table` is a branch of. Raises `NotFoundError` naming them."""
    if branch == branch_of(table.store):
        return table
    main, name = main_store(table.store), table_name(table)
    if branch == paths.MAIN_BRANCH:
        return StoredTable.of(table.live.metadata.by(main, name))
    if not has_branch(main, branch):
        there = ", ".join(branch_names(main)) or "no other than the main one"
        raise NotFoundError(f"table {name} has no branch {branch!r}; it has {there}")
    own = table.live.metadata.by(BranchStore(main, branch), branched_name(name, branch))
    return StoredTable.of(own)


def branch_names(store: Store) -> list[str]:
    """The branches of a table beside the main one, sorted."""
    main = main_store(store)
    names = map(paths.parse_branch_name, main.list_names(paths.branches_dir()))
    return sorted(name for name in names if name is not None and has_branch(main, name))


def has_branch(store: Store, branch: str) -> bool:
    """Whether there is a branch: its first schema is what makes it one."""
    own = BranchStore(main_store(store), branch)
    return own.exists(paths.schema_path(0))


def torn_branches(store: Store) -> list[str]:
    """What is left of branches that somebody died making or deleting, or is at work on."""
    main = main_store(store)
    names = map(paths.parse_branch_name, main.list_names(paths.branches_dir()))
    return sorted(
        name
        for name in names
        if name is not None
        and not has_branch(main, name)
        and main.exists(paths.unfinished_path(name))
    )


def table_name(table: StoredTable | TableMetadata) -> str:
    """The name of the table, whichever branch of it this is."""
    return table.name.removesuffix(f"{BRANCH_MARK}{branch_of(table.store)}")
