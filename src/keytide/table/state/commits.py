"""Where it is decided which snapshot of a table comes next, and known which one is the newest.

For a table in a folder or an object store that is the creation of `snapshot/snapshot-N`, which
succeeds once: `FolderCommits`. A table service decides by itself: another `Commits`. Snapshots lie
under the names of the format in either case, so whoever reads history reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from keytide.errors import ConflictError, DataError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.format.snapshot import FIRST_SNAPSHOT_ID
from keytide.store import Store
from keytide.table.state.keeper import Keeper

__all__ = [
    "FOLDER_COMMITS",
    "SCHEMAS",
    "Commits",
    "Family",
    "FolderCommits",
    "Found",
    "PartitionChange",
    "TellChanges",
    "UnknownOutcomeError",
    "newest_of",
    "no_changes",
    "refuse_lost",
]

# Beyond the newest number that was known, so many are asked for at a time.
_PROBES = 4
# The newest one may be taken back between a listing and its reading.
_TRIES = 5


@dataclass(frozen=True)
class Found:
    """A numbered document as it is stored."""

    number: int
    data: bytes = field(repr=False)


class UnknownOutcomeError(DataError):
    """Nobody can tell whether a snapshot was created. The cause says what went wrong."""


@dataclass(frozen=True)
class PartitionChange:
    """What a commit adds to a partition, below 0 where it takes away.

    `values` are the texts of the partition columns by name. Times are epoch milliseconds.
    """

    values: Mapping[str, str]
    rows: int
    files: int
    file_bytes: int
    newest_file_ms: int
    total_buckets: int


TellChanges: TypeAlias = Callable[[], Sequence[PartitionChange]]
"""Works out, where somebody asks, what a snapshot changes of each partition."""


def no_changes() -> Sequence[PartitionChange]:
    """What is told of a snapshot that changes no partition, or is not this process's own."""
    return ()


class Commits(Protocol):
    """The place of a table's commits. `store` is rooted at the table, or at a branch of it.

    Pickles, and is safe to share between threads, as stores are.
    """

    @property
    def keeper(self) -> Keeper | None:
        """Who alone changes schemas, tags and branches; None where their files are written."""
        ...

    def newest(self, store: Store, known: Found | None) -> Sequence[Found]:
        """The newest snapshot, after others that were read on the way; nothing where there is none.

        `known` was the newest when somebody looked last. Where it still is a snapshot of the table,
        it is among those given. Raises `DataError` when the place fails.
        """
        ...

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """Make a snapshot the newest: atomic, durable on return; False where the id is taken.

        Of a table that has snapshots it is the one after the newest that was seen. `changes` are
        for places that keep counts of their own.
        Whoever finds it newest finds it under its name. Raises `DataError` when the place fails
        and the snapshot is not there, `UnknownOutcomeError` where it may be.
        """
        ...

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """Take back the newest snapshots: from the last of these ids to the first, one by one."""
        ...

    def ids(self, store: Store) -> list[int]:
        """The ids of all snapshots, ascending."""
        ...

    def altered(self, store: Store, schema: TableSchema) -> None:
        """Take note of a schema that is the newest by now. What fails here is a warning."""
        ...


