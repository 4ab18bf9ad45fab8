"""The form of a publication: the interface of a format, and what there is to publish of a snapshot.

A format has its own numbered versions. A version is created by creating a file that does not exist:
of several publishers, one creates the next version, and the others read again. A version is
computed from the previous version and the state to show. So a missed or lost version is made up for
by the next one.

What there is to publish of a snapshot is its plain files, and the dead rows of each. Deletion
vectors are encoded once and identified by a digest. Earlier publications are kept for a time, for
readers that are using them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeVar

from cachetools import LRUCache

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.format.index_files import IndexFile, PortableVector, Vector, stored_vectors
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.gate import why_not_plain
from keytide.options import TableOptions
from keytide.read.key_index_rebuild import unsettled_buckets
from keytide.read.plan import plan_files
from keytide.snapshot.lineage import CheckTimes
from keytide.snapshot.live_files import vector_file_path
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store

# -- contents of a snapshot ------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """A snapshot as plain files. Readers see all of their rows except the dead ones.

    `files` are identified by their names, which are unique.
    """

    state: TableState
    snapshot: Snapshot
    files: Mapping[str, ManifestEntry]

    @property
    def view(self) -> TableView:
        """The table at the schema of the snapshot."""
        return self.state.view

    @cached_property
    def names_with_dead_rows(self) -> frozenset[str]:
        """The names of files with dead rows."""
        marked = (place for file in self.state.vector_files for place in file.ranges or ())
        return frozenset(place.data_file_name for place in marked if place.cardinality != 0)

    def path(self, name: str) -> str:
        """The path of a file in the table."""
        return self.view.file_path(self.files[name])

    @property
    def older_schemas(self) -> Mapping[int, TableSchema]:
        """The other schemas that files were written with."""
        ids = {entry.file.schema_id for entry in self.files.values()} - {self.view.schema.id}
        return {number: self.view.schemas[number] for number in sorted(ids)}


def content_of(table: StoredTable, snapshot: Snapshot) -> Content | str:
    """What there is to publish of a snapshot, or the reason why nothing can be published.

    Its columns are those of its time, as in time travel. Raises `DataError` like other reads.
    """
    state = table.state(table.metadata.schema(snapshot.schema_id), snapshot)
    for (_, bucket), _ in unsettled_buckets(state):
        return (
            f"another engine added files to bucket {bucket}, and no write has settled yet which of "
            "their rows replace others; the next write into the bucket does"
        )
    unlike = why_not_plain(state.view.schema)
    if unlike is not None:
        return unlike
    files = _files(state)
    if isinstance(files, str):
        return files
    for entry in files:
        if entry.file.external_path is not None:
            return f"{entry.file.external_path} is outside the table"
        if not entry.file.file_name.endswith(".parquet"):
            return f"{state.view.shown_path(entry)} is not a Parquet file"
    return Content(state, snapshot, {entry.file.file_name: entry for entry in files})


def _files(state: TableState) -> list[ManifestEntry] | str:
    """The files, if a read of the whole snapshot reads each one separately.

    Otherwise the reason why not. In tables that store no versions, these are all files. Planning a
    read would cost in proportion to the table, but a publication must cost in proportion to the
    commit.
    """
    if not state.view.kind.keeps_versions:
        return [entry for entry in state.live.files if entry.bucket >= 0]
    view = state.view
    plan = plan_files(view, state.live.files, None, state.vector_files)
    for bucket in plan.buckets:
        for section in bucket.sections:
            if section.needs_merge:
                where = view.bucket_directory(bucket.partition, bucket.bucket)
                return f"files of {where} contain versions of the same key that must be merged"
            for file in section.files:
                if file.may_retract:
                    shown = view.shown_path(file.entry)
                    return f"{shown} can contain deletes and update-before rows"
    return [file.entry for bucket in plan.buckets for file in bucket.files]


# -- the interface of a format ---------------------------------------------------------------------


class Version(Protocol):
    """One version of the published form, as a value."""

    @property
    def version(self) -> int:
        """Its number."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that it shows. None if it does not say."""
        ...

    @property
    def commit(self) -> int | None:
        """The `commit_number` of that snapshot. None if it does not say."""
        ...

    @property
    def by_name(self) -> Mapping[str, Any]:
        """The data files that its readers read, by name."""
        ...


def shows(version: Version | None, snapshot: Snapshot | None) -> bool:
    """Whether a version shows a snapshot, and not another one that had its id before a rollback."""
    if version is None or snapshot is None:
        return version is None and snapshot is None
    # Earlier releases did not record the commit.
    is_commit = version.commit in (None, snapshot.commit_number)
    return version.snapshot_id == snapshot.id and is_commit


V = TypeVar("V", bound=Version)
V_co = TypeVar("V_co", bound=Version, covariant=True)


class Draft(Protocol[V_co]):
    """The next version, about to be created."""

    def create(self, store: Store) -> V_co | None:
        """Create it.

        None if another publisher has created this number: then nothing is left behind. Raises
        `DataError` if the store fails. The version may have been created nevertheless.
        """
        ...


