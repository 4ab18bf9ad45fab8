"""The branches of a table, and each branch opened as a table."""

from __future__ import annotations

from keytide.definition.kind import refuse_external
from keytide.errors import NotFoundError
from keytide.format import paths
from keytide.format.paths import BRANCH_MARK, BranchStore, branch_of, branched_name, main_store
from keytide.options import TableOptions, keys
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.store import Store

# -- branches as tables ----------------------------------------------------------------------------


def open_table(store: Store, name: str, branch: str | None = None) -> StoredTable:
    """Open the table at the root of a store, in a branch.

    Default: the branch in the table's options. Raises `NotFoundError` if there is no such table or
    branch, and `UnsupportedError` for an external table.
    """
    found = pinned_table(TableMetadata(store, name), branch)
    refuse_external(found.schema, found.name)
    return found.live


def pinned_table(metadata: TableMetadata, branch: str | None = None) -> PinnedTable:
    """The same table, pinned to its current state. The request that opens the table also pins it.

    Raises the same errors as `open_table`.
    """
    main = StoredTable.of(metadata).pinned()
    if branch is not None:
        return open_branch(main, branch).pinned()
    try:
        return open_branch(main, TableOptions.parse(main.schema.options).branch).pinned()
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; the option '{keys.BRANCH}' names this branch: RESET it in "
            f"'{metadata.name}{BRANCH_MARK}{paths.MAIN_BRANCH}'"
        ) from error


def open_branch(table: StoredTable, branch: str) -> StoredTable:
    """Open another branch of the table that `table` belongs to.

    Raises `NotFoundError`, which lists the existing branches.
    """
    if branch == branch_of(table.store):
        return table
    main, name = main_store(table.store), table_name(table)
    if branch == paths.MAIN_BRANCH:
        return StoredTable.of(table.live.metadata.by(main, name))
    if not has_branch(main, branch):
        there = ", ".join(branch_names(main)) or "only the main branch"
        raise NotFoundError(f"table {name} has no branch {branch!r}; existing branches: {there}")
    own = table.live.metadata.by(BranchStore(main, branch), branched_name(name, branch))
    return StoredTable.of(own)


def branch_names(store: Store) -> list[str]:
    """The names of a table's branches, sorted, without the main branch."""
    main = main_store(store)
    names = map(paths.parse_branch_name, main.list_names(paths.branches_dir()))
    return sorted(name for name in names if name is not None and has_branch(main, name))


def has_branch(store: Store, branch: str) -> bool:
    """Whether a branch exists. A branch exists if it has its first schema."""
    own = BranchStore(main_store(store), branch)
    return own.exists(paths.schema_path(0))


def torn_branches(store: Store) -> list[str]:
    """Incomplete branches: another process is creating or deleting them, or died while it did
    so.
    """
    main, torn = main_store(store), []
    for name in map(paths.parse_branch_name, main.list_names(paths.branches_dir())):
        if name is None or has_branch(main, name):
            continue
        # Such a branch is marked as unfinished, or has no document.
        if main.exists(paths.unfinished_path(name)) or all(
            paths.is_temporary(info.path.rpartition("/")[2])
            for info in main.list(paths.branch_dir(name))
        ):
            torn.append(name)
    return sorted(torn)


def table_name(table: StoredTable | TableMetadata) -> str:
    """The name of the table, without the name of the branch."""
    return table.name.removesuffix(f"{BRANCH_MARK}{branch_of(table.store)}")