@dataclass(frozen=True)
class FolderCommits:
    """The creation of `snapshot/snapshot-N` is the commit."""

    @property
    def keeper(self) -> None:
        """See `Commits`. There is none."""
        return None

    def newest(self, store: Store, known: Found | None) -> Sequence[Found]:
        """See `Commits`. One round of requests where `known` is there, two where it is not."""
        return newest_of(store, _SNAPSHOTS, known)

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """See `Commits`. After an error the file is read back to learn the outcome.

        Raises `ConflictError`, with no snapshot made, where the table got another name meanwhile.
        """
        made = self._create(store, snapshot_id, data)
        if made:
            refuse_lost(store, paths.snapshot_path(snapshot_id), paths.schema_dir())
        return made

    def _create(self, store: Store, snapshot_id: int, data: bytes) -> bool:
        path = paths.snapshot_path(snapshot_id)
        try:
            return store.create(path, data)
        except DataError as error:
            try:
                return store.read(path) == data
            except DataError as unread:
                # Nothing is there: the first error says why, and better than this one.
                if isinstance(unread.__cause__, FileNotFoundError):
                    raise error from error.__cause__
                raise UnknownOutcomeError(str(error)) from error

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """See `Commits`."""
        # One after the other: a store may delete many in any order.
        for number in reversed(snapshot_ids):
            store.delete([paths.snapshot_path(number)])

    def ids(self, store: Store) -> list[int]:
        """See `Commits`."""
        names = store.list_names(paths.snapshot_dir())
        return sorted(n for name in names if (n := paths.parse_snapshot_name(name)) is not None)

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`. The file of the schema says it all."""


FOLDER_COMMITS = FolderCommits()


def refuse_lost(store: Store, path: str, witness: str) -> None:
    """Take a file back that was made where the table is no more. Raises `ConflictError` then.

    A folder on local disk may get another name, or be dropped, between the look of a writer and its
    commit, which then makes the folder anew, without what is in the directory `witness` of each
    table. A table that is moved takes with it what was committed before, so nothing is lost.
    """
    if store.local_path(path) is None or any(
        not name.startswith(".") and name != path.rpartition("/")[2]
        for name in store.list_names(witness)
    ):
        return
    if store.exists(path):
        store.delete([path])
        raise ConflictError(
            f"{store.uri} is no table any more: it was renamed or dropped while this was made, so "
            f"nothing was committed; open the table by its new name, and do it again"
        )


# -- finding the newest ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Documents of one kind, numbered in the order in which they came."""

    folder: str
    path: Callable[[int], str]
    parse: Callable[[str], int | None]
    first: int
    hint: str | None = None
    """Where it is written which one is the newest, right or wrong."""
    reads_all: bool = False
    """Whether who needs the newest needs those before it too."""


SCHEMAS = Family(
    paths.schema_dir(),
    paths.schema_path,
    paths.parse_schema_name,
    first=0,
    reads_all=True,
)
_SNAPSHOTS = Family(
    paths.snapshot_dir(),
    paths.snapshot_path,
    paths.parse_snapshot_name,
    first=FIRST_SNAPSHOT_ID,
    hint=paths.snapshot_hint_path(paths.Hint.LATEST),
)


def newest_of(store: Store, family: Family, known: Found | None) -> list[Found]:
    """The newest document of a kind, after others that were read on the way."""
    if known is not None:
        found = _run(store, family, known.number, 1)
        if known in found:
            return _to_the_end(store, family, found) if len(found) > 1 else found
    hinted = _hinted(store, family)
    if hinted is not None:
        found = _run(store, family, hinted, 1)
        if found:
            return _to_the_end(store, family, found) if len(found) > 1 else found
    return _listed(store, family)


def _to_the_end(store: Store, family: Family, found: list[Found]) -> list[Found]:
    """Documents, and all that come after the last of them."""
    is_open = True
    while is_open:
        more = _run(store, family, found[-1].number + 1, _PROBES)
        found += more
        is_open = len(more) > _PROBES
    return found


def _run(store: Store, family: Family, first: int, more: int) -> list[Found]:
    """A document and as many as `more` that follow it, as far as there is no gap."""
    numbers = range(first, first + more + 1)
    read = store.read_present([family.path(number) for number in numbers])
    found: list[Found] = []
    for number, data in zip(numbers, read, strict=True):
        if data is None:
            break
        found.append(Found(number, data))
    return found


def _hinted(store: Store, family: Family) -> int | None:
    if family.hint is None:
        return None
    with suppress(DataError):
        return paths.decode_hint(store.read(family.hint))
    return None


def _listed(store: Store, family: Family) -> list[Found]:
    """The newest document by a listing, or all of them.

    What came last may be missing from the listing, so its number is tried as well.
    """
    for _ in range(_TRIES):
        names = store.list_names(family.folder)
        numbers = sorted(n for name in names if (n := family.parse(name)) is not None)
        wanted = numbers if family.reads_all else numbers[-1:]
        following = wanted[-1] + 1 if wanted else family.first
        *read, beyond = store.read_present([family.path(n) for n in (*wanted, following)])
        if wanted and read[-1] is None:
            continue
        pairs = zip(wanted, read, strict=True)
        found = [Found(number, data) for number, data in pairs if data is not None]
        if beyond is None:
            return found
        return _to_the_end(store, family, [*found, Found(following, beyond)])
    raise DataError(
        f"{store.uri_of(family.folder)}: each listing names a newest document that is gone when it "
        f"is read; somebody deletes there without end"
    )
