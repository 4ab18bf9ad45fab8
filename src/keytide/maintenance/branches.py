"""Branches: created from a snapshot, used separately, renamed, and brought back by a fast-forward.

A branch exists if it has its first schema, which is created last and deleted first. Before that, a
file says that a process is working on the branch. This file remains if the process dies. So a
branch exists completely or not at all.

A fast-forward rolls the table back to where it and the branch part. Then it copies the branch's
schemas and snapshots one by one. Wherever it stops, the table is in a state that it or the branch
had, and a repeated call continues.

A rename copies the documents of a branch to the new name, and then removes them from the old name.
During this, both names have the same mark. Before the new branch exists, the old one is unchanged.
From then on, a repeated call finds the two marks and continues where the previous one stopped.
Commits to the old name in the meantime are moved too. Data files and manifests stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.text import utc
from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format import paths
from keytide.format.paths import BranchStore, branched_name, main_store
from keytide.format.snapshot import Snapshot
from keytide.maintenance.tags import TagSource, source_of
from keytide.options import keys
from keytide.snapshot.branch_tables import branch_names, has_branch, open_branch, table_name
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import created

# -- branches --------------------------------------------------------------------------------------


_FIRST = paths.schema_path(0)


@dataclass(frozen=True)
class BranchInfo:
    """A branch: its creation time, and its oldest and latest snapshots, None if it has none."""

    name: str
    create_time: datetime
    first: Snapshot | None
    newest: Snapshot | None


class Branches(list[BranchInfo]):
    """A list of branches, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "made", "first snapshot", "newest snapshot", "stored versions")
        return record.table(head, map(_shown, self))


def _shown(branch: BranchInfo) -> tuple[object, ...]:
    time = branch.create_time.replace(tzinfo=None)
    rows = 0 if branch.newest is None else branch.newest.total_record_count
    return (
        branch.name,
        f"{time.isoformat(' ', 'seconds')}Z",
        "" if branch.first is None else branch.first.id,
        "" if branch.newest is None else branch.newest.id,
        f"{rows:,}",
    )


def branches_of(metadata: TableMetadata) -> Branches:
    """The branches without the main one, by name. Raises `DataError` for damaged metadata."""
    main = main_store(metadata.store)
    found = (_info(BranchStore(main, name), metadata) for name in branch_names(main))
    return Branches(info for info in found if info is not None)


def _info(store: BranchStore, table: TableMetadata) -> BranchInfo | None:
    """None for a branch that is deleted in the meantime."""
    metadata = table.by(store, store.branch)
    made = min((info.modified_ms for info in store.list(paths.schema_dir())), default=None)
    if made is None:
        return None
    newest, earliest = metadata.latest_snapshot(), metadata.earliest_snapshot_id()
    first = None if earliest is None else metadata.snapshot(earliest)
    return BranchInfo(store.branch, utc(made), first, newest)


# -- creation and deletion -------------------------------------------------------------------------


def create_branch(
    table: StoredTable,
    name: str,
    snapshot_id: int | None = None,
    tag: str | None = None,
    *,
    empty: bool = False,
) -> StoredTable:
    """Create a branch from the latest snapshot, from another one, from a tag, or without rows.

    A branch has its own schemas, snapshots and tags, and shares the data files with the table. Only
    metadata is copied. A tag is copied with its snapshot. A branch from an earlier snapshot has the
    columns of that snapshot. Atomic: of several callers, one creates the branch, and it exists
    completely or not at all.

    Raises `AlreadyExistsError` for a name that is taken, `InvalidError` for an invalid name,
    `NotFoundError` for a snapshot or tag that does not exist, `ConflictError`, with nothing
    created, if it is deleted in the meantime, and `DataError` if the store fails.
    """
    metadata = table.metadata
    check_name(table, name)
    if sum((snapshot_id is not None, tag is not None, empty)) > 1:
        raise InvalidError(
            f"table {table.name}: a branch starts from a snapshot, from a tag, or empty; give "
            "only one of them, or none for the latest snapshot"
        )
    store = BranchStore(main_store(table.store), name)
    if has_branch(store, name):
        raise name_taken_error(table, name)
    keeper = metadata.commits.keeper
    if keeper is not None:
        if tag is not None:
            metadata.stored_tag(tag)
        elif not empty and (snapshot_id is not None or metadata.latest_snapshot_id() is not None):
            raise UnsupportedError(
                f"table {table_name(table)}: its catalog creates branches only from tags, or empty "
                f"ones; create a tag first: create_tag('t'), create_branch({name!r}, tag='t')"
            )
        if not keeper.create_branch(table.store, name, tag):
            raise name_taken_error(table, name)
    else:
        _make(table, store, _InitialState.of(metadata, snapshot_id, tag, empty=empty))
    return open_branch(table, name)


