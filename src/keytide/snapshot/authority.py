"""The authority over a table: who decides about its snapshots, schemas, tags and branches.

For a table in a folder or an object store, the decision is the creation of `snapshot/snapshot-N`,
which succeeds only once: `FolderCommits`. A table service decides by itself and is another
`Commits`. In both cases snapshots are stored under the names of the format, so history can be read
from files.

A keeper is a catalog that alone changes a table's schemas, tags, branches and list of snapshots. In
a table in a folder these are files, and each writer changes them directly: there is no keeper. In a
table of a catalog service, they are files that everybody can read, but only the service writes
them, on request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Protocol, TypeAlias

from keytide.base.dataclass import dataclass, field
from keytide.definition.schema_evolution import SchemaChange
from keytide.errors import ConflictError, DataError, KeytideError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.format.snapshot import FIRST_SNAPSHOT_ID, Snapshot, Tag, is_based_on
from keytide.store import Store

# -- keepers ---------------------------------------------------------------------------------------


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

    def create_tag(self, store: Store, name: str, tag: Tag) -> bool:
        """Create a tag for a snapshot. False if a tag with that name exists."""

    def delete_tag(self, store: Store, name: str) -> None:
        """Delete a tag. It may be gone already."""

    def roll_back(self, store: Store, newest_id: int, target_id: int, tag: str | None) -> None:
        """Remove everything later than a snapshot. `tag` names the snapshot if only a tag keeps it.

        Raises `ConflictError` if `newest_id` is no longer the latest snapshot.
        """

    def create_branch(self, store: Store, name: str, tag: str | None) -> bool:
        """Create a branch from a tag, or an empty one. False if a branch with that name exists."""

    def delete_branch(self, store: Store, name: str) -> None:
        """Delete a branch. It may be gone already."""

    def rename_branch(self, store: Store, name: str, new_name: str) -> bool:
        """Rename a branch. False if a branch with the new name exists."""

    def fast_forward(self, store: Store, name: str) -> None:
        """Replace the state of the table with that of a branch."""


# -- commits ---------------------------------------------------------------------------------------


# How many numbers after the latest known one are requested at a time.
_PROBES = 4
# The latest snapshot may be removed after it was listed and before it is read.
_TRIES = 5


@dataclass(frozen=True)
class NumberedDocument:
    """A numbered document as it is stored."""

    number: int
    data: bytes = field(repr=False)


class UnknownOutcomeError(DataError):
    """It is unknown whether a snapshot was created. The cause says what went wrong."""


@dataclass(frozen=True)
class PartitionChange:
    """What a commit adds to a partition. Negative numbers are removals.

    `values` are the values of the partition columns as strings, by name. Times are epoch
    milliseconds.
    """

    values: Mapping[str, str]
    rows: int
    files: int
    file_bytes: int
    newest_file_ms: int
    total_buckets: int


TellChanges: TypeAlias = Callable[[], Sequence[PartitionChange]]
"""Computes the changes of each partition in a snapshot, on request."""


def no_changes() -> Sequence[PartitionChange]:
    """No changes: the snapshot changes no partition, or another process created it."""
    return ()


class Commits(Protocol):
    """The place of a table's commits. `store` is rooted at the table or at a branch of it.

    Picklable and safe to share between threads, like stores.
    """

    @property
    def keeper(self) -> Keeper | None:
        """The only one that changes schemas, tags and branches.

        None if their files are written directly.
        """

    def newest(self, store: Store, known: NumberedDocument | None) -> Sequence[NumberedDocument]:
        """The latest snapshot, preceded by others that were read on the way.

        Empty without a snapshot. `known` was the latest snapshot at the previous call. If it still
        is a snapshot of the table, it is in the result. Raises `DataError` when the place fails.
        """

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """Make a snapshot the latest: atomic, and durable on return. False if the id is taken.

        If the table has snapshots, the id follows the latest one that was seen. `changes` are for
        places that maintain their own counts. After `newest` returns the snapshot, it can be read
        under its name. Raises `DataError` when the place fails and the snapshot was not created,
        and `UnknownOutcomeError` if it may have been created.
        """

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """Remove the latest snapshots one by one, from the last of these ids to the first."""

    def ids(self, store: Store) -> list[int]:
        """The ids of all snapshots, ascending."""

    def altered(self, store: Store, schema: TableSchema) -> None:
        """Notify the place of a schema that is now the latest. A failure is only a warning."""


@dataclass(frozen=True)
class FolderCommits:
    """Commits by creating `snapshot/snapshot-N`."""

    keeper: ClassVar[None] = None

    def newest(self, store: Store, known: NumberedDocument | None) -> Sequence[NumberedDocument]:
        """See `Commits`. One round of requests if `known` still exists, otherwise two."""
        return newest_of(store, _SNAPSHOTS, known)

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        """See `Commits`. After an error, the file is read back to determine the outcome.

        Raises `ConflictError`, without creating a snapshot, if the table was renamed in the
        meantime.
        """
        path = paths.snapshot_path(snapshot_id)
        try:
            made = store.create(path, data)
        except DataError as error:
            try:
                made = store.read(path) == data
            except DataError as unread:
                # The file does not exist: the first error explains the failure better than this
                # one.
                if isinstance(unread.__cause__, FileNotFoundError):
                    raise error from error.__cause__
                raise UnknownOutcomeError(str(error)) from error
        if made:
            refuse_lost(store, path, paths.schema_dir())
        return made

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        """See `Commits`."""
        # One after the other, because a store may delete several files in any order.
        for number in reversed(snapshot_ids):
            store.delete([paths.snapshot_path(number)])

    def ids(self, store: Store) -> list[int]:
        """See `Commits`."""
        names = store.list_names(paths.snapshot_dir())
        return sorted(n for name in names if (n := paths.parse_snapshot_name(name)) is not None)

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`. The schema file is sufficient."""


