"""Point lookups: the row of one key of a local table, from what a process keeps in memory.

A scan plans the whole table for each request. A point lookup prepares each bucket once per
snapshot: which key range each file has, and in which order the versions of overlapping files are
merged. After that it searches only the cached keys of the row groups that can have the key. It
returns what a scan with the key as its condition returns, which the tests hold it to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from threading import Thread
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property, refuse_forked_child
from keytide.base.row_kind import RowKind
from keytide.errors import DataError
from keytide.format import paths
from keytide.format.arrow import in_python, polars_type, to_arrow
from keytide.format.binary_row import encode_rows
from keytide.format.bucket import bucket_ids
from keytide.format.cache import HashedOnce
from keytide.format.data_file import (
    VALUE_KIND,
    FileReader,
    Key,
    KeyedFile,
    Place,
    SortedRows,
    row_at,
)
from keytide.format.index_files import living_among
from keytide.format.manifest_entry import Entries, Identity, ManifestEntry
from keytide.key_index.indexed_keys import hash_keys
from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import Comparison
from keytide.read.current_rows import IndexedBucket
from keytide.read.lookup import PartitionLookupFiles
from keytide.read.lookup_files import LookupFile
from keytide.read.merged_versions import Lifetime, Rows
from keytide.read.plan import vector_places
from keytide.read.pruning import has_index, matching_filters
from keytide.read.runs import SYSTEM_COLUMNS, FoundVersions, StoredVersions
from keytide.read.scan import reading
from keytide.read.sections import PlannedFile, Section, decoded, sections_of
from keytide.snapshot.bucket_key_index import key_files_by_bucket
from keytide.snapshot.live_files import BucketId, vector_files_by_bucket
from keytide.snapshot.state import TableState
from keytide.types import Field, arrow_schema

# With more combinations of overlapping files than this, they are prepared again.
_COMBINATIONS_MAX = 1000
# Values of these types are the same objects from Polars as from Arrow.
_ALIKE = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR", "VARCHAR")


class NotPreparedError(Exception):
    """A point lookup is impossible: the row must be found by a scan."""


@dataclass(frozen=True)
class PointLookups:
    """Point lookups in one snapshot. Safe to share between threads."""

    state: TableState
    buckets: dict[BucketId, _Bucket | _IndexedBucket] = field(default_factory=dict)
    """The buckets that are prepared."""

    def row(self, key: Key) -> dict[str, Any] | None:
        """The row of a key, given as its values in the order of the primary key, or None.

        Raises like `Scan.to_pylist`, and `NotPreparedError` for a key that only a scan can find.
        """
        refuse_forked_child()
        view, snapshot = self.state.view, self.state.snapshot
        names = view.schema.primary_keys
        values = dict(zip(names, key, strict=True))
        ids = () if snapshot is None else (snapshot.id,)
        with reading(view, ids) as step:
            for bucket_id in self._buckets_of(values):
                # Two threads may prepare the same bucket, and either result is right.
                if bucket_id not in self.buckets:
                    kind = _IndexedBucket if view.kind.has_key_index else _Bucket
                    self.buckets[bucket_id] = kind.of(self.state, bucket_id)
                bucket = self.buckets[bucket_id]
                wanted = key if len(key) == len(bucket.key) else tuple(map(values.get, bucket.key))
                place = bucket.find(wanted)  # type: ignore[arg-type]
                if place is not None:
                    step.numbers(rows=1)
                    return self._in_python(place)
        return None

    def _buckets_of(self, values: Mapping[str, Any]) -> Sequence[BucketId]:
        """The buckets that can contain a key."""
        view = self.state.view
        partition_fields = view.schema.partition_fields()
        columns = [_column(f, values[f.name]) for f in partition_fields]
        (partition,) = encode_rows(columns, [f.type for f in partition_fields])
        total, numbers = self._numbers.get(partition, (0, ()))
        if total is None:
            raise NotPreparedError
        if total > 1:
            fields = view.bucket_fields
            columns = [_column(f, values[f.name]) for f in fields]
            types = [f.type for f in fields]
            numbers = bucket_ids(columns, types, total, view.options.bucket_function).tolist()
        return [(partition, number) for number in numbers]

    @cached_property
    def _numbers(self) -> Mapping[bytes, tuple[int | None, Sequence[int]]]:
        """The number of buckets of each partition, None if it has several, and the buckets."""
        found = self.state.live.files.columns("_PARTITION", "_BUCKET", "_TOTAL_BUCKETS")
        found = found.filter(pl.col("_BUCKET") >= 0)
        totals: dict[bytes, set[int]] = {}
        numbers: dict[bytes, set[int]] = {}
        for partition, bucket, total in found.unique().iter_rows():
            totals.setdefault(partition, set()).add(total)
            numbers.setdefault(partition, set()).add(bucket)
        return {
            partition: (totals[partition].pop() if len(totals[partition]) == 1 else None,
                        sorted(buckets))
            for partition, buckets in numbers.items()
        }  # fmt: skip

    def _in_python(self, place: Place) -> dict[str, Any]:
        names = self.state.view.schema.names
        others = {}
        if self._others:
            rows = to_arrow(place.rows[place.position : place.position + 1], self._others)
            others = in_python(rows)[0]
        return {
            name: others[name] if name in others else place.rows.item(place.position, name)
            for name in names
        }

    @cached_property
    def _others(self) -> pa.Schema:
        """The columns whose values Arrow converts to Python."""
        return arrow_schema([f for f in self.state.view.schema.fields if f.type.root not in _ALIKE])


def _column(column: Field, value: Any) -> pa.Array:
    """A column with one value."""
    # Arrow itself would first import pandas, if it is installed.
    made = pl.Series([value], dtype=polars_type(column)).to_arrow(
        compat_level=pl.CompatLevel.oldest()
    )
    return made.cast(column.type.to_arrow())


def point_lookups(state: TableState) -> PointLookups | None:
    """Point lookups in a state. None for tables whose rows only a scan can find."""
    return state.once(_prepared)


def _prepared(state: TableState) -> PointLookups | None:
    view = state.view
    fields = view.schema.select(view.schema.primary_keys)
    is_possible = (
        view.store.local_path(paths.MANIFEST_DIR) is not None
        and view.options.lookup_cache_bytes_max > 0
        and (
            view.kind.has_key_index
            or (view.kind.keeps_versions and not view.options.deletion_vectors_enabled)
        )
        and all(has_one_spelling(f.type) for f in fields)
        and {*view.schema.partition_keys} <= {*view.schema.primary_keys}
        and not view.defaults(view.schema.names)
        and Lifetime.of(view) is None
    )
    return PointLookups(state) if is_possible else None


# -- buckets ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bucket:
    """A bucket with the key range of each of its files."""

    state: TableState
    id: BucketId
    files: Entries
    ranges: Sequence[tuple[Key, Key]]
    sections: dict[tuple[int, ...], _KeyedSection] = field(default_factory=dict)
    """The sections that overlapping files, given by their positions, form."""

    @classmethod
    def of(cls, state: TableState, bucket: BucketId) -> _Bucket:
        """The bucket of a state."""
        files = state.live.files_in([bucket])
        fields = state.view.schema.trimmed_primary_key_fields()
        ends = [*files.column("_MIN_KEY").to_list(), *files.column("_MAX_KEY").to_list()]
        keys = decoded(ends, fields).rows() if ends else []
        if any(None in key for key in keys):
            raise NotPreparedError
        return cls(
            state, bucket, files, [*zip(keys[: len(files)], keys[len(files) :], strict=True)]
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the keys in files."""
        return self.state.view.order.key

    def find(self, key: Key) -> Place | None:
        """The row of a key. None if it has none."""
        places = tuple(i for i, (low, high) in enumerate(self.ranges) if low <= key <= high)
        if not places:
            return None
        section = self.sections.get(places)
        if section is None:
            section = _KeyedSection.of(self.state, self.id, [self.files[i] for i in places])
            if len(self.sections) >= _COMBINATIONS_MAX:
                self.sections.clear()
            self.sections[places] = section
        return section.find(key)