class Form(Protocol[V]):
    """A format for publishing. Stores are rooted at the table."""

    @property
    def name(self) -> str:
        """Its name in the option 'publish'."""
        ...

    def why_not(self, content: Content) -> str | None:
        """Why readers of the format would not see the right rows. None if they would."""
        ...

    def newest(self, store: Store, known: V | None) -> V | None:
        """The latest version, found from a known one or by a new search. None if there is none.

        Raises `DataError` if it cannot be read.
        """
        ...

    def is_outdated(self, before: V) -> bool:
        """Whether a version was created with newer options than these, so that those apply."""
        ...

    def draft(self, before: V | None, content: Content, now_ms: int) -> Draft[V] | None:
        """The version that shows the content, computed from the previous one.

        None if that already shows it.
        """
        ...

    def is_there(self, store: Store, version: V) -> bool:
        """Whether a known version still exists."""
        ...

    def take_back(self, store: Store, version: V) -> None:
        """Remove a version that was created on top of one that no longer exists."""
        ...

    def announce(self, store: Store, version: V) -> None:
        """Tell readers about a new version, if they do not find it by themselves."""
        ...

    def tidy(self, store: Store, version: V, content: Content, now_ms: int) -> None:
        """Work that is due after a version is created: write checkpoints, and delete what is
        old.
        """
        ...


# -- deletion vectors ------------------------------------------------------------------------------


_FILES_MAX = 4096


def digests_of(content: Content) -> Mapping[str, str]:
    """A digest for the vector of each data file that has one, by file name.

    Vectors of index files that this process does not know yet are read and encoded.
    """
    with _LOCK:
        kept = [(file, _DIGESTS.get(_key(content, file))) for file in content.state.vector_files]
    found: dict[str, str] = {}
    for _, digests in kept:
        found |= digests or {}
    new = [file for file, digests in kept if digests is None]
    for file, vectors in zip(new, _stored(content, new), strict=True):
        by_file = {name: PortableVector.of(vector).digest for name, vector in vectors.items()}
        with _LOCK:
            _DIGESTS[_key(content, file)] = by_file
        found |= by_file
    return found


def stored(content: Content, names: Collection[str]) -> dict[str, Vector]:
    """The vectors of some data files."""
    wanted = frozenset(names)
    files = [file for file in content.state.vector_files
             if any(place.data_file_name in wanted for place in file.ranges or ())]  # fmt: skip
    vectors: dict[str, Vector] = {}
    for each in _stored(content, files):
        vectors |= {name: vector for name, vector in each.items() if name in wanted}
    return vectors


def _stored(content: Content, files: Sequence[IndexFile]) -> list[dict[str, Vector]]:
    store = content.view.store
    pairs = ((vector_file_path(file, content.view.name), file.ranges or ()) for file in files)
    found = store.together([partial(stored_vectors, store, *pair) for pair in pairs])
    return [{name: vector for name, vector in each.items() if len(vector)} for each in found]


def _key(content: Content, file: IndexFile) -> tuple[object, str]:
    return content.view.store.identity, file.file_name


_DIGESTS: LRUCache[tuple[object, str], dict[str, str]] = LRUCache(_FILES_MAX)
_LOCK = Lock()


# -- retention of publications ---------------------------------------------------------------------


_LEAST_MS = 60 * 60 * 1000
# Finding what is old needs a listing, and longer intervals find more at a time.
_SECONDS_BETWEEN = 60

_LOOKS = CheckTimes()


def kept_since_ms(options: TableOptions, now_ms: int) -> int:
    """The earliest start of readers that may still be reading: as long as snapshots are kept."""
    return now_ms - max(options.snapshot_time_retained_ms, _LEAST_MS)


def is_time_to_drop(store: Store, form: str) -> bool:
    """Whether it is time for this process to delete old publications.

    If so, the time is recorded.
    """
    return _LOOKS.is_time(f"{store.uri} {form}", _SECONDS_BETWEEN)


# -- cached versions -------------------------------------------------------------------------------


# For all tables together. Each takes some hundred bytes.
_SEEN_FILES_MAX = 500_000

_SEEN: LRUCache[Hashable, Any] = LRUCache(_SEEN_FILES_MAX, lambda version: 1 + len(version.by_name))


def recall(store: Store, form: str) -> Any:
    """The version of a format that this process created or saw last. None if there is none."""
    with _LOCK:
        return _SEEN.get((store.identity, form))


def remember(store: Store, form: str, version: Any) -> None:
    """Cache a version, unless it has too many files."""
    with _LOCK:
        if len(version.by_name) < _SEEN_FILES_MAX:
            _SEEN[store.identity, form] = version
        else:
            _SEEN.pop((store.identity, form), None)


def forget(store: Store, form: str) -> None:
    """Remove a version from the cache."""
    with _LOCK:
        _SEEN.pop((store.identity, form), None)


def forget_publications() -> None:
    """Clear the cache, as in a new process."""
    with _LOCK:
        _SEEN.clear()
