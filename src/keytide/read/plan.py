"""The plan of a scan: what it reads, as a value, from metadata alone.

Files are pruned by partition, bucket, key index, key range and statistics, in this order. The
`Funnel` counts what each step leaves. The remaining files of a bucket are grouped into sections of
overlapping key ranges. A planned file says where its dead rows are recorded, so its reader needs no
other information. Files that plain readers skip are listed with the reason.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property, without_collection
from keytide.errors import DataError
from keytide.format.data_file import Key
from keytide.format.index_files import IndexFile, VectorPlace
from keytide.format.manifest_entry import NO_ENTRIES, Entries, ManifestEntry
from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import (
    Predicate,
    columns_of,
    conjuncts,
    equal_values,
    without_columns,
)
from keytide.read.current_rows import Indexes, Positions, current_rows
from keytide.read.pruning import (
    matching_buckets,
    matching_keys,
    matching_partitions,
    matching_statistics,
)
from keytide.read.sections import BucketPlan, PlannedFile, Section, sections_of
from keytide.show.buckets import ReadBucket
from keytide.snapshot.bucket_key_index import key_files_by_bucket, load_key_index, why_not_covered
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    load_dead_rows,
    vector_file_path,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableState, TableView
from keytide.types import Field

# -- plans -----------------------------------------------------------------------------------------


MARKED_DEAD = "marked as deleted by a deletion vector: another version replaced it"
_NOT_COMPACTED = "not visible yet: readers of this table read only compacted files"


@dataclass(frozen=True)
class FunnelStage:
    """What is left after one kind of pruning."""

    stage: str
    partitions: int
    buckets: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Funnel:
    """How much each pruning step left, step by step."""

    stages: tuple[FunnelStage, ...] = ()


@dataclass(frozen=True)
class HiddenFile:
    """A file that may contain requested rows, and why plain readers skip it."""

    entry: ManifestEntry
    reason: str


@dataclass(frozen=True)
class ScanPlan:
    """The buckets that a scan reads, the files that it skips, and how it chose them."""

    buckets: tuple[BucketPlan, ...]
    hidden: tuple[HiddenFile, ...] = ()
    remaining: tuple[tuple[str, Entries], ...] = ()
    """The files that each kind of pruning left, in the order of pruning."""

    @cached_property
    def funnel(self) -> Funnel:
        """How much each pruning step left. Counted on demand, because most scans do not need it."""
        stages = []
        for stage, files in self.remaining:
            buckets = files.columns("_PARTITION", "_BUCKET").unique()
            stages.append(
                FunnelStage(
                    stage,
                    buckets["_PARTITION"].n_unique(),
                    buckets.height,
                    len(files),
                    int(files.column("_ROW_COUNT").sum()),
                    int(files.column("_FILE_SIZE").sum()),
                )
            )
        return Funnel(tuple(stages))


def plan_scan(
    state: TableState, predicate: Predicate | None = None, keys: pa.Table | None = None
) -> ScanPlan:
    """Plan a scan of a table at a snapshot: of some keys or, without `keys`, of all.

    The planned rows may include rows of other keys. Raises `UnsupportedError` for dead rows that
    are recorded outside the table.
    """
    with without_collection():
        return plan_files(
            state.view, state.live.files, predicate, state.vector_files, state.key_files, keys
        )


def plan_files(
    view: TableView,
    entries: Iterable[ManifestEntry],
    predicate: Predicate | None = None,
    vector_files: Iterable[IndexFile] = (),
    key_files: Sequence[IndexFile] = (),
    keys: pa.Table | None = None,
) -> ScanPlan:
    """Plan a scan of files. `vector_files` mark dead rows. Raises the same errors as `plan_scan`.

    With `key_files`, which say where the current rows of keys are, `entries` must be all live
    files.
    """
    # Statistics do not include defaults.
    terms = conjuncts(without_columns(predicate, view.defaults(columns_of(predicate))))
    # Rows in a postponed bucket become part of the table only when a bucket is assigned to them.
    files = Entries.of(entries)
    files = files.filter(files.column("_BUCKET") >= 0)
    left = [("all", files)]
    files = matching_partitions(files, view.schema, terms)
    left.append(("partition", files))
    files = matching_buckets(files, view.schema, view.options, terms)
    left.append(("bucket", files))
    vector_files = tuple(vector_files)
    current = current_rows(view, files, Indexes(vector_files, tuple(key_files)), terms, keys)
    if current is not None:
        files = files.filter(current.holds(files))
        left.append(("key index", files))
        if all(entry.file.file_name in current.places for entry in files):
            # Statistics give no more information about the key.
            terms = tuple(t for t in terms if not columns_of(t) <= {*view.schema.primary_keys})
    places = {} if current is None else current.places
    hidden = NO_ENTRIES
    if view.kind.keeps_versions and not view.options.merges_on_read:
        # Compacted files without their dead rows contain each key once in total.
        is_new = files.column("_LEVEL") == 0
        hidden, files = files.filter(is_new), files.filter(~is_new)
        left.append(("compacted", files))
    files = matching_keys(files, view, terms)
    hidden = matching_keys(hidden, view, terms)
    left.append(("key range", files))
    buckets = matching_statistics(_buckets(files, vector_files, view, places), view, terms)
    left.append(("statistics", Entries.of(f.entry for bucket in buckets for f in bucket.files)))
    return ScanPlan(
        tuple(buckets), tuple(HiddenFile(entry, _NOT_COMPACTED) for entry in hidden), tuple(left)
    )


def _buckets(
    files: Entries,
    vector_files: Iterable[IndexFile],
    view: TableView,
    current: Mapping[str, Positions],
) -> list[BucketPlan]:
    by_bucket: dict[BucketId, list[ManifestEntry]] = {}
    for entry in files:
        by_bucket.setdefault((entry.partition, entry.bucket), []).append(entry)
    keeps_versions = view.kind.keeps_versions
    if keeps_versions and not view.options.deletion_vectors_enabled:
        planned = {b: [PlannedFile(e) for e in entries] for b, entries in by_bucket.items()}
        return sections_of(planned, view)
    places = vector_places([f for f in vector_files if (f.partition, f.bucket) in by_bucket], view)
    if keeps_versions and view.options.merges_on_read:
        planned = {b: to_merge(entries, places) for b, entries in by_bucket.items()}
        return sections_of(planned, view)
    # Append tables are not merged, and compacted files with vectors contain each key once. So each
    # file is a separate section.
    return [
        BucketPlan(
            *bucket,
            tuple(
                Section(((PlannedFile(e, places.get(name), keeps_versions, False, at),),))
                for e in entries
                for name in [e.file.file_name]
                for at in [current.get(name)]
            ),
        )
        for bucket, entries in by_bucket.items()
    ]


def to_merge(
    entries: Iterable[ManifestEntry], places: Mapping[str, VectorPlace]
) -> list[PlannedFile]:
    """Files of a table with deletion vectors, for a merge: includes the deletes among dead rows."""
    return [
        PlannedFile(e, places.get(e.file.file_name), keeps_retracts=e.file.level > 0)
        for e in entries
    ]


def vector_places(files: Iterable[IndexFile], view: TableView) -> dict[str, VectorPlace]:
    """Where the dead rows of data files are recorded, by file name."""
    places: dict[str, VectorPlace] = {}
    for file in files:
        path = vector_file_path(file, view.name)
        places |= {
            r.data_file_name: VectorPlace(path, r, file.content_of(r)) for r in file.ranges or ()
        }
    return places


# -- keys of a condition ---------------------------------------------------------------------------


# With more keys, reading all rows around them is as fast as searching for each.
KEYS_MAX = 128


def pinned_keys(condition: Predicate | None, key: Sequence[Field]) -> list[Key] | None:
    """The only keys that can match a condition, each once, ascending.

    None if the condition leaves a column open, if there are too many keys, and for keys that are
    not integers or strings: equal values of other types may be stored in several forms.
    """
    terms = conjuncts(condition)
    known = []
    for field in key:
        values = equal_values(terms, field.name)
        python = str if field.type.root == "VARCHAR" else int
        if values is None or not has_one_spelling(field.type):
            return None
        if any(type(value) is not python for value in values):
            return None
        known.append(dict.fromkeys(values))
    if not key or math.prod(map(len, known)) > KEYS_MAX:
        return None
    return sorted(itertools.product(*known))


# -- the plan of a bucket --------------------------------------------------------------------------


def read_buckets(plans: Sequence[BucketPlan], view: TableView, most: int) -> tuple[ReadBucket, ...]:
    """The buckets of which most bytes are read, as many as `most`, in that order."""
    sizes = [sum(file.meta.file_size for file in plan.files) for plan in plans]
    largest = sorted(range(len(plans)), key=lambda place: -sizes[place])[:most]
    read = []
    for plan in (plans[place] for place in largest):
        files = [file.meta for file in plan.files]
        levels: Counter[int] = Counter()
        for file in files:
            levels[file.level] += file.file_size
        read.append(
            ReadBucket(
                view.bucket_directory(plan.partition, plan.bucket),
                len(files),
                sum(len(section.files) for section in plan.sections if section.needs_merge),
                sum(file.row_count for file in files),
                sum(file.file_size for file in files),
                tuple(sorted(levels.items())),
            )
        )
    return tuple(read)


# -- rows of a table with a key index --------------------------------------------------------------


class RowSelection(Enum):
    """Which of the stored rows are shown."""

    CURRENT = auto()
    """The current row of each key that is not deleted, as for any table."""
    LAST = auto()
    """The row by which each key is judged: the current row, or the row that deletes it."""
    DELETES = auto()
    """Those last rows that delete their keys."""
    STORED = auto()
    """Every row."""


def plan_rows(
    state: TableState, which: RowSelection, predicate: Predicate | None, keys: pa.Table | None
) -> ScanPlan:
    """Plan a scan like `plan_scan`.

    Raises `DataError` for the last rows of keys if the key index does not match the existing files.
    """
    if which is RowSelection.CURRENT:
        return plan_scan(state, predicate, keys)
    plan = plan_scan(replace(state, vector_files=(), key_files=()), predicate)
    if which is RowSelection.STORED:
        return plan
    planner = _deletes if which is RowSelection.DELETES else _index_rows
    buckets = []
    for bucket in plan.buckets:
        places = planner(state, (bucket.partition, bucket.bucket))
        files = (file for file in bucket.files if file.meta.file_name in places)
        named = [replace(file, places=places[file.meta.file_name]) for file in files]
        buckets.append(replace(bucket, sections=tuple(Section(((file,),)) for file in named)))
    return replace(plan, buckets=tuple(buckets))


_Places: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


def _deletes(state: TableState, bucket: BucketId) -> _Places:
    """The positions in the index of rows that are dead: no later row exists."""
    dead = _dead_rows(state, bucket)
    found = {
        name: np.intersect1d(places, dead.of(name), assume_unique=True)
        for name, places in _index_rows(state, bucket).items()
    }
    return {name: places for name, places in found.items() if len(places)}


def _index_rows(state: TableState, bucket: BucketId) -> _Places:
    """The positions, ascending, that the index of a bucket has in each of its files."""
    view = state.view
    head = key_files_by_bucket(state.key_files).get(bucket)
    reason: str | None = "there is no index"
    if head is not None:
        index = load_key_index(view.store, head, view.options.lookup_cache_bytes_max)
        entries = (e for e in state.live.entries if (e.partition, e.bucket) == bucket)
        rows = {entry.file.file_name: entry.file.row_count for entry in entries}
        dead = _dead_rows(state, bucket)
        counts = {name: dead.count(name) for name in dead.vectors}
        reason = why_not_covered(index.head, rows, counts)
    if head is None or reason is not None:
        raise DataError(
            f"table {view.name}: the key index of bucket {bucket[1]} cannot find its last rows: "
            f"{reason}; write a row to the bucket, which rebuilds the index, or read all stored "
            "rows"
        )
    found = {name: at for name, at in index.rows().items() if at}
    return {name: np.asarray(at.to_array()).astype(np.int64) for name, at in found.items()}


def _dead_rows(state: TableState, bucket: BucketId) -> DeadRows:
    files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    return load_dead_rows(state.view.store, files, state.view.name)