@dataclass(frozen=True)
class _KeyedSection:
    """Files of a bucket whose key ranges have a key in common."""

    state: TableState
    partition: bytes
    section: Section
    files: Mapping[str, KeyedFile]
    """The files by name, in which keys are searched."""
    newest_decides: bool
    """Whether the newest version of a key is its row."""
    mapped: dict[str, _Mapped] = field(default_factory=dict)
    """The lookup files of files that are read often."""

    @classmethod
    def of(
        cls, state: TableState, bucket: BucketId, entries: Sequence[ManifestEntry]
    ) -> _KeyedSection:
        view = state.view
        planned = [PlannedFile(entry) for entry in entries]
        (plan,) = sections_of({bucket: planned}, view)
        (section,) = plan.sections
        newest_decides = section.arrival_decides and view.engine.newest_decides
        columns = (*view.schema.names, *((VALUE_KIND,) if newest_decides else SYSTEM_COLUMNS))
        stored = StoredVersions(view, bucket[0], columns, tells_kinds=not newest_decides)
        key = HashedOnce(view.schema.select(view.order.key))
        files = {f.meta.file_name: KeyedFile(stored.reader(f), key) for f in planned}
        if not all(file.is_searchable() for file in files.values()):
            raise NotPreparedError
        return cls(state, bucket[0], section, files, newest_decides)

    def find(self, key: Key) -> Place | None:
        """The row of a key. None if it has none."""
        found: dict[Identity, Place] = {}
        for file in reversed(self._files_with(key)):
            place = self._place_in(file, key)
            if place is not None:
                found[file.entry.identity] = place
                if self.newest_decides:
                    break
        if len(found) > 1:
            return self._merged(found)
        lone = next(iter(found.values()), None)
        is_add = lone is not None and RowKind(lone.rows.item(lone.position, VALUE_KIND)).is_add
        return lone if is_add else None

    def _place_in(self, file: PlannedFile, key: Key) -> Place | None:
        """The version of a key in a file.

        If lookups have decoded as many groups as the file has, a thread creates a lookup file, from
        which nothing needs to be decoded. So at most twice as much is decoded as was needed.
        """
        keyed = self.files[file.meta.file_name]
        if keyed.is_read_often:
            name, lookup_files = file.meta.file_name, self._lookup_files
            if name not in self.mapped:
                self.mapped[name] = _Mapped()
                create = partial(_create, lookup_files, file)
                # The end of the process does not wait for it.
                Thread(target=create, name=f"keytide-lookup-{name}", daemon=True).start()
            mapped = self.mapped[name].rows_of(lookup_files.existing(file), keyed.key)
            if mapped is not None:
                return mapped.find(key)
        return keyed.find(key)

    def _files_with(self, key: Key) -> Sequence[PlannedFile]:
        """The files that may have a key, oldest first."""
        files = self.section.files
        if not self._has_filters:
            return files
        view = self.state.view
        terms = [
            Comparison(name, "=", value) for name, value in zip(view.order.key, key, strict=True)
        ]
        return [*compress(files, matching_filters([f.entry for f in files], view, terms))]

    def _merged(self, found: Mapping[Identity, Place]) -> Place | None:
        """The row of several versions of a key."""
        view = self.state.view
        versions = dict.fromkeys((f.entry.identity for f in self.section.files), pl.DataFrame())
        versions |= {
            identity: place.rows[place.position : place.position + 1]
            for identity, place in found.items()
        }
        rows = Rows(view, view.schema.names)
        merging = replace(rows.versions(), found_versions=FoundVersions(versions))
        windows = merging.windows(self.partition, self.section, view.options.read_memory_bytes)
        shown = (rows.shown(frame) for window in windows for frame in window.merged)
        return next((Place(frame, 0) for frame in shown if frame.height), None)

    @cached_property
    def _lookup_files(self) -> PartitionLookupFiles:
        return PartitionLookupFiles.whole(self.state.view, self.partition)

    @cached_property
    def _has_filters(self) -> bool:
        return any(has_index(file.entry) for file in self.section.files)


