"""Renames a branch: copies its documents to the new name, and then removes them from the old name.

During this, both names have the same mark. Before the new branch exists, the old one is unchanged.
From then on, a repeated call finds the two marks and continues where the previous one stopped.
Commits to the old name in the meantime are moved too. Data files and manifests stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
)
from keytide.format import paths
from keytide.format.branch import BranchStore, main_store
from keytide.maintenance.history.branches import begin_work, check_name, refuse_named, taken
from keytide.snapshot.branches import has_branch, open_branch, table_name
from keytide.snapshot.stored import StoredTable
from keytide.store import created

__all__ = ["rename_branch"]

_FIRST = paths.schema_path(0)
# Each round copies what has been committed since the previous round.
_ROUNDS_MAX = 100


def rename_branch(table: StoredTable, name: str, new_name: str) -> StoredTable:
    """Rename a branch, including what writers commit to the old name in the meantime."""
    check_name(table, new_name)
    if name == paths.MAIN_BRANCH:
        raise InvalidError(
            f"table {table_name(table)}: {name!r} is the main branch, which cannot be renamed; "
            "name another branch"
        )
    if name == new_name:
        raise AlreadyExistsError(
            f"table {table_name(table)}: branch {name!r} already has this name"
        )
    refuse_named(table, name, "renamed")
    keeper = table.metadata.commits.keeper
    if keeper is not None:
        open_branch(table, name)
        if not keeper.rename_branch(table.store, name, new_name):
            raise taken(table, new_name)
        return open_branch(table, new_name)
    main = main_store(table.store)
    renaming = _Renaming(table, BranchStore(main, name), BranchStore(main, new_name))
    if not renaming.is_half_done():
        open_branch(table, name)
        renaming.copy()
    renaming.leave()
    return open_branch(table, new_name)


@dataclass(frozen=True)
class _Renaming:
    """A branch that is being renamed."""

    table: StoredTable
    old: BranchStore
    new: BranchStore

    def is_half_done(self) -> bool:
        """Whether the new branch exists, and a process died before the old one was deleted."""
        marks = [self._mark(store) for store in (self.old, self.new)]
        return has_branch(self.new, self.new.branch) and marks[0] == marks[1] != b""

    def _mark(self, store: BranchStore) -> bytes:
        path = paths.unfinished_path(store.branch)
        return store.main.read(path) if store.main.exists(path) else b""

    # -- the new name -----------------------------------------------------------------------------

    def copy(self) -> None:
        """Create the new branch.

        After an error it does not exist, unless the outcome is unknown.
        """
        mark = begin_work(self.table, self.new)
        if has_branch(self.new, self.new.branch):  # created in the meantime
            self.new.main.discard([paths.unfinished_path(self.new.branch)])
            raise taken(self.table, self.new.branch)
        try:
            copied = self._documents()
            data = self.old.main.read_all([self._in(self.old, path) for path in copied])
            files = dict(zip(copied, data, strict=True))
            first = files.pop(_FIRST)
            self.new.put_all(files)
            self.old.main.put(paths.unfinished_path(self.old.branch), mark)
            if not created(self.new, _FIRST, first):
                raise taken(self.table, self.new.branch)
            self._drop_expired(copied)
        except (KeytideError, KeyboardInterrupt):
            with suppress(DataError):
                if not has_branch(self.new, self.new.branch):
                    self.old.main.delete([paths.unfinished_path(self.old.branch)])
                    self.new.main.delete_tree(paths.branch_dir(self.new.branch))
            raise

    def _drop_expired(self, copied: Sequence[str]) -> None:
        """Delete copies of what was deleted in the meantime: its files may not have been
        protected.
        """
        kept = {paths.snapshot_dir(), paths.tag_dir(), paths.changelog_dir()}
        there = set(self._documents())
        gone = [path for path in copied if path not in there and path.split("/")[0] in kept]
        self.new.delete(gone)

    # -- the old name -----------------------------------------------------------------------------

    def leave(self) -> None:
        """Move what was added in the meantime, and delete the old branch."""
        self.old.delete([_FIRST])
        for _ in range(_ROUNDS_MAX):
            documents = self._documents()
            if not documents:
                break
            for path in self._late(documents):
                self._take_along(path)
            self.old.delete(reversed(documents))
        else:
            raise ConflictError(
                f"table {table_name(self.table)}: other writers keep committing to branch "
                f"{self.old.branch!r} while it is renamed; stop them and try again"
            )
        self.old.main.delete_tree(paths.branch_dir(self.old.branch))
        self.new.main.discard([paths.unfinished_path(self.new.branch)])

    def _late(self, documents: Sequence[str]) -> list[str]:
        """Schemas and snapshots that the new branch still needs, in the order to add them."""
        oldest = self.table.metadata.by(self.new, self.table.name).earliest_snapshot_id() or 0
        schemas = _numbers(documents, paths.schema_dir(), paths.parse_schema_name)
        snapshots = _numbers(documents, paths.snapshot_dir(), paths.parse_snapshot_name)
        return [
            *map(paths.schema_path, schemas),
            *(paths.snapshot_path(number) for number in snapshots if number >= oldest),
        ]

    def _take_along(self, path: str) -> None:
        data = self.old.main.read(self._in(self.old, path))
        if self.new.exists(path):
            is_there = self.new.read(path) == data
        else:
            is_there = created(self.new, path, data)
        if is_there:
            return
        self.old.create(_FIRST, self.new.read(_FIRST))
        marks = [paths.unfinished_path(store.branch) for store in (self.old, self.new)]
        self.new.main.delete(marks)
        raise ConflictError(
            f"table {table_name(self.table)}: other writers created {path} in branches "
            f"{self.old.branch!r} and {self.new.branch!r} during the renaming. Both branches "
            "exist: copy the rows of one to the other, and delete the first"
        )

    # -- both -------------------------------------------------------------------------------------

    def _documents(self) -> list[str]:
        """The documents of the old branch, by paths within it. The first schema comes first."""
        folder = f"{paths.branch_dir(self.old.branch)}/"
        mark = paths.unfinished_path(self.old.branch)
        found = [info.path for info in self.old.main.list(folder) if info.path != mark]
        return sorted(path.removeprefix(folder) for path in found)

    def _in(self, store: BranchStore, path: str) -> str:
        return paths.join(paths.branch_dir(store.branch), path)


def _numbers(
    documents: Sequence[str], folder: str, parse: Callable[[str], int | None]
) -> list[int]:
    """The numbers of documents in a folder, ascending."""
    names = [path.partition("/") for path in documents]
    numbers = (parse(name) for place, _, name in names if place == folder)
    return sorted(number for number in numbers if number is not None)
