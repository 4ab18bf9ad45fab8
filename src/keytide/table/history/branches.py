"""Branches: created from a snapshot, used separately, and brought back by a fast-forward.

A branch exists if it has its first schema, which is created last and deleted first. Before that, a
file says that a process is working on the branch. This file remains if the process dies. So a
branch exists completely or not at all.

A fast-forward rolls the table back to where it and the branch part. Then it copies the branch's
schemas and snapshots one by one. Wherever it stops, the table is in a state that it or the branch
had, and a repeated call continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from keytide import html
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
from keytide.format.branch import BranchStore, branch_of, branched_name, main_store
from keytide.format.snapshot import Snapshot
from keytide.moments import utc
from keytide.options import keys
from keytide.record import Record
from keytide.store import created
from keytide.table.history.rollback import Rollback, warn_of_consumers
from keytide.table.history.tags import TagSource, source_of
from keytide.table.state.branches import branch_names, has_branch, open_branch, table_name
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import StoredTable

__all__ = [
    "BranchInfo",
    "Branches",
    "FastForwardResult",
    "begin_work",
    "branches_of",
    "check_name",
    "create_branch",
    "delete_branch",
    "fast_forward",
    "refuse_deletion",
    "refuse_named",
    "taken",
]


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
        return html.table(head, map(_shown, self))


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


# -- creating and deleting -------------------------------------------------------------------------


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
        raise taken(table, name)
    keeper = metadata.commits.keeper
    if keeper is not None:
        of = _tag_to_branch(table, name, snapshot_id, tag, empty=empty)
        if not keeper.create_branch(table.store, name, of):
            raise taken(table, name)
        return open_branch(table, name)
    begins = _Beginning.of(metadata, snapshot_id, tag, empty=empty)
    with _at_work(table, store) as mark:
        _make(table, store, begins, mark)
    return open_branch(table, name)


def _tag_to_branch(
    table: StoredTable, name: str, snapshot_id: int | None, tag: str | None, *, empty: bool
) -> str | None:
    """The tag for a catalog that creates branches from tags. None for an empty branch."""
    if tag is not None:
        table.metadata.stored_tag(tag)
        return tag
    if not empty and (snapshot_id is not None or table.metadata.latest_snapshot_id() is not None):
        raise UnsupportedError(
            f"table {table_name(table)}: its catalog creates branches only from tags, or empty "
            f"ones; create a tag first: create_tag('t'), create_branch({name!r}, tag='t')"
        )
    return None


@contextmanager
def _at_work(table: StoredTable, store: BranchStore) -> Iterator[bytes]:
    """A block in which nobody else creates this branch.

    If it ends without a branch, its files are deleted. Raises `AlreadyExistsError` if another
    process creates or has created it.
    """
    name, path = store.branch, paths.unfinished_path(store.branch)
    mark = begin_work(table, store)
    try:
        if has_branch(store, name):  # created in the meantime
            raise taken(table, name)
        yield mark
    except (KeytideError, KeyboardInterrupt):
        with suppress(DataError):
            if has_branch(store, name):
                store.main.delete([path])
            else:
                store.main.delete_tree(paths.branch_dir(name))
        raise
    store.main.discard([path])


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
class _Beginning:
    """The initial state of a branch: its files, and the origin of its snapshot, if it has one."""

    schema_id: int
    files: Mapping[str, bytes]
    source: TagSource | None = None

    @classmethod
    def of(
        cls, metadata: TableMetadata, snapshot_id: int | None, tag: str | None, *, empty: bool
    ) -> _Beginning:
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


def _make(table: StoredTable, store: BranchStore, begins: _Beginning, mark: bytes) -> None:
    metadata = table.metadata
    _clear(store)
    schemas = {
        paths.schema_path(number): metadata.store.read(paths.schema_path(number))
        for number in range(begins.schema_id + 1)
    }
    first = schemas.pop(paths.schema_path(0))
    store.put_all({**begins.files, **schemas})
    if begins.source is not None:
        _check_source(metadata, store, begins.source)
    if store.main.read(paths.unfinished_path(store.branch)) != mark:
        raise ConflictError(
            f"table {table_name(table)}: branch {store.branch!r} was deleted while it was being "
            "created"
        )
    if not created(store, paths.schema_path(0), first):
        raise taken(table, store.branch)


def _check_source(metadata: TableMetadata, store: BranchStore, source: TagSource) -> None:
    number = source.snapshot.id
    for hint in paths.Hint:
        store.hint(paths.snapshot_hint_path(hint), paths.encode_hint(number))
    # Expiry reads branches after snapshots are deleted. This checks after the branch's snapshot
    # exists.
    if not source.is_there(metadata):
        raise ConflictError(
            f"table {metadata.name}: snapshot {number} was deleted while branch {store.branch!r} "
            "was created from it; use another snapshot"
        )


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


def taken(table: StoredTable, name: str) -> AlreadyExistsError:
    """The error for a branch name that is taken."""
    return AlreadyExistsError(
        f"table {table_name(table)} already has a branch {name!r}; choose another name, or "
        "delete it"
    )


# -- fast-forward ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FastForwardResult(Record):
    """What a fast-forward did or, in a dry run, what it would do.

    - `previous_snapshot_id` and `current_snapshot_id` are the table's latest snapshot before and
      after.
    - `removed` is the number of snapshots of the table that the branch does not have. They were
      removed, together with their `tags`.
    - `added` is the number of snapshots that came from the branch.
    - `consumers` names the consumers that had already read removed snapshots.
    """

    previous_snapshot_id: int | None
    current_snapshot_id: int
    removed: int
    added: int
    tags: tuple[str, ...]
    consumers: tuple[str, ...]


def fast_forward(table: StoredTable, name: str, *, dry_run: bool = False) -> FastForwardResult:
    """Replace the state of a table with that of a branch."""
    if name == branch_of(table.store):
        raise InvalidError(
            f"table {table.name} cannot be fast-forwarded to itself; name another branch"
        )
    steps = _Steps.between(table.metadata, open_branch(table, name).metadata)
    if not dry_run:
        keeper = table.metadata.commits.keeper
        if keeper is None:
            steps.take()
        else:
            keeper.fast_forward(table.store, name)
        warn_of_consumers(table.metadata, steps.result.consumers)
    return steps.result


@dataclass(frozen=True)
class _Steps:
    """The steps from a table to a branch: back to where they part, and forward from there.

    `start` is a snapshot of the branch. It is also one of the table, unless `is_replaced` or there
    is none with that id. The first `schemas_alike` schemas are the same, and the snapshots up to
    there need no others.
    """

    into: TableMetadata
    branch: TableMetadata
    start: Snapshot
    is_replaced: bool
    schemas_alike: int
    snapshot_ids: Sequence[int]
    result: FastForwardResult

    @classmethod
    def between(cls, into: TableMetadata, branch: TableMetadata) -> _Steps:
        """Raises `InvalidError`, `ConflictError` or `UnsupportedError` if this is impossible."""
        theirs = branch.snapshot_ids()
        if not theirs:
            raise InvalidError(
                f"branch {branch.name} has no snapshots to fast-forward to; write to it first"
            )
        ours = into.snapshot_ids()
        start = _parting(into, branch, ours, theirs)
        own = into.snapshot(start.id) if start.id in ours else None
        is_replaced = own not in (None, start)
        # A replaced snapshot must be the oldest one, because snapshots form a line.
        if ours and (ours[-1] < start.id or (is_replaced and ours[0] < start.id)):
            raise ConflictError(
                f"table {into.name} and branch {branch.name} no longer have a snapshot in common: "
                f"the oldest one of the branch is {start.id}, the latest one of the table is "
                f"{ours[-1]}. Earlier ones of the branch have expired, or the table was rolled "
                f"back. Write the rows of the branch to the table instead, with overwrite. To "
                f"keep a branch's first snapshots, raise '{keys.SNAPSHOT_NUM_RETAINED_MIN}' in it"
            )
        alike = _schemas_alike(into, branch)
        staying = [start.schema_id] if own is None else [start.schema_id, own.schema_id]
        if max(staying) >= alike:
            raise UnsupportedError(
                f"table {into.name}: its columns or options differ from those of branch "
                f"{branch.name} since before snapshot {start.id}, from which the branch was "
                "created; write the rows of the branch to the table instead"
            )
        rollback = Rollback(into, start)
        result = FastForwardResult(
            ours[-1] if ours else None,
            theirs[-1],
            len(rollback.later_snapshots()),
            sum(number > start.id or own is None for number in theirs if number >= start.id),
            tuple(rollback.later_tags()),
            tuple(rollback.consumers_ahead()),
        )
        later = [number for number in theirs if number > start.id]
        return cls(into, branch, start, is_replaced, alike, later, result)

    def take(self) -> None:
        """Go back, then forward."""
        Rollback(self.into, self.start).run()
        if self.is_replaced:
            self.into.store.put(paths.snapshot_path(self.start.id), self._read(self.start.id))
        self._take_schemas()
        # Tags first, because some of them protect files that the snapshots reference.
        for tag in self.branch.tag_names():
            path = paths.tag_path(tag)
            self.into.store.put(path, self.branch.store.read(path))
        for number in self.snapshot_ids:
            self._take_snapshot(number)
        self.into.hint_latest(self.result.current_snapshot_id)

    def _take_schemas(self) -> None:
        ours, theirs = (each.newest_schema().id for each in (self.into, self.branch))
        for number in range(ours, self.schemas_alike - 1, -1):
            self.into.store.delete([paths.schema_path(number)])
        for number in range(self.schemas_alike, theirs + 1):
            self._copy(paths.schema_path(number))

    def _take_snapshot(self, number: int) -> None:
        data, path = self._read(number), paths.snapshot_path(number)
        if not self.into.commits.create(self.into.store, number, data):
            self._check_same(path, data)
        # Expiry of the branch reads the table after snapshots are deleted, and this checks
        # afterwards.
        if not self.branch.store.exists(path):
            self.into.store.delete([path])
            raise ConflictError(
                f"table {self.into.name}: snapshot {number} of {self.branch.name} expired during "
                "the fast-forward; try again"
            )

    def _copy(self, path: str) -> None:
        """Copy a file of the branch to the table, if the name is free."""
        data = self.branch.store.read(path)
        if not created(self.into.store, path, data):
            self._check_same(path, data)

    def _check_same(self, path: str, data: bytes) -> None:
        if self.into.store.read(path) != data:
            raise ConflictError(
                f"table {self.into.name}: another writer created {path} during the fast-forward "
                f"to {self.branch.name}; try again"
            )

    def _read(self, snapshot_id: int) -> bytes:
        return self.branch.store.read(paths.snapshot_path(snapshot_id))


def _parting(
    into: TableMetadata, branch: TableMetadata, ours: Sequence[int], theirs: Sequence[int]
) -> Snapshot:
    """The latest snapshot that both have, or the first one of the branch."""
    for number in reversed(theirs):
        if number in ours and into.snapshot(number) == branch.snapshot(number):
            return branch.snapshot(number)
    return branch.snapshot(theirs[0])


def _schemas_alike(one: TableMetadata, other: TableMetadata) -> int:
    """How many schemas are the same, starting with the first."""
    numbers = range(min(each.newest_schema().id for each in (one, other)) + 1)
    parted = (number for number in numbers if one.schema(number) != other.schema(number))
    return next(parted, len(numbers))
