"""The stored metadata of a table: schemas, snapshots, manifests.

Only hints and directory listings can change. Every other file is written once, and the process
caches it: by its name if the name is unique (manifests), and by its lineage if names can be reused
(schemas and snapshots).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import polars as pl

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, field
from keytide.base.process import side_by_side
from keytide.base.text import moment_text
from keytide.definition.kind import kind_of
from keytide.errors import (
    DataError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format import paths
from keytide.format.avro import EncodedRecords
from keytide.format.cache import METADATA
from keytide.format.index_files import DELETION_VECTORS, IndexFile, decode_index_manifest
from keytide.format.manifest import (
    ManifestFileMeta,
    decode_manifest,
    decode_manifest_list,
    open_manifests,
)
from keytide.format.manifest_entry import Entries, FileKind
from keytide.format.schema import TableSchema
from keytide.format.snapshot import (
    FIRST_SNAPSHOT_ID,
    LAST_SNAPSHOT_ID,
    Snapshot,
    Tag,
    is_based_on,
)
from keytide.options import TableOptions, keys
from keytide.snapshot.authority import (
    FOLDER_COMMITS,
    Commits,
    NumberedDocument,
    TellChanges,
    no_changes,
)
from keytide.snapshot.lineage import (
    CacheableRange,
    LatestDocuments,
    Lineage,
    SchemasInForce,
    advance,
    last_seen,
    latest_documents,
)
from keytide.store import Store, created

# From this many manifests on, threads read them.
_SIDE_BY_SIDE_MIN = 4
_READERS = 2
# How many snapshots are read, or in memory, at a time.
_SNAPSHOTS_TOGETHER = 64
# Measured: a document uses one to six times the size of its JSON in memory. An entry of a manifest
# or manifest list uses at most half a kilobyte.
_TIMES_STORED = 8
_ENTRY_BYTES = 1 << 10

_EXPIRED = (
    f"'{keys.SNAPSHOT_TIME_RETAINED}' and '{keys.SNAPSHOT_NUM_RETAINED_MIN}' set how long "
    "snapshots are kept; tags and consumers keep them longer"
)


@dataclass(frozen=True)
class Look:
    """The latest snapshot of a table at one moment, and its schemas."""

    lineage: Lineage
    schemas: SchemasInForce
    snapshot: NumberedDocument | None = None
    """In stored form: if it is damaged, the code that reads it raises the error."""


@dataclass
class TableMetadata:
    """Reads the metadata of one table. `store` is rooted at the table.

    `name` is used in messages, and `commits` is where snapshots are created. Safe to share between
    threads.
    """

    store: Store
    name: str
    commits: Commits = FOLDER_COMMITS
    _last_encoded: tuple[Snapshot, bytes] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    # -- the latest -----------------------------------------------------------------------------

    def look(self) -> Look:
        """Read the current latest schema and snapshot from the store.

        Raises `NotFoundError` if there is no table, and `DataError` for a damaged schema.
        """
        listed = self.store.begin(self._list_known)
        seen = self.look_alone()
        listed.result()
        return seen

    def look_alone(self) -> Look:
        """As `look`, for callers that read the manifests of the last known snapshot in parallel."""
        seen = self._look()
        return Look(seen.lineage, self._schemas_in_force(seen), seen.snapshot)

    def expected_look(self) -> Look | None:
        """The most likely result of `look`. None if others committed before the last one.

        Sends no request: the result is what this process last saw or created.
        """
        seen = last_seen(self.store)
        if seen.schema is None or seen.has_moved:
            return None
        try:
            return Look(seen.lineage, self._schemas_in_force(seen), seen.snapshot)
        except KeytideError:
            return None  # `look` raises a descriptive error

    def _list_known(self) -> None:
        """Read the manifest list of the last known snapshot from a remote store.

        It most often still is the latest snapshot. In parallel with the other read, this takes no
        extra time. If it fails, the code that needs the list raises the error.
        """
        known = last_seen(self.store).snapshot
        if known is None or self.store.local_path(paths.MANIFEST_DIR) is not None:
            return
        with suppress(KeytideError):
            snapshot = self._snapshot(self.lineage, known.number, known.data)
            indexes = self.store.begin(partial(self.index_files, snapshot))
            self.manifests(snapshot)
            indexes.result()

    def latest_schema(self) -> TableSchema:
        """The schema in force, see `SchemasInForce`.

        Raises `NotFoundError` if there is no table.
        """
        return self.schemas_in_force().schema

    def newest_schema(self) -> TableSchema:
        """The latest schema, in force or not. Raises `NotFoundError` if there is no table."""
        return self._newest_schema(self._look())

    def schemas_in_force(self) -> SchemasInForce:
        """The schema in force and the latest one. Raises `NotFoundError` if there is no table."""
        return self._schemas_in_force(self._look())

    def latest_snapshot(self) -> Snapshot | None:
        """The latest snapshot. None if nothing was ever written."""
        seen = self._look()
        return self._decoded_snapshot(seen.lineage, seen.snapshot)

    def latest_snapshot_id(self) -> int | None:
        """The id of the latest snapshot."""
        found = self._look().snapshot
        return None if found is None else found.number

    def is_outdated(self, snapshot: Snapshot | None) -> bool:
        """Whether a snapshot is no longer the latest, or is gone."""
        if snapshot is None:
            return self.latest_snapshot_id() is not None
        known = last_seen(self.store).snapshot
        if known is None or known.number != snapshot.id:
            known = NumberedDocument(snapshot.id, self._encoded(snapshot))
        newest = next(iter(self.commits.newest(self.store, known)[-1:]), None)
        if newest is None or newest.number != snapshot.id:
            return True
        # Other engines may encode the same snapshot differently.
        is_same = newest.data == self._encoded(snapshot)
        return not is_same and self._decoded(newest.number, newest.data) != snapshot

    def begin_check(self, snapshot: Snapshot | None) -> Future[bool]:
        """Start to check whether a snapshot is outdated."""
        return self.store.begin(partial(self.is_outdated, snapshot))

    def create(self, snapshot: Snapshot, changes: TellChanges = no_changes) -> bool:
        """Make a snapshot the latest, as `Commits.create`. This is the commit."""
        return self.commits.create(self.store, snapshot.id, self._encoded(snapshot), changes)

    def _encoded(self, snapshot: Snapshot) -> bytes:
        """The bytes of a snapshot. A commit needs those of the same snapshot several times."""
        last = self._last_encoded
        if last is None or last[0] is not snapshot:
            last = self._last_encoded = snapshot, snapshot.to_json()
        return last[1]

    def remove(self, snapshot_ids: Sequence[int]) -> None:
        """Remove the latest snapshots, from the last of these ids to the first."""
        self.commits.remove(self.store, snapshot_ids)

    def cache_created(self, snapshot: Snapshot) -> None:
        """Cache a snapshot that this process created on top of the latest."""
        advance(self.store, self.lineage, NumberedDocument(snapshot.id, self._encoded(snapshot)))

    def _look(self) -> LatestDocuments:
        seen = latest_documents(self.store, self.commits)
        # If one is damaged, the code that needs it raises the error.
        for found in seen.schemas[:-1]:
            with suppress(DataError, InvalidError):
                self._schema(seen.lineage, found.number, found.data)
        for found in seen.snapshots[:-1]:
            with suppress(DataError, InvalidError):
                self._snapshot(seen.lineage, found.number, found.data)
        return seen

    def _newest_schema(self, seen: LatestDocuments) -> TableSchema:
        if seen.schema is None:
            raise NotFoundError(
                f"table {self.name} does not exist: there is no schema under {self.uri}"
            )
        return self._schema(seen.lineage, seen.schema.number, seen.schema.data)

    def _schemas_in_force(self, seen: LatestDocuments) -> SchemasInForce:
        newest = self._newest_schema(seen)
        try:
            snapshot = self._decoded_snapshot(seen.lineage, seen.snapshot)
        except KeytideError:
            snapshot = None  # the code that reads it raises the error
        if snapshot is None or snapshot.schema_id == newest.id:
            return SchemasInForce.of([newest])
        # A conversion may end during the read. Check that the schema exists before others are read,
        # because a damaged number can have any value.
        if snapshot.schema_id > newest.id:
            self._schema(seen.lineage, snapshot.schema_id)
        # Readers of the table need the earlier ones too.
        numbers = range(max(newest.id, snapshot.schema_id) + 1)
        calls = [partial(self._schema, seen.lineage, number) for number in numbers]
        return SchemasInForce.of(self.store.together(calls)[snapshot.schema_id :])

    def _decoded_snapshot(
        self, lineage: Lineage, found: NumberedDocument | None
    ) -> Snapshot | None:
        return None if found is None else self._snapshot(lineage, found.number, found.data)

    # -- schemas ------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> TableSchema:
        """The schema with that id. Raises `DataError` if its file is missing or damaged."""
        return self._schema(self.lineage, schema_id)

    def schemas(self, schema_ids: Collection[int]) -> dict[int, TableSchema]:
        """The schemas with these ids, read in parallel. Raises the same errors as `schema`."""
        calls = [partial(self.schema, schema_id) for schema_id in schema_ids]
        return dict(zip(schema_ids, self.store.together(calls), strict=True))

    def has_kind_of(self, schema: TableSchema, snapshot: Snapshot | None) -> bool:
        """Whether a snapshot has the kind of table that a schema defines. True for None."""
        return snapshot is None or kind_of(self.schema(snapshot.schema_id)) is kind_of(schema)

    @property
    def lineage(self) -> Lineage:
        """Identifies which documents are meant, because numbers may be reused."""
        return last_seen(self.store).lineage

    def _schema(self, lineage: Lineage, number: int, data: bytes | None = None) -> TableSchema:
        path = paths.schema_path(number)
        uri = self.store.uri_of(path)

        def load() -> tuple[TableSchema, int]:
            stored = self.store.read(path) if data is None else data
            schema = TableSchema.from_json(stored, uri)
            return _numbered(schema, number, uri), _TIMES_STORED * len(stored)

        return METADATA.load((lineage, uri), load)

    def _snapshot(self, lineage: Lineage, number: int, data: bytes | None = None) -> Snapshot:
        path = paths.snapshot_path(number)
        uri = self.store.uri_of(path)

        def load() -> tuple[Snapshot, int]:
            stored = self.store.read(path) if data is None else data
            return self._decoded(number, stored), _TIMES_STORED * len(stored)

        return METADATA.load((lineage, uri), load)

    @property
    def uri(self) -> str:
        """Where the table is stored."""
        return self.store.uri_of("")

    # -- snapshots ----------------------------------------------------------------------------

    def earliest_snapshot_id(self) -> int | None:
        """The id of the oldest snapshot that still exists."""
        hinted = self.hinted(paths.Hint.EARLIEST)
        if hinted is not None and self.has_snapshot(hinted):
            return hinted
        # A listing that lags lacks the newest, so only an empty one may lack the oldest.
        return min(self.listed_snapshot_ids() or self.snapshot_ids(), default=None)

    def snapshot_ids(self) -> list[int]:
        """Ids of all snapshots, ascending. Newer ones than in the listing are found by `look`."""
        listed, known = self._listed_and_known()
        return [number for number in listed if number <= known.newest_id]

    def stored_snapshot_ids(self) -> list[int]:
        """As `snapshot_ids`, with those that were just created or are not part of the table.

        None of those that a rollback has deleted, though the listing may still show them.
        """
        listed, known = self._listed_and_known()
        beyond = [number for number in listed if number > known.newest_id]
        calls = [partial(self.store.exists, paths.snapshot_path(number)) for number in beyond]
        are_there = self.store.together(calls)
        gone = {number for number, is_there in zip(beyond, are_there, strict=True) if not is_there}
        return [number for number in listed if number not in gone]

    def listed_snapshot_ids(self) -> list[int]:
        """Ids of the snapshots in a listing, ascending, independent of what was seen before."""
        return self.commits.ids(self.store)

    def _listed_and_known(self) -> tuple[list[int], CacheableRange]:
        listing = self.store.begin(self.listed_snapshot_ids)
        known = self._known_now()
        listed = listing.result()
        # Add snapshots that were created in the meantime, or that the listing does not show yet,
        # though it may still show later ones that a rollback has deleted.
        there = [number for number in listed if number <= known.newest_id]
        first = there[-1] + 1 if there else max(known.newest_id, FIRST_SNAPSHOT_ID)
        return sorted({*listed, *range(first, known.newest_id + 1)}), known

    def snapshots(self) -> Iterator[Snapshot]:
        """The snapshots as of one read, oldest first, without those that expire in the meantime.

        Raises `DataError` for a damaged one.
        """
        listed, known = self._listed_and_known()
        ids = [number for number in listed if number <= known.newest_id]
        for start in range(0, len(ids), _SNAPSHOTS_TOGETHER):
            calls = [
                partial(self._snapshot_if_there, known.lineage, number)
                for number in ids[start : start + _SNAPSHOTS_TOGETHER]
            ]
            yield from (found for found in self.store.together(calls) if found is not None)

    def _snapshot_if_there(self, lineage: Lineage, snapshot_id: int) -> Snapshot | None:
        try:
            with self._missing(snapshot_id):
                return self._snapshot(lineage, snapshot_id)
        except NotFoundError:
            return None

    def _known_now(self) -> CacheableRange:
        """Which snapshots this process may cache, after a read from the store."""
        return CacheableRange.of(self._look())

    def _cacheable_range(self) -> CacheableRange:
        """Which snapshots this process may cache, as of its previous read."""
        return CacheableRange.of(last_seen(self.store))

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """The snapshot with that id.

        Raises `NotFoundError`, which names the existing range, if it was never created or has
        expired.
        """
        self._check_id(snapshot_id)
        with self._missing(snapshot_id):
            return self._decoded(snapshot_id, self.store.read(paths.snapshot_path(snapshot_id)))

    def each_there(self, snapshot_ids: Iterable[int]) -> Iterator[Snapshot]:
        """As `snapshot`, for any number of ids, without those that do not exist.

        They are read in parallel, a few at a time.
        """

        def read(number: int) -> Snapshot | None:
            with suppress(NotFoundError):
                return self.snapshot(number)
            return None

        found = self.store.each(partial(read, number) for number in snapshot_ids)
        return (snapshot for snapshot in found if snapshot is not None)

    def cached_snapshot(self, snapshot_id: int) -> Snapshot:
        """As `snapshot`, for callers that know that it existed at the last read.

        It may have expired since then, or even before if this process had already read it. A
        snapshot newer than that read is always read again, because it may have been removed and
        recreated.
        """
        known = self._cacheable_range()
        if snapshot_id > known.newest_id:
            return self.snapshot(snapshot_id)
        self._check_id(snapshot_id)
        with self._missing(snapshot_id):
            return self._snapshot(known.lineage, snapshot_id)

    @contextmanager
    def _missing(self, snapshot_id: int) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise NotFoundError(self._why_missing(snapshot_id)) from error

    def _decoded(self, snapshot_id: int, data: bytes) -> Snapshot:
        uri = self.store.uri_of(paths.snapshot_path(snapshot_id))
        return _numbered(Snapshot.from_json(data, uri), snapshot_id, uri)

    def _check_id(self, snapshot_id: int) -> None:
        if not FIRST_SNAPSHOT_ID <= snapshot_id <= LAST_SNAPSHOT_ID:
            raise NotFoundError(self._why_missing(snapshot_id))

    def _why_missing(self, snapshot_id: int) -> str:
        ids = self.listed_snapshot_ids()
        there = f"snapshots {ids[0]} to {ids[-1]} exist" if ids else "it has no snapshots"
        reason = f"table {self.name} has no snapshot {shown(snapshot_id)}; {there}"
        if snapshot_id < FIRST_SNAPSHOT_ID:
            return f"{reason}. Snapshot ids start with {FIRST_SNAPSHOT_ID}"
        if ids and 0 < snapshot_id < ids[0]:
            reason += f". It has expired. {_EXPIRED}"
        return reason

    def snapshot_or_changelog(self, snapshot_id: int) -> Snapshot:
        """The snapshot with that id, or the changelog that outlives it.

        Raises `NotFoundError` like `snapshot`.
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
        """The changelog that has outlived the snapshot with that id. Raises `DataError`."""
        path = paths.changelog_path(snapshot_id)
        return Snapshot.from_json(self.store.read(path), self.store.uri_of(path))

    def tag(self, name: str) -> Snapshot:
        """The snapshot of a tag. Raises `NotFoundError`, which lists the existing tags."""
        return self.stored_tag(name).snapshot

    def stored_tag(self, name: str) -> Tag:
        """The tag with that name. Raises `NotFoundError`, which lists the existing tags."""
        tag = self._tag_if_there(name)
        if tag is None:
            raise NotFoundError(
                f"table {self.name} has no tag {name!r}; existing tags: "
                f"{', '.join(self.tag_names()) or 'none'}"
            )
        return tag

    def has_tag(self, name: str) -> bool:
        """Whether there is a tag with that name. Raises `InvalidError` for an invalid tag name."""
        return self.store.exists(paths.tag_path(name))

    def tag_names(self) -> list[str]:
        """Names of all tags, sorted."""
        names = self.store.list_names(paths.tag_dir())
        return sorted(tag for name in names if (tag := paths.parse_tag_name(name)) is not None)

    def tags(self) -> dict[str, Tag]:
        """All tags by name, sorted. A tag that is deleted in the meantime may be missing.

        Raises `DataError` for a damaged one.
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

    def create_tag(self, name: str, tag: Tag) -> bool:
        """Create a tag: atomic. False if a tag with that name exists."""
        keeper = self.commits.keeper
        if keeper is not None:
            return keeper.create_tag(self.store, name, tag)
        return created(self.store, paths.tag_path(name), tag.to_json())

    def replace_tag(self, name: str, tag: Tag) -> None:
        """Replace the content of a tag. Raises `UnsupportedError` if a catalog manages the tags."""
        if self.commits.keeper is not None:
            raise UnsupportedError(
                f"table {self.name}: its catalog cannot replace the tag {name!r} in one step; "
                "delete it and create it again"
            )
        self.store.put(paths.tag_path(name), tag.to_json())

    def delete_tag(self, name: str) -> None:
        """Delete a tag. It may be gone already."""
        keeper = self.commits.keeper
        if keeper is not None:
            keeper.delete_tag(self.store, name)
        else:
            self.store.delete([paths.tag_path(name)])

    def snapshot_as_of(self, time_millis: int) -> Snapshot:
        """The latest snapshot created at or before a time (epoch milliseconds).

        Raises `NotFoundError` if the table is younger than that.
        """
        ids = self.snapshot_ids()
        low, high = 0, len(ids)
        found: Snapshot | None = None
        while low < high:
            middle = (low + high) // 2
            try:
                snapshot = self.snapshot(ids[middle])
            except NotFoundError:  # expired in the meantime, like all older ones
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
                    else "which does not exist yet"
                )
                + (f". {_EXPIRED}" if ids and ids[low] > FIRST_SNAPSHOT_ID else "")
            )
        return found

    def hint_latest(self, snapshot_id: int) -> None:
        """Write the hint that says where readers start to look. Best effort: it is only a hint."""
        path = paths.snapshot_hint_path(paths.Hint.LATEST)
        self.store.hint(path, paths.encode_hint(snapshot_id))

    def hinted(self, hint: paths.Hint) -> int | None:
        """A snapshot according to a hint, which may be wrong. None if there is no hint."""
        try:
            return paths.decode_hint(self.store.read(paths.snapshot_hint_path(hint)))
        except DataError:
            return None

    def by(self, store: Store, name: str) -> TableMetadata:
        """The metadata of a branch of the table, or of this one, accessed through another store."""
        return TableMetadata(store, name, self.commits)

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether the snapshot with that id exists."""
        return self.store.exists(paths.snapshot_path(snapshot_id))

    def has(self, snapshot: Snapshot) -> bool:
        """Whether this very snapshot exists. After a rollback, another one may have its id."""
        try:
            return self.snapshot(snapshot.id) == snapshot
        except NotFoundError:
            return False

    def keeps(self, snapshot: Snapshot) -> bool | None:
        """Whether a snapshot is part of the table. None if there is none with its id.

        It is not if another one has its id, and not if a rollback has removed the one that it was
        made from.
        """
        numbers = snapshot.id - 1, snapshot.id
        before, own = self.store.read_present([paths.snapshot_path(each) for each in numbers])
        if own is None:
            return None
        if self._decoded(snapshot.id, own) != snapshot:
            return False
        if before is not None:
            return is_based_on(snapshot, self._decoded(snapshot.id - 1, before))
        # The one before it may have expired.
        is_oldest = snapshot.id in (FIRST_SNAPSHOT_ID, self.hinted(paths.Hint.EARLIEST))
        return is_oldest or min(self.listed_snapshot_ids(), default=snapshot.id) == snapshot.id

    # -- manifests ----------------------------------------------------------------------------

    def manifest_list(self, name: str, size: int | None = None) -> Sequence[ManifestFileMeta]:
        """The manifests in a list, in order. `size` is the recorded size in bytes.

        Raises `DataError`, which names the file, if it is missing or damaged.
        """

        uri = self.store.uri_of(path := paths.manifest_path(name))

        def load() -> tuple[Sequence[ManifestFileMeta], int]:
            return sized_list(decode_manifest_list(self.store.read(path), uri, size))

        return METADATA.load(uri, load)

    def manifest(self, meta: ManifestFileMeta) -> Entries:
        """The file entries of a manifest, in order. Raises the same errors as `manifest_list`."""

        uri = self.store.uri_of(path := paths.manifest_path(meta.file_name))

        def load() -> tuple[Entries, int]:
            return sized_manifest(decode_manifest(self.store.read(path), uri, meta.file_size))

        return METADATA.load(uri, load)

    def open_manifests(self, metas: Sequence[ManifestFileMeta]) -> list[EncodedRecords]:
        """The entries of several manifests in encoded form, to be copied."""
        named = [paths.manifest_path(meta.file_name) for meta in metas]
        stored = self.store.together([partial(self.store.read, path) for path in named])
        sizes = [meta.file_size for meta in metas]
        return open_manifests(list(zip(stored, map(self.store.uri_of, named), sizes, strict=True)))

    def base_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of everything before a snapshot's own commit."""
        return self.manifest_list(snapshot.base_manifest_list, snapshot.base_manifest_list_size)

    def delta_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of the changes of a snapshot's commit."""
        return self.manifest_list(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)

    def changelog_manifests(self, snapshot: Snapshot) -> Sequence[ManifestFileMeta]:
        """The manifests of the changelog that is stored with a snapshot, if there is one."""
        name, size = snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
        return () if name is None else self.manifest_list(name, size)

    def manifests(self, snapshot: Snapshot) -> list[ManifestFileMeta]:
        """All manifests of a snapshot, in the order of their commits."""
        base, delta = self.store.together(
            [partial(self.base_manifests, snapshot), partial(self.delta_manifests, snapshot)]
        )
        return [*base, *delta]

    def entries(self, manifests: Iterable[ManifestFileMeta]) -> Entries:
        """The entries of several manifests, in order.

        Raises the same errors as `manifest`, and `DataError` for a manifest that names a schema
        that does not exist.
        """
        calls = [partial(self._checked_manifest, meta) for meta in manifests]
        is_far = self.store.local_path(paths.MANIFEST_DIR) is None
        if is_far or len(calls) < _SIDE_BY_SIDE_MIN:
            return Entries.together(self.store.together(calls))
        # Decoding manifests releases Python's global lock, so threads are faster on a local disk
        # too.
        return Entries.together(side_by_side(calls, _READERS))

    def _checked_manifest(self, meta: ManifestFileMeta) -> Entries:
        entries = self.manifest(meta)
        # Deleted files are not read.
        added = entries.columns("_KIND", "_SCHEMA_ID").filter(pl.col("_KIND") == FileKind.ADD)
        schema_id = -1
        try:
            for schema_id in added["_SCHEMA_ID"].unique():
                self.schema(schema_id)
        except (DataError, InvalidError) as error:
            uri = self.store.uri_of(paths.manifest_path(meta.file_name))
            raise DataError(
                f"{uri}: it lists a data file that was written with schema {schema_id}, which "
                f"cannot be read: {error}"
            ) from error.__cause__ or error
        return entries

    def index_files(self, snapshot: Snapshot) -> list[IndexFile]:
        """The index files of a snapshot: deletion vectors and hash indexes."""
        if snapshot.index_manifest is None:
            return []
        uri = self.store.uri_of(path := paths.manifest_path(snapshot.index_manifest))

        def load() -> tuple[Sequence[IndexFile], int]:
            data = self.store.read(path)
            return sized_indexes(decode_index_manifest(data, uri), data)

        return list(METADATA.load(uri, load))

    def vector_files(self, snapshot: Snapshot | None, options: TableOptions) -> list[IndexFile]:
        """The index files that mark rows of a snapshot's data files as dead.

        Empty if the table does not use them, even if such index files exist.
        """
        if snapshot is None or not options.deletion_vectors_enabled:
            return []
        files = self.index_files(snapshot)
        return [file for file in files if file.index_type == DELETION_VECTORS]


def sized_list(metas: Iterable[ManifestFileMeta]) -> tuple[Sequence[ManifestFileMeta], int]:
    """A manifest list as it is cached, with the bytes that it uses."""
    named = tuple(metas)
    return named, _ENTRY_BYTES * (1 + len(named))


def sized_manifest(entries: Entries) -> tuple[Entries, int]:
    """A manifest as it is cached, with the bytes that it uses."""
    return entries, _ENTRY_BYTES * (1 + len(entries))


def sized_indexes(files: Iterable[IndexFile], data: bytes) -> tuple[Sequence[IndexFile], int]:
    """An index manifest as it is cached, with the bytes that it uses."""
    return tuple(files), _TIMES_STORED * len(data)


_N = TypeVar("_N", Snapshot, TableSchema)


def _numbered(document: _N, number: int, path: str) -> _N:
    """Check that a document has the number in its file name. Raises `DataError` otherwise."""
    if document.id != number:
        raise DataError(
            f"{path}: member 'id' is {document.id}, but the file name says {number}; restore the "
            "file from a backup"
        )
    return document