def begin_work(table: StoredTable, store: BranchStore) -> bytes:
    """Record that a branch is being created, with a mark that only this caller knows.

    Raises `AlreadyExistsError` if another process has done so.
    """
    mark = paths.new_uuid().encode()
    if not created(store.main, paths.unfinished_path(store.branch), mark):
        raise AlreadyExistsError(
            f"table {table_name(table)}: branch {store.branch!r} is being created or deleted by "
            "another process, or this was interrupted; if it was, delete the branch and create "
            "it again"
        )
    return mark


@dataclass(frozen=True)
class _InitialState:
    """The initial state of a branch: its files, and the origin of its snapshot, if it has one."""

    schema_id: int
    files: Mapping[str, bytes]
    source: TagSource | None = None

    @classmethod
    def of(
        cls, metadata: TableMetadata, snapshot_id: int | None, tag: str | None, *, empty: bool
    ) -> _InitialState:
        """Raises `NotFoundError` for a snapshot or tag that does not exist."""
        newest_schema = metadata.latest_schema().id
        is_newest = snapshot_id is None and tag is None
        if empty or (is_newest and metadata.latest_snapshot_id() is None):
            return cls(newest_schema, {})
        source, files = source_of(metadata, snapshot_id), {}
        if tag is not None:
            source = TagSource(paths.tag_path(tag), metadata.tag(tag))
            files[source.path] = metadata.store.read(source.path)
        kept = source.snapshot
        files[paths.snapshot_path(kept.id)] = kept.to_json()
        return cls(newest_schema if is_newest else kept.schema_id, files, source)


def _make(table: StoredTable, store: BranchStore, begins: _InitialState) -> None:
    """Create a branch. If it does not come to exist, its files are deleted.

    Raises `AlreadyExistsError` if another process creates or has created it.
    """
    metadata, name, mark_path = table.metadata, store.branch, paths.unfinished_path(store.branch)
    mark = begin_work(table, store)
    try:
        if has_branch(store, name):  # created in the meantime
            raise name_taken_error(table, name)
        _clear(store)
        schemas = {
            paths.schema_path(number): metadata.store.read(paths.schema_path(number))
            for number in range(begins.schema_id + 1)
        }
        first = schemas.pop(_FIRST)
        store.put_all({**begins.files, **schemas})

        if begins.source is not None:
            number = begins.source.snapshot.id
            for hint in paths.Hint:
                store.hint(paths.snapshot_hint_path(hint), paths.encode_hint(number))
            # Expiry reads branches after snapshots are deleted. This checks after the branch's
            # snapshot exists.
            if not begins.source.is_there(metadata):
                raise ConflictError(
                    f"table {metadata.name}: snapshot {number} was deleted while branch {name!r} "
                    "was created from it; use another snapshot"
                )
        if store.main.read(mark_path) != mark:
            raise ConflictError(
                f"table {table_name(table)}: branch {name!r} was deleted while it was being created"
            )
        if not created(store, _FIRST, first):
            raise name_taken_error(table, name)
    except (KeytideError, KeyboardInterrupt):
        with suppress(DataError):
            if has_branch(store, name):
                store.main.delete([mark_path])
            else:
                store.main.delete_tree(paths.branch_dir(name))
        raise
    store.main.discard([mark_path])