FOLDER_COMMITS = FolderCommits()


def refuse_lost(store: Store, path: str, witness: str) -> None:
    """Delete a file that was created where the table no longer is, and raise `ConflictError`.

    A folder on local disk may be renamed or dropped after a writer has read the table and before it
    commits. The commit then recreates the folder, but without the content of the directory
    `witness`, which every table has. A table that is moved keeps everything that was committed
    before, so nothing is lost.
    """
    if store.local_path(path) is None or any(
        not name.startswith(".") and name != path.rpartition("/")[2]
        for name in store.list_names(witness)
    ):
        return
    if store.exists(path):
        store.delete([path])
        raise ConflictError(
            f"{store.uri} is no longer a table: it was renamed or dropped in the meantime, so "
            "nothing was committed; open the table by its new name, and run the operation again"
        )


# -- the latest snapshot ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Documents of one kind, numbered in the order of their creation."""

    folder: str
    path: Callable[[int], str]
    parse: Callable[[str], int | None]
    first: int
    hint: str | None = None
    """The file that names the latest document. It may be wrong."""
    oldest_hint: str | None = None
    """The file that names the oldest document. It may be wrong."""
    reads_all: bool = False
    """Whether a reader of the latest document also needs all earlier ones."""
    drop_mark: str | None = None
    """The file that says that no document counts if there is no first one."""
    follows: Callable[[bytes, bytes], bool] = lambda before, after: True
    """Whether a document may follow the one before it."""


SCHEMAS = Family(
    paths.schema_dir(),
    paths.schema_path,
    paths.parse_schema_name,
    first=0,
    reads_all=True,
    drop_mark=paths.dropped_path().rpartition("/")[2],
)


def may_follow(before: bytes, after: bytes) -> bool:
    """Whether a snapshot may follow another one, see `is_based_on`. True if one is damaged."""
    try:
        return is_based_on(Snapshot.from_json(after, ""), Snapshot.from_json(before, ""))
    except KeytideError:
        return True  # whoever needs the damaged one raises the error


_SNAPSHOTS = Family(
    paths.snapshot_dir(),
    paths.snapshot_path,
    paths.parse_snapshot_name,
    first=FIRST_SNAPSHOT_ID,
    hint=paths.snapshot_hint_path(paths.Hint.LATEST),
    oldest_hint=paths.snapshot_hint_path(paths.Hint.EARLIEST),
    follows=may_follow,
)


def newest_of(
    store: Store, family: Family, known: NumberedDocument | None
) -> list[NumberedDocument]:
    """The latest document of a kind, preceded by others that were read on the way."""
    if known is not None:
        found = _run(store, family, known.number, 1)
        if found == [known]:
            return found
        if known in found and (found := _to_the_end(store, family, found)):
            return found
    return _from_hint(store, family, family.hint) or _listed(store, family)


def newest_after(store: Store, family: Family, known: NumberedDocument) -> list[NumberedDocument]:
    """A document that is known to be still there, and all documents after it."""
    found = [known, *_run(store, family, known.number + 1, 0)]
    whole = found if len(found) == 1 else _to_the_end(store, family, found)
    return whole or newest_of(store, family, None)


