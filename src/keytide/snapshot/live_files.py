"""Live files of a snapshot, with the indexes and the dead rows of their buckets.

The live files are a value that the next snapshot can be derived from. The files of a snapshot are
the ADD entries of its manifests without the deleted ones. Reading every manifest takes time
proportional to the number of files. Going from one snapshot to the next costs only what that commit
changed. So commits and repeated scans of a growing table do not get slower.

The indexes of a bucket are values too, from which a commit creates index files of any type. A
snapshot names at most one index file for each type, partition and bucket. Tasks return their
results as values that can encode themselves. A commit stores every value that it receives.

All vectors of a bucket are in one index file. In append tables, other engines may write several.
Files are never changed. So one more dead row means a new index file with all vectors of the bucket,
which replaces the previous one.

Work that fails because others, mainly expiry, delete the files that it reads is retried.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
from pyroaring import BitMap, BitMap64

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError, KeytideError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.index_files import (
    DELETION_VECTORS,
    IndexFile,
    IndexKey,
    Vector,
    VectorRange,
    keep_vectors,
    read_vectors,
    stored_vectors,
    write_vectors,
)
from keytide.format.manifest_entry import (
    FEW_ENTRIES,
    Entries,
    FileKind,
    Identity,
    ManifestEntry,
    Mask,
    is_live,
)
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store

# -- live files ------------------------------------------------------------------------------------


BucketId: TypeAlias = "tuple[bytes, int]"
"""Serialized partition row and bucket number."""

# With more changes than a quarter of the files, between these two numbers, the files are assembled
# once instead of carrying the changes along. Each request for files of a bucket applies them.
_CHANGES_MIN, _CHANGES_MAX = 64, 4096
# Each step reads a snapshot and a manifest. More steps than this take longer than a full load.
_STEPS_MAX = 64
# No count of rows or nanoseconds comes close. A higher number means a damaged manifest.
_SEQUENCE_NUMBER_MAX = (1 << 63) - (1 << 40)


def number_after(highest: int, bucket: BucketId) -> int:
    """The sequence number that follows the highest one of a bucket.

    Raises `DataError` if there would be no numbers left for later rows.
    """
    if highest > _SEQUENCE_NUMBER_MAX:
        raise DataError(
            f"a manifest says that bucket {bucket[1]} has the sequence number {highest}, which "
            "is the maximum, so the manifest is damaged; Table.verify finds the file"
        )
    return highest + 1


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of a bucket that a writer needs to know."""

    max_sequence_number: int = -1
    total_buckets: int | None = None
    level_files: Mapping[int, int] = field(default_factory=dict)
    """The number of files on each level."""

    @property
    def runs(self) -> int:
        """The number of sorted runs: the files of level 0, plus the higher levels with files."""
        return sum(
            count if level == 0 else min(count, 1) for level, count in self.level_files.items()
        )

    @property
    def is_empty(self) -> bool:
        """Whether there are no files left."""
        return not any(self.level_files.values())

    def after(self, entry: ManifestEntry) -> BucketState:
        """The state after a file was added or deleted."""
        level, change = entry.file.level, 1 if entry.kind is FileKind.ADD else -1
        return BucketState(
            max(self.max_sequence_number, entry.file.max_sequence_number),
            entry.total_buckets,
            {**self.level_files, level: self.level_files.get(level, 0) + change},
        )


