"""Stored rows as changes: of commits, of files, and of snapshots.

The rows of a commit are those that it wrote, or the changelog that it stored. An image is the rows
that a snapshot shows, in key order, with the columns of another schema.

If keys move between buckets, the rows of a commit come in two turns: first, in all buckets, those
of keys that leave, then those of keys that stay or arrive. So the delete of a key in one bucket is
emitted before its row in another one.

A lane is a part of a table whose changes are independent, because no key has been in two of them.
The changes of a key keep their order if the tasks of a lane run one after the other. Tasks of two
lanes can run in parallel, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar, TypeAlias

import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RETRACTS, ROW_KIND, RowKind
from keytide.definition.kind import kind_of
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.format.data_file import VALUE_KIND
from keytide.format.data_file.reader import evolved_column
from keytide.format.index_files import VectorPlace, dead_in_one
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.merge.order import with_kind
from keytide.merge.windows import Batch, key_windows, with_whole_keys
from keytide.options import keys
from keytide.predicate.predicate import Predicate
from keytide.read.merged_versions import Lifetime, MergedVersions, Rows
from keytide.read.runs import FoundVersions, StoredVersions
from keytide.read.sections import BucketPlan, PlannedFile
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView

# -- lanes -----------------------------------------------------------------------------------------


Lane: TypeAlias = "tuple[bytes | int, ...]"
"""A bucket, a partition, or the whole table."""


def lanes(
    schema: TableSchema,
    counts: Mapping[bytes, Collection[int]],
    *,
    keeps_places: bool = False,
) -> Callable[[bytes, int], Lane]:
    """The lane of each bucket. `counts` are the numbers of buckets that each partition had.

    `keeps_places` says that no key has left its bucket although its hash did not determine it.
    """
    if schema.is_cross_partition:
        return lambda partition, bucket: ()

    def lane(partition: bytes, bucket: int) -> Lane:
        found = set(counts.get(partition, ()))
        stays = len(found) == 1 and (keeps_places or min(found) > 0)
        return (partition, bucket) if stays else (partition,)

    return lane


# -- row kinds for readers of changes --------------------------------------------------------------


_SHOWN = {int(kind): kind.short for kind in RowKind}


def with_shown_kind(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The columns of rows that have a `_VALUE_KIND`, after `_row_kind`."""
    kinds = pl.col(VALUE_KIND).replace_strict(_SHOWN, return_dtype=pl.String)
    return rows.select(kinds.alias(ROW_KIND), *names)


# -- rows of files ---------------------------------------------------------------------------------


_ROWS_MIN = 8 << 10
_ROW_BYTES = 256
_COPIES = 4