def _to_the_end(
    store: Store, family: Family, found: list[NumberedDocument]
) -> list[NumberedDocument]:
    """The given documents, of which the last two may be new, and all documents after them.

    A document follows another one only if this one is still there after the other was read:
    otherwise, a rollback may have removed both of their numbers, and a later commit has used the
    second one again. Empty if that has happened. A document that was made from another one than the
    one before it is left out, with all after it.
    """
    first_new, is_open = max(0, len(found) - 2), True
    while is_open or len(found) - first_new > 1:
        links, next_number = found[first_new:-1], found[-1].number + 1
        first_new += len(links)
        # Others may commit in each round, so it does not go on until nothing is new.
        following = range(next_number, next_number + (_PROBES + 1 if is_open else 0))
        numbers = [*(each.number for each in links), *following]
        read = store.read_present([family.path(number) for number in numbers])
        if read[: len(links)] != [each.data for each in links]:
            return []
        for number, data in zip(following, read[len(links) :], strict=True):
            if data is None:
                break
            found.append(NumberedDocument(number, data))
        is_open = is_open and found[-1].number == following[-1]
    for place, (before, after) in enumerate(itertools.pairwise(found), 1):
        if not family.follows(before.data, after.data):
            return found[:place]
    return found


def _run(store: Store, family: Family, first: int, more: int) -> list[NumberedDocument]:
    """A document and up to `more` documents that follow it without a gap."""
    numbers = range(first, first + more + 1)
    read = store.read_present([family.path(number) for number in numbers])
    found: list[NumberedDocument] = []
    for number, data in zip(numbers, read, strict=True):
        if data is None:
            break
        found.append(NumberedDocument(number, data))
    return found


def _in_line(
    family: Family, found: list[NumberedDocument], is_oldest: Callable[[int], bool]
) -> list[NumberedDocument]:
    """The given documents up to the last one that follows the one before it, or is the oldest."""
    by_number = {each.number: each for each in found}
    for place in reversed(range(len(found))):
        last = found[place]
        before = by_number.get(last.number - 1)
        if is_oldest(last.number) if before is None else family.follows(before.data, last.data):
            return found[: place + 1]
    return []


def _from_hint(store: Store, family: Family, hint: str | None) -> list[NumberedDocument]:
    """The document that a hint names, and all documents after it. Empty if the hint is wrong."""
    number = None
    if hint is not None:
        with suppress(DataError):
            number = paths.decode_hint(store.read(hint))
    if number is None or number < family.first:
        return []
    near = range(number - 1, number + 2)
    read = store.read_present([family.path(each) for each in near])
    if read[1] is None:
        return []
    pairs = zip(near, read, strict=True)
    there = [NumberedDocument(each, data) for each, data in pairs if data is not None]
    line = _in_line(family, there, partial(_is_oldest, store, family))
    found = [each for each in line if each.number >= number]
    return _to_the_end(store, family, found) if len(found) > 1 else found


def _is_oldest(store: Store, family: Family, number: int, listed: Sequence[int] = ()) -> bool:
    """Whether a document is the oldest one: those before it have expired.

    An expiry that died may have left some of them, but it first wrote the hint.
    """
    if number == min(listed, default=family.first):
        return True
    with suppress(DataError):
        if family.oldest_hint and paths.decode_hint(store.read(family.oldest_hint)) == number:
            return True
    found = listed or map(family.parse, store.list_names(family.folder))
    return min((each for each in found if each is not None), default=number) == number


def _listed(store: Store, family: Family) -> list[NumberedDocument]:
    """Find the latest document, or all documents, by a listing.

    The last document may be missing from the listing, so its number is also requested.
    """
    for attempt in range(_TRIES):
        names = store.list_names(family.folder)
        numbers = sorted(n for name in names if (n := family.parse(name)) is not None)
        if family.drop_mark in names and family.first not in numbers:
            return []
        # A listing can lag, and still show documents that a rollback has deleted: look at more.
        wanted = numbers if family.reads_all else numbers[-(_PROBES**attempt) - 1 :]
        following = wanted[-1] + 1 if wanted else family.first
        *read, beyond = store.read_present([family.path(n) for n in (*wanted, following)])
        pairs = zip((*wanted, following), (*read, beyond), strict=True)
        found = [NumberedDocument(number, data) for number, data in pairs if data is not None]
        if wanted and read[-1] is None and (family.reads_all or not found):
            continue
        line = (
            found
            if family.reads_all
            else _in_line(family, found, partial(_is_oldest, store, family, listed=numbers))
        )
        if line == found and beyond is None and (not wanted or read[-1] is not None):
            return found
        whole = _to_the_end(store, family, line) if line else []
        if whole:
            return whole
    # A rollback has deleted all that is listed, and the snapshot that it restored is not yet.
    restored = _from_hint(store, family, family.oldest_hint)
    if restored:
        return restored
    raise DataError(
        f"{store.uri_of(family.folder)}: the latest file is deleted before it can be read, again "
        "and again; stop the process that deletes files there"
    )