@dataclass(frozen=True)
class LiveFiles:
    """The live files of `snapshot`, oldest first. `snapshot` is None if nothing was ever written.

    Most commits need only `buckets`, so the list of files is assembled on demand.
    """

    snapshot: Snapshot | None
    buckets: Mapping[BucketId, BucketState]
    partition_buckets: Mapping[bytes, int]
    """The number of buckets that the files of each partition were written with."""
    _base: Entries
    """The files of an earlier snapshot, or of this one."""
    _changes: tuple[ManifestEntry, ...] = ()
    """The changes since then."""

    @cached_property
    def files(self) -> Entries:
        """The files in the order in which they were committed."""
        return _changed(self._base, self._changes)

    @cached_property
    def schema_ids(self) -> frozenset[int]:
        """The schemas that the files were written with."""
        return frozenset(self.files.column("_SCHEMA_ID").unique())

    def files_in(self, buckets: Collection[BucketId]) -> Entries:
        """The files of some buckets, in the same order."""
        if "files" in self.__dict__:
            return self.files.filter(_lie_in(self.files, buckets))
        changes = [e for e in self._changes if (e.partition, e.bucket) in buckets]
        return _changed(self._base.filter(_lie_in(self._base, buckets)), changes)

    @cached_property
    def by_identity(self) -> Mapping[Identity, ManifestEntry]:
        """The files by their identity, in the same order."""
        return {entry.identity: entry for entry in self.files}

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """The files as objects."""
        return self.files.made

    def bucket(self, bucket: BucketId) -> BucketState:
        """The state of a bucket. Empty if it has no files."""
        return self.buckets.get(bucket, _EMPTY)

    def present(self, identities: Collection[Identity]) -> frozenset[Identity]:
        """Those identities whose files are live."""
        if not identities:
            return frozenset()
        files = self.files_in({identity[:2] for identity in identities})
        return frozenset(e.identity for e in files.filter(files.are(identities)))

    def advance(self, snapshot: Snapshot, delta: Iterable[ManifestEntry]) -> LiveFiles:
        """The files after a commit that changed `delta`.

        Sequence numbers of deleted files still count, so a writer never reuses one.
        """
        changes = tuple(delta)
        # The next writer chooses the number of buckets for a partition without files.
        buckets, partitions = dict(self.buckets), dict(self.partition_buckets)

        for entry in changes:
            key = (entry.partition, entry.bucket)
            # Deleted files count too. If a number were reused, an older version could win.
            buckets[key] = buckets.get(key, _EMPTY).after(entry)
            # Postponed rows are in no bucket yet, so they do not determine the number of buckets.
            if entry.kind is FileKind.ADD and entry.bucket >= 0:
                partitions[entry.partition] = entry.total_buckets
        gone = {entry.partition for entry in changes if entry.kind is FileKind.DELETE}
        if gone:
            left = {p for (p, n), state in buckets.items() if n >= 0 and not state.is_empty}
            for emptied in gone - left:
                partitions.pop(emptied, None)
        base, before = self._base, self._changes
        carried_max = min(_CHANGES_MAX, max(_CHANGES_MIN, len(base) // 4))
        if len(before) > carried_max or "files" in self.__dict__:
            base, before = self.files, ()
        return LiveFiles(snapshot, buckets, partitions, base, (*before, *changes))


def _changed(base: Entries, changes: Sequence[ManifestEntry]) -> Entries:
    """The remaining files and the added files, in their order."""
    if not changes:
        return base
    # In order, because these are several commits: one may restore what another deleted.
    last: dict[Identity, ManifestEntry] = {}
    for entry in changes:
        last.pop(entry.identity, None)
        last[entry.identity] = entry
    left = base.filter(~base.are(last.keys()))
    added = (entry for entry in last.values() if entry.kind is FileKind.ADD)
    return Entries.of((*left, *added))


def _lie_in(files: Entries, buckets: Collection[BucketId]) -> Mask | pl.Series:
    """Which files are in one of the buckets."""
    if len(files) <= FEW_ENTRIES:
        return np.array([(e.partition, e.bucket) in buckets for e in files], np.bool_)
    wanted = pl.DataFrame(
        list(buckets), schema={"_PARTITION": pl.Binary, "_BUCKET": pl.Int32}, orient="row"
    ).with_columns(pl.lit(value=True).alias("found"))
    places = files.columns("_PARTITION", "_BUCKET")
    found = places.join(wanted, on=["_PARTITION", "_BUCKET"], how="left", maintain_order="left")
    return found["found"].fill_null(value=False)


_EMPTY = BucketState()
NO_FILES = LiveFiles(None, {}, {}, Entries.of(()))


def load_live_files(
    metadata: TableMetadata, snapshot: Snapshot | None, known: LiveFiles = NO_FILES
) -> LiveFiles:
    """The live files of `snapshot`, derived from `known` if that is a recent ancestor.

    Raises `DataError`, which names the manifest that is missing or damaged.
    """
    if snapshot is None:
        return NO_FILES
    if known.snapshot is not None and known.snapshot == snapshot:
        return known
    since = _snapshots_between(metadata, known.snapshot, snapshot)
    if since is None:
        entries = metadata.entries(metadata.manifests(snapshot))
        return files_of(snapshot, entries.filter(is_live(entries)))
    for each in since:
        known = known.advance(each, metadata.entries(metadata.delta_manifests(each)))
    return known


def has_same_rows(metadata: TableMetadata, before: LiveFiles, now: LiveFiles) -> bool:
    """Whether only compactions lie between two states. False if that is unknown."""
    if before.snapshot == now.snapshot:
        return True
    since = (
        None
        if now.snapshot is None
        else _snapshots_between(metadata, before.snapshot, now.snapshot)
    )
    return since is not None and all(s.commit_kind is CommitKind.COMPACT for s in since)


def _snapshots_between(
    metadata: TableMetadata, base: Snapshot | None, target: Snapshot
) -> list[Snapshot] | None:
    """The snapshots after an ancestor up to `target`. None if `base` is no recent ancestor."""
    if base is None or not 0 < target.id - base.id <= _STEPS_MAX:
        return None
    try:
        # Within one lineage, a snapshot that exists has always existed, and so have its
        # predecessors.
        if (
            metadata.cached_snapshot(base.id) != base
            or metadata.cached_snapshot(target.id) != target
        ):
            return None  # dropped and recreated, or rolled back: ids were reused
        numbers = range(base.id + 1, target.id)
        calls = [partial(metadata.cached_snapshot, number) for number in numbers]
        return [*metadata.store.together(calls), target]
    except NotFoundError:
        return None


def files_of(snapshot: Snapshot, live: Iterable[ManifestEntry]) -> LiveFiles:
    """A snapshot with these files."""
    files = Entries.of(live)
    of_level = (
        files.columns("_PARTITION", "_BUCKET", "_LEVEL", "_MAX_SEQUENCE_NUMBER", "_TOTAL_BUCKETS")
        .group_by("_PARTITION", "_BUCKET", "_LEVEL", maintain_order=True)
        .agg(pl.len(), pl.col("_MAX_SEQUENCE_NUMBER").max(), pl.col("_TOTAL_BUCKETS").last())
    )
    buckets: dict[BucketId, BucketState] = {}
    partitions: dict[bytes, int] = {}
    for partition, bucket, level, count, highest, total in of_level.iter_rows():
        before = buckets.get((partition, bucket), _EMPTY)
        buckets[partition, bucket] = BucketState(
            max(before.max_sequence_number, highest), total, {**before.level_files, level: count}
        )
        # Postponed rows are in no bucket yet, so they do not determine the number of buckets.
        if bucket >= 0:
            partitions[partition] = total
    return LiveFiles(snapshot, buckets, partitions, files)


# -- indexes of a bucket ---------------------------------------------------------------------------


_I = TypeVar("_I", bound="BucketIndex")

Remember: TypeAlias = "Callable[[Store, str, int], None]"
"""Called with the store, the path of the index file, and the maximum bytes of cached files."""


class EncodedIndex(NamedTuple):
    """The bytes of an index file, and its entry in the index manifest."""

    data: bytes
    row_count: int
    ranges: tuple[VectorRange, ...] | None = None
    more_files: Mapping[str, bytes] = MappingProxyType({})
    """More files to store, by name. `ranges` refer to them."""
    remember: Remember | None = None
    """Adds the stored content to the cache of this process."""


class BucketIndex(Protocol):
    """The change that a commit makes to one index of a bucket. Picklable."""

    index_type: ClassVar[str]
    """The type of the index in the index manifest."""

    @property
    def has_changed(self) -> bool:
        """Whether there is anything to store. If not, the bucket keeps its current index."""

    @property
    def based_on(self) -> tuple[IndexFile, ...] | None:
        """The index files that this change adds to. The commit conflicts if it finds other files.

        None if the change applies to any existing index.
        """

    def joined(self: _I, later: Sequence[_I]) -> _I:
        """This change combined with the changes of later tasks of the same work to the same
        index.
        """

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """The new index, which replaces the files `before` and includes their content.

        None if the bucket no longer has such an index. Called again at each commit attempt. Raises
        `DataError` for a file that cannot be read.
        """


def by_index_key(by_bucket: Mapping[BucketId, BucketIndex]) -> dict[IndexKey, BucketIndex]:
    """Indexes by the key for which a snapshot has at most one file."""
    return {(index.index_type, *bucket): index for bucket, index in by_bucket.items()}


# -- dead rows of a bucket -------------------------------------------------------------------------


Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeadRows:
    """The dead rows of one bucket, by data file, as a commit must store them. Picklable.

    `stored` are the index files at the start of the work, empty if the bucket had none. A commit on
    top of other index files would bring rows back to life.
    """

    index_type: ClassVar[str] = DELETION_VECTORS

    based_on: ClassVar[None] = None  # `is_outdated` is more precise

    stored: tuple[IndexFile, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    has_changed: bool = False
    """Whether the vectors differ from those in `stored`."""
    observed: Mapping[str, Positions] | None = field(default=None, compare=False)
    """The dead rows at the start of the work, of the files that the work depends on.

    None: of all files. Changes to rows of other files in the meantime do not matter.
    """

    def of(self, file_name: str) -> Positions:
        """The positions of the dead rows of a file, ascending."""
        vector = self.vectors.get(file_name)
        return _NONE if vector is None else np.asarray(vector.to_array()).astype(np.int64)

    def count(self, file_name: str) -> int:
        """The number of dead rows in a file."""
        return len(self.vectors.get(file_name, ()))

    def marking(self, dead: Mapping[str, Positions], *, wide: bool) -> DeadRows:
        """The same with more dead rows in some files. With `wide`, all vectors have 64 bits.

        Readers expect the same form in all files of a table.
        """
        more = {name: positions for name, positions in dead.items() if len(positions)}
        if not more:
            return self
        form = BitMap64 if wide else BitMap
        vectors = {name: form(vector) for name, vector in self.vectors.items()}
        for name, positions in more.items():
            # From an array of its own width, a bitmap is created without an object for each number.
            code, width = ("Q", np.uint64) if form is BitMap64 else ("I", np.uint32)
            # Larger positions stay too large to be stored, and are refused there.
            fitting = np.minimum(positions, np.iinfo(width).max, dtype=np.uint64, casting="unsafe")
            vectors.setdefault(name, form()).update(
                form(array(code, fitting.astype(width).tobytes()))
            )
        return replace(self, vectors=vectors, has_changed=True)

    def about(self, file_names: Iterable[str]) -> DeadRows:
        """The same for work that depends only on some files, whose dead rows have not changed
        yet.
        """
        return replace(self, observed={name: self.of(name) for name in file_names})

    def is_outdated(self, present: DeadRows) -> bool:
        """Whether the work was based on dead rows that have changed since."""
        if self.stored == present.stored:
            return False
        if self.observed is None:
            return True
        return any(not np.array_equal(present.of(n), found) for n, found in self.observed.items())

    def onto(self, present: DeadRows) -> DeadRows:
        """The same combined with changes that others made to other files.

        REQUIRES: not outdated.
        """
        if self.observed is None or self.stored == present.stored:
            return self
        mine = {name: vector for name, vector in self.vectors.items() if name in self.observed}
        left = {name: v for name, v in present.vectors.items() if name not in self.observed}
        if mine:
            form = type(next(iter(mine.values())))
            left = {name: form(vector) for name, vector in left.items()}
        return replace(self, stored=present.stored, vectors={**left, **mine})

    def joined(self, later: Sequence[DeadRows]) -> DeadRows:
        """See `BucketIndex`: the last one wins, because each includes all vectors before it."""
        return [self, *later][-1]

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """See `BucketIndex`: a bucket without dead rows has no vectors."""
        if not self.vectors:
            return None
        data, ranges = write_vectors(self.vectors)
        # They are copied because the work may continue to mark rows.
        vectors = {name: vector.copy() for name, vector in self.vectors.items()}
        remember = partial(keep_vectors, vectors, ranges)
        return EncodedIndex(data, len(ranges), ranges, remember=remember)

    def without(self, gone: Collection[str]) -> DeadRows:
        """The same without the given files."""
        left = {name: vector for name, vector in self.vectors.items() if name not in gone}
        return (
            self
            if len(left) == len(self.vectors)
            else replace(self, vectors=left, has_changed=True)
        )


_NONE: Positions = np.empty(0, np.int64)


def vector_files_by_bucket(files: Iterable[IndexFile]) -> dict[BucketId, tuple[IndexFile, ...]]:
    """Those index files that mark rows as dead, by bucket."""
    found: dict[BucketId, tuple[IndexFile, ...]] = {}
    for file in files:
        if file.index_type == DELETION_VECTORS:
            bucket = (file.partition, file.bucket)
            found[bucket] = (*found.get(bucket, ()), file)
    return found


def vector_file_path(file: IndexFile, table: str) -> str:
    """The path of an index file. Raises `UnsupportedError` for a file outside the table."""
    if file.external_path is not None:
        raise UnsupportedError(
            f"table {table}: index file {file.external_path} is outside the table, which this "
            "release cannot read"
        )
    return paths.index_path(file.file_name)


def memory_vectors(bucket: BucketId, dead: DeadRows) -> IndexFile:
    """The vectors of a bucket as an index file that no store has, for readers of a state."""
    data, ranges = write_vectors(dead.vectors)
    name = f"held-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
    return IndexFile(DELETION_VECTORS, *bucket, name, len(data), len(ranges), ranges, content=data)


def load_dead_rows(store: Store, files: tuple[IndexFile, ...], table: str) -> DeadRows:
    """Read the index files of a bucket. The result is empty if there are none.

    Raises `DataError` for a file that is missing or damaged, and the errors of `vector_file_path`.
    """
    vectors: dict[str, Vector] = {}
    for file in files:
        if file.content is not None:
            vectors |= read_vectors(file.content, file.ranges or (), file.file_name)
            continue
        path = vector_file_path(file, table)
        vectors |= stored_vectors(store, path, file.ranges or ())
    return DeadRows(files, vectors)


# -- retries ---------------------------------------------------------------------------------------


T = TypeVar("T")


def is_gone(error: KeytideError) -> bool:
    """Whether an error says that a file or a snapshot does not exist."""
    return isinstance(error, NotFoundError) or isinstance(error.__cause__, FileNotFoundError)


def retried(look: Callable[[], T], tries: int = 5) -> T:
    """Return the result of `look`, which is retried if something was deleted in the meantime.

    Others delete only what is old, so each time there is less of it. Raises the error of the last
    try.
    """
    try:
        return look()
    except KeytideError as error:
        if tries == 1 or not is_gone(error):
            raise
    return retried(look, tries - 1)