def delete_branch(table: StoredTable, name: str) -> None:
    """Delete a branch, or continue an interrupted deletion.

    Its own files are left for orphan removal.
    """
    refuse_deletion(table, name)
    keeper = table.metadata.commits.keeper
    if keeper is not None:
        keeper.delete_branch(table.store, name)
        return
    main, folder = main_store(table.store), paths.branch_dir(name)
    main.put(paths.unfinished_path(name), b"")
    main.delete([paths.join(folder, paths.schema_path(0))])
    _clear(BranchStore(main, name))
    main.delete_tree(folder)


def refuse_deletion(table: StoredTable, name: str) -> None:
    """Raise `NotFoundError` for a branch that does not exist, and `InvalidError` for one that a
    table option names.
    """
    main = main_store(table.store)
    if paths.branch_dir(name).rpartition("/")[2] not in main.list_names(paths.branches_dir()):
        there = ", ".join(branch_names(main)) or "only the main branch"
        raise NotFoundError(
            f"table {table_name(table)} has no branch {name!r}; existing branches: {there}"
        )
    refuse_named(table, name, "deleted")


def refuse_named(table: StoredTable, name: str, what: str) -> None:
    """Raise `InvalidError` if a table option names the branch.

    `what` says what was to happen to it.
    """
    whole = table_name(table)
    options = table.live.metadata.by(main_store(table.store), whole).latest_schema().options
    for key in (keys.BRANCH, keys.SCAN_FALLBACK_BRANCH, keys.SCAN_PRIMARY_BRANCH):
        if options.get(key) == name:
            raise InvalidError(
                f"table {whole}: branch {name!r} cannot be {what}, because the option '{key}' "
                "names it; RESET the option first"
            )


def _clear(store: BranchStore) -> None:
    """Delete all of a branch except the file that says that a process is working on it."""
    mark = paths.unfinished_path(store.branch)
    files = [info.path for info in store.main.list(paths.branch_dir(store.branch))]
    store.main.delete(path for path in files if path != mark)


def check_name(table: StoredTable, name: str) -> None:
    """Raise `InvalidError` for an invalid branch name, and `AlreadyExistsError` for `main`."""
    whole = table_name(table)
    try:
        paths.branch_dir(name)
    except InvalidError as error:
        raise InvalidError(f"table {whole}: {error}") from error
    if name == paths.MAIN_BRANCH:
        raise AlreadyExistsError(
            f"table {whole}: {name!r} is the name of the main branch; choose another name"
        )
    if name.isdecimal() or name != name.strip() or any(mark in name for mark in ",.$"):
        raise InvalidError(
            f"table {whole}: {name!r} is not a valid branch name, because branches are written "
            f"as {branched_name(whole, 'trial')}: do not use commas, dots, '$', leading or "
            "trailing blanks, or only digits"
        )


def name_taken_error(table: StoredTable, name: str) -> AlreadyExistsError:
    """The error for a branch name that is taken."""
    return AlreadyExistsError(
        f"table {table_name(table)} already has a branch {name!r}; choose another name, or "
        "delete it"
    )


# -- renaming --------------------------------------------------------------------------------------


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
            raise name_taken_error(table, new_name)
        return open_branch(table, new_name)
    main = main_store(table.store)
    renaming = _Rename(table, BranchStore(main, name), BranchStore(main, new_name))
    marks = []
    for store in (renaming.old, renaming.new):
        path = paths.unfinished_path(store.branch)
        marks.append(main.read(path) if main.exists(path) else b"")
    # If the new branch exists, a process may have died before it deleted the old one.
    if not (has_branch(renaming.new, new_name) and marks[0] == marks[1] != b""):
        open_branch(table, name)
        renaming.copy()
    renaming.leave()
    return open_branch(table, new_name)