@dataclass(frozen=True)
class FilesTask:
    """The rows of files of one bucket, file by file, without a merge. Picklable.

    All rows have the kind `kind`, or the kinds that are stored with them. NULL is shown as the
    column's default.
    """

    view: TableView
    files: tuple[PlannedFile, ...]
    lane: Lane
    kind: RowKind | None = None

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` as the first column."""
        return map(self._with_kinds, self.outcomes(memory_bytes))

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows with the columns of the table and `_VALUE_KIND`, and maybe others."""
        names = self.view.schema.names
        rows_max = _rows_in(memory_bytes)
        shown = Rows(self.view, names)
        for partition, files in groupby(self._read(), lambda file: file.entry.partition):
            stored = StoredVersions(self.view, partition, (*names, VALUE_KIND))
            for frame in stored.of_lone_files(files, rows_max):
                if frame.height:
                    yield shown.outcomes(frame)

    @property
    def rows(self) -> int:
        """The maximum number of rows."""
        return sum(file.meta.row_count for file in self.files)

    def _read(self) -> Sequence[PlannedFile]:
        """The files with the rows to emit."""
        return self.files

    def _with_kinds(self, rows: pl.DataFrame) -> pl.DataFrame:
        names = self.view.schema.names
        if self.kind is not None:
            rows = with_kind(rows.select(names), self.kind)
        return with_shown_kind(rows, names)


@dataclass(frozen=True)
class DeadRowsTask(FilesTask):
    """The rows of files that are live in this snapshot and dead in another one. Picklable.

    `dead_elsewhere` has the dead rows of each file in the other snapshot. Files without such rows
    are not read.
    """

    dead_elsewhere: tuple[VectorPlace, ...] = ()

    @property
    def rows(self) -> int:
        """See `FilesTask`. Reads the vectors, which contain all rows that ever died."""
        return sum(len(file.places) for file in self._read() if file.places is not None)

    def _read(self) -> Sequence[PlannedFile]:
        """See `FilesTask`."""
        store, marked = self.view.store, zip(self.files, self.dead_elsewhere, strict=True)
        calls = [partial(dead_in_one, store, place, file.dead_rows) for file, place in marked]
        found = zip(self.files, store.together(calls), strict=True)
        return [replace(file, dead_rows=None, places=dead) for file, dead in found if len(dead)]


class _TurnTask(FilesTask):
    """The rows of some keys, from the files of one commit in one bucket, oldest file first.

    The rows of a key keep their order.
    """

    ends_with: ClassVar[frozenset[RowKind]]
    """The kinds of the last rows of the keys that are emitted."""

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with `_row_kind` as the first column."""
        if not self._retracts(_rows_in(memory_bytes)):
            if RowKind.INSERT in self.ends_with:
                yield from super().frames(memory_bytes)
            return
        names, key = self.view.schema.names, self.view.order.key
        rows_max = _rows_in(memory_bytes // len(self.files))
        shown = Rows(self.view, names)
        stored = self._stored(*names, VALUE_KIND)
        runs = [with_whole_keys(stored.of_run((file,), rows_max), key) for file in self.files]

        # For each row, the kind of the last row of its key. The rows are sorted by key.
        is_end = pl.int_range(pl.len()) == pl.len() - 1
        differs = (pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in key)
        is_last = pl.any_horizontal(is_end, *differs)
        is_emitted = (
            pl.when(is_last)
            .then(pl.col(VALUE_KIND))
            .backward_fill()
            .is_in([int(kind) for kind in self.ends_with])
        )
        for window in key_windows(runs, key):
            frames = [frame for frame in window if frame.height]
            rows = pl.concat(frames)
            if len(frames) > 1:
                rows = rows.sort(key, nulls_last=False, maintain_order=True)
            emitted = rows.filter(is_emitted)
            if emitted.height:
                yield self._with_kinds(shown.outcomes(emitted))

    def _retracts(self, rows_max: int) -> bool:
        """Whether there are retractions.

        Usually there are none, but not every writer counts them.
        """
        if not any(file.may_retract for file in self.files):
            return False
        kinds = self._stored(VALUE_KIND).of_lone_files(self.files, rows_max)
        retracts = [int(kind) for kind in RETRACTS]
        return any(frame[VALUE_KIND].is_in(retracts).any() for frame in kinds)

    def _stored(self, *columns: str) -> StoredVersions:
        return StoredVersions(self.view, self.files[0].entry.partition, columns)


class DeparturesTask(_TurnTask):
    """The rows of the keys that have no row in a bucket after the commit. Picklable."""

    ends_with = RETRACTS


class ArrivalsTask(_TurnTask):
    """The rows of the keys that have a row in a bucket after the commit. Picklable."""

    ends_with = frozenset(RowKind) - RETRACTS


def _rows_in(memory_bytes: int) -> int:
    """About how many rows may be in memory."""
    return max(_ROWS_MIN, memory_bytes // _ROW_BYTES // _COPIES)


# -- rows of commits, and stored changelogs --------------------------------------------------------


_WRITES_ROWS = (CommitKind.APPEND, CommitKind.OVERWRITE)
_WAY_OUT = "mode='diff' finds the changes of any table without a stored changelog"


@dataclass(frozen=True)
class Commit:
    """The files with the rows of a commit. Without the rows that it `replaces`.

    `has_kinds` says whether row kinds are stored with the rows.
    """

    entries: tuple[ManifestEntry, ...]
    replaces: bool
    has_kinds: bool


def changelog_list(snapshot: Snapshot, producer: str) -> tuple[str, int | None] | None:
    """The manifest list that describes a commit after its snapshot is gone, with its size in bytes.

    This is the list of the stored changelog or, if the table's `changelog-producer` is 'none', of
    the written rows. None for a commit without either.
    """
    if snapshot.changelog_manifest_list is not None:
        return snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
    if producer == "none" and snapshot.commit_kind in _WRITES_ROWS:
        return snapshot.delta_manifest_list, snapshot.delta_manifest_list_size
    return None


def snapshot_or_changelog(
    metadata: TableMetadata, snapshot_id: int, mode: str, producer: str
) -> Snapshot:
    """The commit with that id: its snapshot, or the changelog that outlives it.

    Raises `NotFoundError` like `TableMetadata.snapshot`, and if the remaining changelog does not
    contain what `mode` needs.
    """
    found = metadata.snapshot_or_changelog(snapshot_id)
    manifest_list = changelog_list(found, producer)
    # Of an expired snapshot, only this list is kept.
    is_enough = mode == "changelog" or manifest_list == (
        found.delta_manifest_list,
        found.delta_manifest_list_size,
    )
    writes = found.commit_kind in _WRITES_ROWS
    if writes and not is_enough and not metadata.has_snapshot(snapshot_id):
        raise NotFoundError(
            f"table {metadata.name}: snapshot {snapshot_id} has expired, and only its changelog "
            "is kept; read it with mode='changelog'"
        )
    return found


def plan_written(view: TableView, commits: Sequence[Commit]) -> list[FilesTask]:
    """The rows in the files, commit by commit, as tasks of one bucket each."""
    # The numbers of buckets that each partition had when rows were written to it.
    counts: dict[bytes, set[int]] = {}
    for commit in commits:
        for entry in commit.entries:
            counts.setdefault(entry.partition, set()).add(entry.total_buckets)
    lane_of = lanes(
        view.schema,
        counts,
        # A key in dynamic buckets keeps its bucket until its partition is overwritten.
        keeps_places=not any(commit.replaces for commit in commits),
    )
    return [task for commit in commits for task in _tasks(view, commit, lane_of)]


def deltas(metadata: TableMetadata, snapshots: Iterable[Snapshot]) -> Iterator[Commit]:
    """What each commit wrote. Commits that only rearranged rows wrote nothing."""
    for snapshot in snapshots:
        if snapshot.commit_kind in _WRITES_ROWS:
            entries = metadata.entries(metadata.delta_manifests(snapshot))
            written = [e for e in entries if e.kind is FileKind.ADD and e.file.level == 0]
            yield _commit(snapshot, written, metadata)


def changelogs(
    metadata: TableMetadata, snapshots: Sequence[Snapshot], view: TableView
) -> Iterator[Commit]:
    """The changelog that is stored with each commit.

    Raises `InvalidError` if the table stores none, `NotFoundError`, which names the commit, if one
    lacks it, and `UnsupportedError` for files with the changelogs of several buckets.
    """
    producer = view.options.changelog_producer
    # Why the table stores no changelog, if it does not. Another engine may have stored one.
    reason = None
    if producer == "none":
        reason = f"'{keys.CHANGELOG_PRODUCER}' is 'none'"
    elif view.options.compactions_tell and view.engine.why_kept_apart is not None:
        reason = (
            "compactions would create it, but they merge nothing in this table: "
            f"{view.engine.why_kept_apart}"
        )
    if reason is not None and all(each.changelog_manifest_list is None for each in snapshots):
        raise InvalidError(f"table {view.name} stores no changelog: {reason}. {_WAY_OUT}")
    for snapshot in snapshots:
        is_told = snapshot.changelog_manifest_list is not None or snapshot.delta_record_count <= 0
        if producer == "input" and snapshot.commit_kind is CommitKind.APPEND and not is_told:
            raise NotFoundError(
                f"table {view.name} has no changelog of snapshot {snapshot.id}: it was committed "
                f"before '{keys.CHANGELOG_PRODUCER}' was set, or by a writer that stores none. "
                f"{_WAY_OUT}; or start at snapshot {snapshot.id}"
            )
        entries = metadata.entries(metadata.changelog_manifests(snapshot))
        for entry in entries:
            if not entry.file.file_name.endswith((".parquet", ".orc", ".avro")):
                raise UnsupportedError(
                    f"table {view.name}: changelog file {entry.file.file_name} contains changes of "
                    f"several buckets, which this release cannot read. {_WAY_OUT}"
                )
        yield _commit(snapshot, entries, metadata)


def _commit(
    snapshot: Snapshot, entries: Iterable[ManifestEntry], metadata: TableMetadata
) -> Commit:
    in_buckets = tuple(entry for entry in entries if entry.bucket >= 0)
    kind = kind_of(metadata.schema(snapshot.schema_id))
    replaces = snapshot.commit_kind is CommitKind.OVERWRITE
    return Commit(in_buckets, replaces=replaces, has_kinds=kind.keeps_versions)


def _tasks(
    view: TableView, commit: Commit, lane_of: Callable[[bytes, int], Lane]
) -> Iterator[FilesTask]:
    buckets: dict[BucketId, list[ManifestEntry]] = {}
    for entry in commit.entries:
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    moves_keys = view.schema.is_cross_partition and len(buckets) > 1
    turns = (DeparturesTask, ArrivalsTask) if moves_keys else (FilesTask,)
    for turn in turns:
        for bucket, entries in buckets.items():
            entries.sort(key=lambda entry: entry.file.min_sequence_number)
            planned = (PlannedFile(entry, has_kinds=commit.has_kinds) for entry in entries)
            yield turn(view, tuple(planned), lane_of(*bucket))


# -- images ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Rows of some buckets, merged with `view` and shown with the columns of `target`.

    Columns are matched by id. Columns that `view` lacks are NULL, or the value that `target` shows
    for NULL. The `condition` is about the key. Picklable.
    """

    view: TableView
    target: TableView
    buckets: tuple[BucketPlan, ...]
    condition: Predicate | None = None
    lifetime: Lifetime | None = None
    """The maximum age of the rows that are shown."""

    @property
    def rows(self) -> int:
        """The maximum number of versions to read."""
        return sum(file.meta.row_count for bucket in self.buckets for file in bucket.files)

    def runs(
        self,
        memory_bytes: int,
        keys: pl.DataFrame | None = None,
        found: FoundVersions | None = None,
    ) -> list[Iterator[Batch]]:
        """The rows as runs with one row per key. The runs have no key in common.

        With `keys`, only these keys, for which files have the versions in `found`. Otherwise all.
        The runs together fit in about `memory_bytes`.
        """
        chains = list(self.buckets)
        if not self.view.options.merges_on_read:
            # In parts whose sections were split by key.
            chains = [
                BucketPlan(bucket.partition, bucket.bucket, (section,))
                for bucket in self.buckets
                for section in bucket.sections
            ]
        share = memory_bytes // max(1, len(chains))
        return [self._run(chain, share, keys, found) for chain in chains]

    def _run(
        self,
        chain: BucketPlan,
        memory_bytes: int,
        keys: pl.DataFrame | None,
        found: FoundVersions | None,
    ) -> Iterator[Batch]:
        own, wanted = self.view.schema.fields, self.target.schema.fields
        was, ids = {field.id: field for field in own}, {field.id for field in wanted}
        # The columns that both have.
        columns = (*(field.name for field in own if field.id in ids), VALUE_KIND)
        versions = MergedVersions(
            self.view, columns, self.condition, tells_kinds=False, found_versions=found
        )
        names = self.target.schema.names
        shown = Rows(self.target, names)
        for frame in versions.in_order(chain, memory_bytes, keys):
            as_wanted = frame
            if own != wanted:
                evolved = [evolved_column(f, was.get(f.id), frame.schema) for f in wanted]
                # Not `select` alone: a frame of only constants would have one row.
                as_wanted = frame.with_columns(evolved).select(*names, VALUE_KIND)
            rows = shown.shown(as_wanted)
            young = rows if self.lifetime is None else rows.filter(~self.lifetime.has_expired)
            yield Batch(young)


@dataclass(frozen=True)
class ImagesTask:
    """All rows of some images, to be compared with rows in no particular order. Picklable."""

    images: Images

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """What is read."""
        return tuple(file for bucket in self.images.buckets for file in bucket.files)

    @property
    def rows(self) -> int:
        """The maximum number of rows."""
        return self.images.rows

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with the columns that the images are shown with."""
        for run in self.images.runs(memory_bytes):
            yield from (batch.rows for batch in run)