@dataclass
class _Mapped:
    """A lookup file, and its rows as they are searched."""

    file: LookupFile | None = None
    rows: SortedRows | None = None

    def rows_of(self, file: LookupFile | None, key: HashedOnce) -> SortedRows | None:
        """The rows of the present lookup file. None if there is none, or it cannot be searched."""
        if file is not self.file:
            # Two threads may do so, and come to the same result.
            self.rows = None if file is None else SortedRows.of(file.frames, key)
            self.file = file
        return self.rows


def _create(lookup_files: PartitionLookupFiles, file: PlannedFile) -> None:
    with suppress(DataError):  # the lookup that reads the data file raises the error
        if lookup_files.existing(file) is None:
            lookup_files.create(file)


# -- buckets with a key index ----------------------------------------------------------------------


@dataclass(frozen=True)
class _IndexedBucket:
    """A bucket with the index that says where the current row of each key is."""

    state: TableState
    bucket: IndexedBucket
    files: Mapping[str, PlannedFile]
    """The files by name."""
    readers: Mapping[str, FileReader]

    @classmethod
    def of(cls, state: TableState, bucket: BucketId) -> _IndexedBucket:
        """The bucket of a state."""
        view = state.view
        files = state.live.files_in([bucket])
        head = key_files_by_bucket(state.key_files).get(bucket)
        if head is None or not files:
            raise NotPreparedError
        vector_files = tuple(vector_files_by_bucket(state.vector_files).get(bucket, ()))
        dead = vector_places(vector_files, view)
        names = [entry.file.file_name for entry in files]
        planned = [
            PlannedFile(entry, dead.get(name), has_kinds=False)
            for name, entry in zip(names, files, strict=True)
        ]
        stored = StoredVersions(view, bucket[0], (*view.schema.names, VALUE_KIND))
        rows = {name: f.meta.row_count for name, f in zip(names, planned, strict=True)}
        found = IndexedBucket(view, bucket, files[0].total_buckets, rows, vector_files, head)
        readers = {n: stored.reader(f.as_stored()) for n, f in zip(names, planned, strict=True)}
        return cls(state, found, dict(zip(names, planned, strict=True)), readers)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the keys in the index."""
        return self.state.view.schema.primary_keys

    def find(self, key: Key) -> Place | None:
        """The current row of a key. None if it has none."""
        view = self.state.view
        fields = view.schema.select(self.key)
        columns = [_column(f, value) for f, value in zip(fields, key, strict=True)]
        keys = pa.table(columns, names=list(self.key))
        hashes = hash_keys(keys, fields, view.options.upsert_hash_function)
        places = self.bucket.look_up(hashes, slice(None))
        if places is None:
            raise NotPreparedError
        for name, positions in places.items():
            dead = self.files[name].dead_rows
            alive = positions if dead is None else living_among(view.store, dead, positions)
            for position in alive.tolist():
                place = row_at(self.readers[name], position)
                # Different keys may have the same hash.
                if all(
                    place.rows[place.position, n] == v for n, v in zip(self.key, key, strict=True)
                ):
                    return place
        return None