@dataclass(frozen=True)
class _Rename:
    """A branch that is being renamed."""

    table: StoredTable
    old: BranchStore
    new: BranchStore

    # -- the new name -----------------------------------------------------------------------------

    def copy(self) -> None:
        """Create the new branch.

        After an error it does not exist, unless the outcome is unknown.
        """
        mark = begin_work(self.table, self.new)
        if has_branch(self.new, self.new.branch):  # created in the meantime
            self.new.main.discard([paths.unfinished_path(self.new.branch)])
            raise name_taken_error(self.table, self.new.branch)
        try:
            copied = self._documents()
            folder = paths.branch_dir(self.old.branch)
            data = self.old.main.read_all([paths.join(folder, path) for path in copied])
            files = dict(zip(copied, data, strict=True))
            first = files.pop(_FIRST)
            self.new.put_all(files)
            self.old.main.put(paths.unfinished_path(self.old.branch), mark)
            if not created(self.new, _FIRST, first):
                raise name_taken_error(self.table, self.new.branch)

            # Delete copies of what was deleted in the meantime: its files may not have been
            # protected.
            kept = {paths.snapshot_dir(), paths.tag_dir(), paths.changelog_dir()}
            there = set(self._documents())
            gone = [path for path in copied if path not in there and path.split("/")[0] in kept]
            self.new.delete(gone)
        except (KeytideError, KeyboardInterrupt):
            with suppress(DataError):
                if not has_branch(self.new, self.new.branch):
                    self.old.main.delete([paths.unfinished_path(self.old.branch)])
                    self.new.main.delete_tree(paths.branch_dir(self.new.branch))
            raise

    # -- the old name -----------------------------------------------------------------------------

    def leave(self) -> None:
        """Move what was added in the meantime, and delete the old branch."""
        folder, table = paths.branch_dir(self.old.branch), table_name(self.table)
        self.old.delete([_FIRST])
        for _ in range(_ROUNDS_MAX):
            documents = self._documents()
            if not documents:
                break
            # Schemas and snapshots that the new branch still needs, in the order to add them.
            oldest = self.table.metadata.by(self.new, self.table.name).earliest_snapshot_id() or 0
            schemas = _numbers(documents, paths.schema_dir(), paths.parse_schema_name)
            snapshots = _numbers(documents, paths.snapshot_dir(), paths.parse_snapshot_name)
            late = [paths.schema_path(number) for number in schemas]
            late += [paths.snapshot_path(number) for number in snapshots if number >= oldest]
            for path in late:
                data = self.old.main.read(paths.join(folder, path))
                if self.new.exists(path):
                    is_there = self.new.read(path) == data
                else:
                    is_there = created(self.new, path, data)
                if not is_there:
                    self.old.create(_FIRST, self.new.read(_FIRST))
                    marks = [paths.unfinished_path(store.branch) for store in (self.old, self.new)]
                    self.new.main.delete(marks)
                    raise ConflictError(
                        f"table {table}: other writers created {path} in branches "
                        f"{self.old.branch!r} and {self.new.branch!r} during the renaming. Both "
                        "branches exist: copy the rows of one to the other, and delete the first"
                    )
            self.old.delete(reversed(documents))
        else:
            raise ConflictError(
                f"table {table}: other writers keep committing to branch {self.old.branch!r} while "
                "it is renamed; stop them and try again"
            )
        self.old.main.delete_tree(folder)
        self.new.main.discard([paths.unfinished_path(self.new.branch)])

    # -- both -------------------------------------------------------------------------------------

    def _documents(self) -> list[str]:
        """The documents of the old branch, by paths within it. The first schema comes first."""
        folder = f"{paths.branch_dir(self.old.branch)}/"
        mark = paths.unfinished_path(self.old.branch)
        found = [info.path for info in self.old.main.list(folder) if info.path != mark]
        return sorted(path.removeprefix(folder) for path in found)


def _numbers(
    documents: Sequence[str], folder: str, parse: Callable[[str], int | None]
) -> list[int]:
    """The numbers of documents in a folder, ascending."""
    names = [path.partition("/") for path in documents]
    numbers = (parse(name) for place, _, name in names if place == folder)
    return sorted(number for number in numbers if number is not None)
