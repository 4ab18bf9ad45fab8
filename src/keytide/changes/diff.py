"""The difference between two snapshots, planned from metadata and computed by key ranges.

Files that are live in both snapshots contain the same rows. So a lane of buckets is read only if
its live files differ, and only the keys in files that one snapshot has and the other does not. This
is true if both snapshots are read in the same way. If an alteration in between changes how stored
rows are merged, every key is compared.

In a table with a key index, the difference is the rows that died and the new rows. A compaction
rewrites rows unchanged, and emits nothing. If one of the snapshots is of a table that merges,
because there was a conversion in between, all rows of both are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeAlias

import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.changes.stored_rows import (
    DeadRowsTask,
    FilesTask,
    Images,
    ImagesTask,
    Lane,
    lanes,
    with_shown_kind,
)
from keytide.definition.option_changes import as_kind_of, keeps_stored_rows
from keytide.format.arrow import polars_schema
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import Identity, ManifestEntry
from keytide.merge.engines import engine_class
from keytide.merge.order import difference
from keytide.merge.windows import key_windows
from keytide.options import TableOptions
from keytide.predicate.predicate import Predicate
from keytide.read.lookup import find, key_range, keys_in
from keytide.read.merged_versions import Lifetime, rows_in
from keytide.read.plan import plan_files
from keytide.read.sections import BucketPlan, PlannedFile, decoded, is_out_of_order
from keytide.snapshot.state import TableState, TableView

# -- tables with a key index -----------------------------------------------------------------------


# Compared rows are in memory as they are read, and again when they are sorted.
_TIMES_HELD = 2


@dataclass(frozen=True)
class IndexedDiffTask:
    """The changes of one lane of buckets between two snapshots. Picklable.

    `removed_rows` returns the rows that only the first snapshot shows at their position, and
    `added_rows` those that only the second one shows. Both may include rows that also exist in the
    other. Rows differ if their `compared_columns` do. None: any column.
    """

    view: TableView
    removed_rows: tuple[FilesTask | ImagesTask, ...]
    added_rows: tuple[FilesTask | ImagesTask, ...]
    lane: Lane
    compared_columns: frozenset[str] | None = None

    @property
    def files(self) -> list[PlannedFile]:
        """What is read, each file once for each snapshot."""
        return [file for task in (*self.removed_rows, *self.added_rows) for file in task.files]

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The changes, in key order as far as they fit in memory.

        A pair of -U and +U is in one frame.
        """
        names, key = self.view.schema.names, self.view.schema.primary_keys
        rows = sum(task.rows for task in (*self.removed_rows, *self.added_rows))
        rows_max = rows_in(memory_bytes, self.files, self.view.schema.fields)
        parts = -(-rows * _TIMES_HELD // max(1, rows_max)) or 1  # each part reads all files
        for part in range(parts):
            then, now = (
                self._rows(tasks, part, parts, memory_bytes)
                for tasks in (self.removed_rows, self.added_rows)
            )
            changes = difference(then, now, key, self.compared_columns)
            if changes.height:
                yield with_shown_kind(changes, names)

    def _rows(
        self, tasks: tuple[FilesTask | ImagesTask, ...], part: int, parts: int, memory_bytes: int
    ) -> pl.DataFrame:
        """The rows whose keys are in a part."""
        names, key = self.view.schema.names, self.view.schema.primary_keys
        is_in = pl.struct(key).hash() % parts == part
        rows = (frame for task in tasks for frame in task.outcomes(memory_bytes))
        found = [(frame.filter(is_in) if parts > 1 else frame).select(names) for frame in rows]
        return pl.concat([pl.DataFrame(schema=polars_schema(self.view.schema.fields)), *found])


# -- the difference --------------------------------------------------------------------------------


# The keys of changed files are in memory while rows are read. They use at most this part of the
# memory.
_KEYS_SHARE = 8
_KEY_BYTES = 64
# In addition to what is found, files are decoded, several at a time if the store is remote.
_SHARE_OF_FILE = 4


@dataclass(frozen=True)
class DiffTask:
    """The changes of one lane of buckets between two snapshots. Picklable.

    Keys that are in none of the `changed_files` have equal rows. None: any row may differ. Rows
    differ if their `compared_columns` do. None: any column.
    """

    before: Images
    after: Images
    changed_files: tuple[PlannedFile, ...] | None
    lane: Lane
    compared_columns: frozenset[str] | None = None

    @property
    def view(self) -> TableView:
        """The table as its rows are shown."""
        return self.after.target

    @property
    def files(self) -> list[PlannedFile]:
        """What is read, each file once for each snapshot."""
        buckets = (*self.before.buckets, *self.after.buckets)
        return [file for bucket in buckets for file in bucket.files]

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The changes, in key order within a bucket. A pair of -U and +U is in one frame."""
        key = self.view.schema.trimmed_primary_keys
        keys = self._changed_keys(memory_bytes // _KEYS_SHARE)
        # Both snapshots have most files in common, so the versions in these files are found once.
        found = None
        if keys is not None:
            files = {file.entry.identity: file for file in self.files}.values()
            rows = rows_in(memory_bytes // 2, self.files, self.view.schema.fields)
            if sum(min(file.meta.row_count, keys.height) for file in files) <= rows:
                found = find(self.view, files, keys, rows // _SHARE_OF_FILE)
        before = self.before.runs(memory_bytes // 2, keys, found)
        after = self.after.runs(memory_bytes // 2, keys, found)
        for window in key_windows([*before, *after], key):
            # A run without a batch has no columns either.
            empty = next(frame for frame in window if frame.width).clear()
            then, now = (
                pl.concat([empty, *(frame for frame in side if frame.width)])
                for side in (window[: len(before)], window[len(before) :])
            )
            changes = difference(then, now, key, self.compared_columns)
            if changes.height:
                yield with_shown_kind(changes, self.view.schema.names)

    def _changed_keys(self, memory_bytes: int) -> pl.DataFrame | None:
        """The keys in changed files, each once and sorted, if they fit in the memory."""
        if self.changed_files is None:
            return None
        key = self.view.schema.trimmed_primary_keys
        rows = sum(file.meta.row_count for file in self.changed_files)
        if rows * _KEY_BYTES * len(key) > memory_bytes:
            return None
        calls = [partial(keys_in, self.view, file) for file in self.changed_files]
        found = pl.concat(self.view.store.together(calls))
        return found.unique().sort(key, nulls_last=False)


def plan_diff(
    before: TableState, after: TableState, compared: frozenset[str] | None = None
) -> list[DiffTask | FilesTask | IndexedDiffTask]:
    """The changes between two snapshots, as tasks for one lane of buckets each.

    Rows have the columns of `after`, and differ if their `compared` columns do. None: any column.
    Raises the same errors as `plan_files`.
    """
    alike = are_read_alike(before.view, after.view)
    if alike:
        before = replace(before, view=after.view)
    pairs = _pairs(before, after, differing=alike)
    if before.view.kind is not after.view.kind:
        return [_converted_task(pair, compared) for pair in pairs]
    if after.view.kind.has_key_index:
        indexed = []
        for pair in pairs:
            rows = [*_append_tasks(pair)]
            gone = tuple(task for task in rows if task.kind is RowKind.DELETE)
            came = tuple(task for task in rows if task.kind is RowKind.INSERT)
            indexed.append(IndexedDiffTask(pair.after.view, gone, came, pair.lane, compared))
        return [task for task in indexed if task.files]
    if not after.view.kind.keeps_versions:
        return [task for pair in pairs for task in _append_tasks(pair)]
    # In both snapshots, only rows that have not expired by now are compared.
    lifetime = Lifetime.of(after.view)
    made = (_diff_task(pair, lifetime, alike=alike) for pair in pairs)
    return [replace(task, compared_columns=compared) for task in made if task is not None]


def are_read_alike(before: TableView, after: TableView) -> bool:
    """Whether files have the same rows under both views, except for columns that one view lacks."""
    if before.schema == after.schema:
        return True
    was = {field.id: field.type for field in before.schema.fields}
    retyped = any(was.get(f.id, f.type) != f.type for f in after.schema.fields)
    return (
        keeps_stored_rows(before.schema, after.schema)
        and before.options.deletion_vectors_enabled == after.options.deletion_vectors_enabled
        and before.options.merges_on_read == after.options.merges_on_read
        and (not retyped or engine_class(after.options).picks_a_version)
    )


# -- lanes of buckets ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """The files of a lane in one of the snapshots."""

    view: TableView
    entries: tuple[ManifestEntry, ...]
    vector_files: tuple[IndexFile, ...]

    def plan(self, condition: Predicate | None = None) -> tuple[BucketPlan, ...]:
        return plan_files(self.view, self.entries, condition, self.vector_files).buckets

    @cached_property
    def shown(self) -> dict[Identity, PlannedFile]:
        """The files that readers use."""
        return {file.entry.identity: file for file in _files_of(self.plan())}

    @property
    def _is_plain(self) -> bool:
        """Whether readers use all rows of all files."""
        return not self.vector_files and self.view.options.merges_on_read

    def without(self, other: _Side) -> list[PlannedFile]:
        """The files that the other side lacks, or that have other dead rows there."""
        if self._is_plain and other._is_plain:
            known = {entry.identity for entry in other.entries}
            own = tuple(entry for entry in self.entries if entry.identity not in known)
            return _files_of(replace(self, entries=own).plan()) if own else []
        return [file for each, file in self.shown.items() if other.shown.get(each) != file]


def _files_of(buckets: Iterable[BucketPlan]) -> list[PlannedFile]:
    return [file for bucket in buckets for file in bucket.files]


@dataclass(frozen=True)
class _Pair:
    """Both sides of a lane."""

    lane: Lane
    before: _Side
    after: _Side


def _pairs(before: TableState, after: TableState, *, differing: bool) -> list[_Pair]:
    """Both sides of each lane. With `differing`, only lanes whose files differ."""
    # The numbers of buckets of each partition in the states.
    counts: dict[bytes, set[int]] = {}
    for state in (before, after):
        for partition, count in state.live.partition_buckets.items():
            counts.setdefault(partition, set()).add(count)
    lane_of, sides = lanes(after.view.schema, counts), list[dict[Lane, _Files]]()
    for state in (after, before):
        entries: dict[Lane, list[ManifestEntry]] = {}
        vectors: dict[Lane, list[IndexFile]] = {}
        for entry in state.live.entries:
            entries.setdefault(lane_of(entry.partition, entry.bucket), []).append(entry)
        for file in state.vector_files:
            vectors.setdefault(lane_of(file.partition, file.bucket), []).append(file)
        sides.append(
            {lane: (tuple(own), tuple(vectors.get(lane, ()))) for lane, own in entries.items()}
        )
    pairs = []
    for lane in dict.fromkeys(lane for side in sides for lane in side):
        now, then = (side.get(lane, ((), ())) for side in sides)
        if not differing or _names(now) != _names(then):
            pairs.append(_Pair(lane, _Side(before.view, *then), _Side(after.view, *now)))
    return pairs


_Files: TypeAlias = "tuple[tuple[ManifestEntry, ...], tuple[IndexFile, ...]]"


def _names(files: _Files) -> tuple[set[Identity], set[str]]:
    entries, vector_files = files
    return {entry.identity for entry in entries}, {file.file_name for file in vector_files}


# -- tasks -----------------------------------------------------------------------------------------


def _diff_task(pair: _Pair, lifetime: Lifetime | None, *, alike: bool) -> DiffTask | None:
    before, after = pair.before, pair.after
    if not alike:
        sides = [
            Images(side.view, after.view, side.plan(), lifetime=lifetime)
            for side in (before, after)
        ]
        return DiffTask(sides[0], sides[1], None, pair.lane)
    changed = [*before.without(after), *after.without(before)]
    if not changed:
        return None

    # A condition that is true for all keys in the files.
    fields = after.view.schema.trimmed_primary_key_fields()
    if any(is_out_of_order(file.entry, fields) for file in changed):
        condition = None
    else:
        ends = [end for file in changed for end in (file.meta.min_key, file.meta.max_key)]
        condition = key_range(decoded(ends, fields))
    sides = [
        Images(side.view, after.view, side.plan(condition), condition, lifetime)
        for side in (before, after)
    ]
    return DiffTask(sides[0], sides[1], tuple(changed), pair.lane)


def _converted_task(pair: _Pair, compared: frozenset[str] | None) -> IndexedDiffTask:
    """The task for two different kinds of tables: all rows are compared, because they share no
    files.
    """
    target, tasks = pair.after.view, list[FilesTask | ImagesTask]()
    for side in (pair.before, pair.after):
        if side.view.kind.keeps_versions:
            tasks.append(ImagesTask(Images(side.view, target, side.plan())))
        else:
            schema = as_kind_of(target.schema, side.view.schema)
            view = replace(side.view, schema=schema, options=TableOptions.parse(schema.options))
            files = tuple(side.shown.values())
            tasks.append(FilesTask(view, files, pair.lane, RowKind.INSERT))
    return IndexedDiffTask(target, (tasks[0],), (tasks[1],), pair.lane, compared)


def _append_tasks(pair: _Pair) -> Iterator[FilesTask]:
    before, after = pair.before, pair.after
    for one, other, kind in (
        (before, after, RowKind.DELETE),
        (after, before, RowKind.INSERT),
    ):
        differing = one.without(other)
        lone = [file for file in differing if file.entry.identity not in other.shown]
        if lone:
            yield FilesTask(after.view, tuple(lone), pair.lane, kind)
        # For a file that both sides have, a row is on one side only if it is dead on the other.
        pairs = [(f, other.shown.get(f.entry.identity)) for f in differing]
        marked = [(f, twin.dead_rows) for f, twin in pairs if twin is not None and twin.dead_rows]
        if marked:
            files, places = zip(*marked, strict=True)
            yield DeadRowsTask(after.view, files, pair.lane, kind, dead_elsewhere=places)
