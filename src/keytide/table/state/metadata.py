"""A table's stored metadata: schemas, snapshots, manifests.

Only hints and directory listings can change; every other file is written once. Those are cached,
for the whole process where their names are unique (manifests), for one table object where names
can come back (schemas, after a drop or a fast-forward), and not at all where they do come back
(snapshots, after a rollback).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import polars as pl

from keytide.arguments import shown
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.encoded_records import EncodedRecords
from keytide.format.entry_columns import Entries
from keytide.format.index_manifest import DELETION_VECTORS, IndexFile, decode_index_manifest
from keytide.format.manifest import (
    FileKind,
    ManifestFileMeta,
    decode_manifest,
    decode_manifest_list,
    open_manifest,
)
from keytide.format.schema import TableSchema
from keytide.format.snapshot import FIRST_SNAPSHOT_ID, LAST_SNAPSHOT_ID, Snapshot, Tag
from keytide.moments import moment_text
from keytide.options import TableOptions, keys
from keytide.store import Store
from keytide.table.state.beside import again

__all__ = ["TableMetadata"]

# Of manifests and of lists each; an entry takes about a kilobyte.
_CACHED_ENTRIES_MAX = 500_000
# So many manifests are worth threads to read them, of which there are so many.
_SIDE_BY_SIDE_MIN = 4
_READERS = 2
# A rollback takes snapshots away one by one; each look finds another one to be the newest.
_LOOKS_MAX = 20

_EXPIRED = (
    f"'{keys.SNAPSHOT_TIME_RETAINED}' and '{keys.SNAPSHOT_NUM_RETAINED_MIN}' say how long "
    f"snapshots stay, and tags and consumers keep them for longer"
)

V = TypeVar("V", bound=Sequence[Any])


class _SizedCache(Generic[V]):
    """The values used last, bounded by how many records they hold together.

    A manifest may have one entry or a hundred thousand, so a bound on the number of values, which
    is all that `functools.lru_cache` has, bounds nothing.
    """

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._records = 0
        self._values: OrderedDict[tuple[str, str], V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str], load: Callable[[], V]) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        # Not under the lock: a slow store must not keep those waiting who look for something else.
        # Two may load the same file, and get the same.
        values = load()
        with self._lock:
            if key not in self._values:
                self._values[key] = values
                self._records += len(values)
            while self._records > self._records_max and len(self._values) > 1:
                _, dropped = self._values.popitem(last=False)
                self._records -= len(dropped)
        return values


_MANIFESTS: _SizedCache[Entries] = _SizedCache(_CACHED_ENTRIES_MAX)
_MANIFEST_LISTS: _SizedCache[Sequence[ManifestFileMeta]] = _SizedCache(_CACHED_ENTRIES_MAX)


@dataclass
class TableMetadata:
    """Reads one table's metadata. `store` is rooted at the table.

    `name` is for messages. Safe to share between threads.
    """

    store: Store
    name: str
    _schemas: dict[int, TableSchema] = field(default_factory=dict, repr=False)
    _latest: tuple[bytes, TableSchema] | None = field(default=None, repr=False)
    """The newest schema as it was read last, which is looked at often and seldom changes."""

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "name": self.name, "_schemas": self._schemas}

    # -- schemas ------------------------------------------------------------------------------

    def latest_schema(self) -> TableSchema:
        """The newest schema. Raises `NotFoundError` when there is no table."""
        ids = [
            number
            for name in self.store.list_names(paths.schema_dir())
            if (number := paths.parse_schema_name(name)) is not None
        ]
        if not ids:
            raise NotFoundError(f"table {self.name} does not exist: no schema under {self.uri}")
        newest = max(ids)
        path = paths.schema_path(newest)
        data, known = self.store.read(path), self._latest
        if known is not None and known[0] == data:
            schema = known[1]
        else:
            schema = _numbered(TableSchema.from_json(data, self.store.uri_of(path)), newest, path)
            self._latest = data, schema
        if self._schemas.get(newest) != schema:
            # Ids come back where a table is fast-forwarded to a branch: those before may be others.
            self._schemas = {newest: schema}
        return schema

    def schema(self, schema_id: int) -> TableSchema:
        """The schema of that id. Raises `DataError` when its file is missing or torn."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._read_schema(schema_id)
        return self._schemas[schema_id]

    def _read_schema(self, schema_id: int) -> TableSchema:
        path = paths.schema_path(schema_id)
        schema = TableSchema.from_json(self.store.read(path), self.store.uri_of(path))
        return _numbered(schema, schema_id, self.store.uri_of(path))

    @property
    def uri(self) -> str:
        """Where the table lies."""
        return self.store.uri_of("")

    # -- snapshots ----------------------------------------------------------------------------

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot, or None for a table that nobody has written to.

        The LATEST hint is tried first and probed past; a missing or wrong one costs a listing.
        """
        for _ in range(_LOOKS_MAX - 1):
            latest = self.latest_snapshot_id()
            # Between the two it may be rolled back.
            with suppress(NotFoundError):
                return None if latest is None else self.snapshot(latest)
        return again(self._latest_snapshot)

    def _latest_snapshot(self) -> Snapshot | None:
        latest = self.latest_snapshot_id()
        return None if latest is None else self.snapshot(latest)

    def latest_snapshot_id(self) -> int | None:
        """The id of the newest snapshot."""
        hinted = self._hint(paths.Hint.LATEST)
        if hinted is not None and self.has_snapshot(hinted):
            # The hint is written after the snapshot, or not at all: the newest one may be further
            # on.
            while self.has_snapshot(hinted + 1):
                hinted += 1
            return hinted
        return max(self.snapshot_ids(), default=None)

    def earliest_snapshot_id(self) -> int | None:
        """The id of the oldest snapshot that is still there."""
        hinted = self._hint(paths.Hint.EARLIEST)
        if hinted is not None and self.has_snapshot(hinted):
            return hinted
        return min(self.snapshot_ids(), default=None)

    def snapshot_ids(self) -> list[int]:
        """Ids of all snapshots, ascending."""
        names = self.store.list_names(paths.snapshot_dir())
        return sorted(n for name in names if (n := paths.parse_snapshot_name(name)) is not None)

    def snapshots(self) -> Iterator[Snapshot]:
        """The snapshots, oldest first, without those that expire before they are reached.

        Raises `DataError` for a torn one.
        """
        for number in self.snapshot_ids():
            with suppress(NotFoundError):
                yield self.snapshot(number)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """The snapshot of that id.

        Raises `NotFoundError` naming the range there is when it was never made or has expired.
        """
        self._check_id(snapshot_id)
        path = paths.snapshot_path(snapshot_id)
        try:
            data = self.store.read(path)
        except DataError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise NotFoundError(self._why_missing(snapshot_id)) from error
        uri = self.store.uri_of(path)
        return _numbered(Snapshot.from_json(data, uri), snapshot_id, uri)

    def _check_id(self, snapshot_id: int) -> None:
        if not FIRST_SNAPSHOT_ID <= snapshot_id <= LAST_SNAPSHOT_ID:
            raise NotFoundError(self._why_missing(snapshot_id))

    def _why_missing(self, snapshot_id: int) -> str:
        ids = self.snapshot_ids()
        there = f"snapshots {ids[0]} to {ids[-1]} are there" if ids else "it has none"
        reason = f"table {self.name} has no snapshot {shown(snapshot_id)}; {there}"
        if snapshot_id < FIRST_SNAPSHOT_ID:
            return f"{reason}. Snapshots are numbered from {FIRST_SNAPSHOT_ID}"
        if ids and 0 < snapshot_id < ids[0]:
            reason += f". It has expired. {_EXPIRED}"
        return reason

    def logged(self, snapshot_id: int) -> Snapshot:
        """The snapshot of that id, or the changelog that outlives it.

        Raises `NotFoundError` as `snapshot`.
        """
        self._check_id(snapshot_id)
        try:
            return self.snapshot(snapshot_id)
        except NotFoundError as error:
            try:
                return self.changelog(snapshot_id)
            except DataError as missing:
                if isinstance(missing.__cause__, FileNotFoundError):
                    raise error from missing
                raise

    def changelog_ids(self) -> list[int]:
        """Ids of the changelogs that have outlived their snapshots, ascending."""
        names = self.store.list_names(paths.changelog_dir())
        return sorted(n for name in names if (n := paths.parse_changelog_name(name)) is not None)

    def changelog(self, snapshot_id: int) -> Snapshot:
        """The changelog that has outlived the snapshot of that id. Raises `DataError`."""
        path = paths.changelog_path(snapshot_id)
        return Snapshot.from_json(self.store.read(path), self.store.uri_of(path))

    def tag(self, name: str) -> Snapshot:
        """The snapshot that a tag keeps. Raises `NotFoundError` naming the tags there are."""
        return self.stored_tag(name).snapshot

    def stored_tag(self, name: str) -> Tag:
        """The tag of a name. Raises `NotFoundError` naming the tags there are."""
        tag = self._tag_if_there(name)
        if tag is None:
            raise NotFoundError(
                f"table {self.name} has no tag {name!r}; it has "
                f"{', '.join(self.tag_names()) or 'none'}"
            )
        return tag

    def has_tag(self, name: str) -> bool:
        """Whether there is a tag of that name. Raises `InvalidError` for what no tag can have."""
        return self.store.exists(paths.tag_path(name))

    def tag_names(self) -> list[str]:
        """Names of all tags, sorted."""
        names = self.store.list_names(paths.tag_dir())
        return sorted(tag for name in names if (tag := paths.parse_tag_name(name)) is not None)

    def tags(self) -> dict[str, Tag]:
        """All tags by name, sorted. One that goes away meanwhile may be left out.

        Raises `DataError` for a torn one.
        """
        found = {name: self._tag_if_there(name) for name in self.tag_names()}
        return {name: tag for name, tag in found.items() if tag is not None}

    def _tag_if_there(self, name: str) -> Tag | None:
        path = paths.tag_path(name)
        try:
            return Tag.from_json(self.store.read(path), self.store.uri_of(path))
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def snapshot_as_of(self, time_millis: int) -> Snapshot:
        """The newest snapshot made at or before a time (epoch milliseconds).

        Raises `NotFoundError` when the table is younger than that.
        """
        ids = self.snapshot_ids()
        low, high = 0, len(ids)
        found: Snapshot | None = None
        while low < high:
            middle = (low + high) // 2
            try:
                snapshot = self.snapshot(ids[middle])
            except NotFoundError:  # expired meanwhile, as have all that are older
                low = middle + 1
                continue
            if snapshot.time_millis <= time_millis:
                low, found = middle + 1, snapshot
            else:
                high = middle
        if found is None:
            raise NotFoundError(
                f"table {self.name} has no snapshot at or before "
                f"{moment_text(time_millis)}; the oldest one is "
                + (
                    f"from {moment_text(self.snapshot(ids[low]).time_millis)}"
                    if ids
                    else "not made yet"
                )
                + (f". {_EXPIRED}" if ids and ids[low] > FIRST_SNAPSHOT_ID else "")
            )
        return found

    def hint_latest(self, snapshot_id: int) -> None:
        """Tell readers where to start looking. Best effort: a hint is only a hint."""
        path = paths.snapshot_hint_path(paths.Hint.LATEST)
        self.store.hint(path, paths.encode_hint(snapshot_id))

    def hint_earliest(self, snapshot_id: int) -> None:
        """Tell which snapshot is the oldest. Best effort, likewise."""
        path = paths.snapshot_hint_path(paths.Hint.EARLIEST)
        self.store.hint(path, paths.encode_hint(snapshot_id))

    def hinted_latest(self) -> int | None:
        """What the hint says of the newest snapshot, right or wrong; None where there is none."""
        return self._hint(paths.Hint.LATEST)

    def _hint(self, hint: paths.Hint) -> int | None:
        try:
            return paths.decode_hint(self.store.read(paths.snapshot_hint_path(hint)))
        except DataError:
            return None

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether the snapshot of that id is there."""
        return self.store.exists(paths.snapshot_path(snapshot_id))

    # -- manifests ----------------------------------------------------------------------------

    def manifest_list(self, name: str, size: int | None = None) -> Sequence[ManifestFileMeta]:
        """The manifests that a list names, in order. `size` is the recorded one, in bytes.

        Raises `DataError` naming the file when it is missing or torn.
        """

        def load() -> Sequence[ManifestFileMeta]:
            path = paths.manifest_path(name)
            return tuple(decode_manifest_list(self.store.read(path), self.store.uri_of(path), size))

        return _MANIFEST_LISTS.get((self.uri, name), load)

    def manifest(self, meta: ManifestFileMeta) -> Entries:
        """The file entries of a manifest, in order. Raises as `manifest_list` does."""

        def load() -> Entries:
            path = paths.manifest_path(meta.file_name)
            data = self.store.read(path)
            return decode_manifest(data, self.store.uri_of(path), meta.file_size)

        return _MANIFESTS.get((self.uri, meta.file_name), load)

    def open_manifest(self, meta: ManifestFileMeta) -> EncodedRecords:
        """The same as they are encoded, to be copied."""
        path = paths.manifest_path(meta.file_name)
        return open_manifest(self.store.read(path), self.store.uri_of(path), meta.file_size)

    def base_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of everything before a snapshot's own commit."""
        return self.manifest_list(snapshot.base_manifest_list, snapshot.base_manifest_list_size)

    def delta_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of what a snapshot's commit changed."""
        return self.manifest_list(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)

    def changelog_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of the changelog that is stored with a snapshot, if there is one."""
        name, size = snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
        return () if name is None else self.manifest_list(name, size)

    def manifests(self, snapshot: Snapshot) -> list[ManifestFileMeta]:
        """All manifests of a snapshot, in the order of their commits."""
        return [*self.base_manifests(snapshot), *self.delta_manifests(snapshot)]

    def entries(self, manifests: Iterable[ManifestFileMeta]) -> Entries:
        """The entries of several manifests, in order.

        Raises as `manifest` does, and `DataError` for one that names a schema that is not there.
        """
        named = list(manifests)
        if len(named) < _SIDE_BY_SIDE_MIN:
            return Entries.together([self._checked_manifest(meta) for meta in named])
        # A store is waited for, and manifests are unpacked, without Python's lock.
        with ThreadPoolExecutor(min(len(named), _READERS)) as pool:
            return Entries.together(list(pool.map(self._checked_manifest, named)))

    def _checked_manifest(self, meta: ManifestFileMeta) -> Entries:
        entries = self.manifest(meta)
        # What is deleted is not read.
        added = entries.columns("_KIND", "_SCHEMA_ID").filter(pl.col("_KIND") == FileKind.ADD)
        for schema_id in added["_SCHEMA_ID"].unique():
            with self._naming_schema(meta, schema_id):
                self.schema(schema_id)
        return entries

    @contextmanager
    def _naming_schema(self, meta: ManifestFileMeta, schema_id: int) -> Iterator[None]:
        try:
            yield
        except (DataError, InvalidError) as error:
            uri = self.store.uri_of(paths.manifest_path(meta.file_name))
            raise DataError(
                f"{uri}: a data file that it names was written with schema {schema_id}, which "
                f"cannot be read: {error}"
            ) from error.__cause__ or error

    def index_files(self, snapshot: Snapshot) -> list[IndexFile]:
        """The index files of a snapshot: deletion vectors and hash indexes."""
        if snapshot.index_manifest is None:
            return []
        path = paths.manifest_path(snapshot.index_manifest)
        return list(decode_index_manifest(self.store.read(path), self.store.uri_of(path)))

    def vector_files(self, snapshot: Snapshot | None, options: TableOptions) -> list[IndexFile]:
        """The index files that mark rows of a snapshot's data files as dead.

        None where the table has no use for them, whatever indexes there are.
        """
        if snapshot is None or not options.deletion_vectors_enabled:
            return []
        files = self.index_files(snapshot)
        return [file for file in files if file.index_type == DELETION_VECTORS]


_N = TypeVar("_N", Snapshot, TableSchema)


def _numbered(document: _N, number: int, path: str) -> _N:
    """A document that has the number which its name says. Raises `DataError` for another one."""
    if document.id != number:
        raise DataError(
            f"{path}: member 'id' is {document.id}, and the name says {number}; restore the file "
            f"from a copy"
        )
    return document
