"""Merged versions, one per key, and the part of them that readers see as rows.

Overlapping runs are merged in key-range windows, so memory depends on the batch size and not on the
bucket. Deletes remain among the versions, so that merged versions can replace the ones that they
were merged from. A reader leaves deletes out, and a compaction writes them again.

Readers see no row that is older than the maximum age, according to a time column. A row that is too
old is not shown, whether or not a compaction has already removed it. This is decided for merged
rows, never for the versions that they consist of. Which versions have been merged depends on
compactions, and what a row shows must not depend on them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.format.data_file import IS_DEAD, SEQUENCE_NUMBER, VALUE_KIND
from keytide.merge.layers import (
    PartialMerge,
    merge_runs,
    without_contained,
    without_outlived,
)
from keytide.merge.order import IS_ADD
from keytide.merge.windows import SIDE_BY_SIDE, Together
from keytide.predicate.predicate import (
    Comparison,
    IsNull,
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    disjunction,
    equal_values,
    row_filter,
    without_columns,
)
from keytide.read.runs import (
    FileRun,
    FoundVersions,
    MemoryRun,
    StoredVersions,
    VersionRun,
    table_columns,
    windows_of,
)
from keytide.read.sections import BucketPlan, PlannedFile, Section
from keytide.snapshot.state import TableView
from keytide.types import Field

# -- merged versions -------------------------------------------------------------------------------


# The rows of a window are in memory about five times: as batches, as the next batches, as slices,
# concatenated, and merged.
_COPIES = 5
_BATCH_ROWS_MIN = 8 << 10


class Window(NamedTuple):
    """The versions of a range of keys: as stored in each run of a section, and merged.

    `counted` are the stored versions without those that another version contains. The `merged`
    frames have no key in common.
    """

    runs: list[pl.DataFrame]
    counted: list[pl.DataFrame]
    merged: list[pl.DataFrame]


@dataclass(frozen=True)
class MergedVersions:
    """Merges the versions of one bucket.

    - `columns` are columns of the table, `_SEQUENCE_NUMBER` and `_VALUE_KIND`. A merged version has
      the number and kind of the version that it replaces, as the merge engine says. A single
      version keeps the stored ones.
    - All versions in the result match the `condition`. The parts about columns other than the key
      are applied to merged versions.
    - `has_older` says that there are older versions below, and that the merged versions must work
      on top of them.
    - `tells_kinds` as in `StoredVersions`.

    For files in `found_versions`, only the versions there are used, and nothing is read.
    """

    view: TableView
    columns: tuple[str, ...]
    condition: Predicate | None = None
    has_older: bool = False
    tells_kinds: bool = True
    found_versions: FoundVersions | None = None
    together: Together = SIDE_BY_SIDE
    """How the reads of a section's runs are started."""

    def in_order(
        self, bucket: BucketPlan, memory_bytes: int, keys: pl.DataFrame | None = None
    ) -> Iterator[pl.DataFrame]:
        """The same as frames with `columns` in key order: of some keys or, without `keys`, of all.

        REQUIRES: sections that were split by key. Raises the same errors as `of`.
        """
        key = list(self.view.order.key)
        for section in bucket.sections:
            if section.needs_merge:
                windows = self.windows(bucket.partition, section, memory_bytes, keys)
                frames: Iterator[pl.DataFrame] = (
                    pl.concat([piece.select(self.columns) for piece in window.merged])
                    for window in windows
                    if window.merged
                )
            else:
                frames = self._lone_in_order(bucket, section, memory_bytes, keys)
            for frame in frames:
                yield frame.select(self.columns).sort(key, nulls_last=False)

    def of(self, bucket: BucketPlan, memory_bytes: int) -> Iterator[list[pl.DataFrame]]:
        """The windows of the bucket: frames with `columns` and maybe others, rows in any order.

        No key is in two frames. Windows of sections that were split by key come in key order. A
        window fits in about `memory_bytes`, including the memory to create it. Raises
        `InvalidError`, which names the key, if versions cannot be merged. Raises `DataError`, which
        names the file, if it cannot be read. With older versions below, raises
        `OlderVersionsNeededError` if merged versions would not work on top of them.
        """
        for window in self.windows_of(bucket, memory_bytes):
            yield window.merged

    def windows_of(self, bucket: BucketPlan, memory_bytes: int) -> Iterator[Window]:
        """The same together with the versions that they were merged from. Raises like `of`."""
        for needs_merge, sections in groupby(bucket.sections, lambda s: s.needs_merge):
            if needs_merge:
                for section in sections:
                    yield from self.windows(bucket.partition, section, memory_bytes)
            else:
                files = [file for section in sections for file in section.files]
                stored = StoredVersions(
                    self.view,
                    bucket.partition,
                    self._wanted,
                    self.condition,
                    tells_kinds=self.tells_kinds,
                )
                rows = rows_in(memory_bytes, files, self._fields(self._wanted))
                for frame in stored.of_lone_files(files, max(_BATCH_ROWS_MIN, rows)):
                    yield Window([frame], [frame], [frame])

    def _lone_in_order(
        self, bucket: BucketPlan, section: Section, memory_bytes: int, keys: pl.DataFrame | None
    ) -> Iterator[pl.DataFrame]:
        if self.found_versions is not None and self.found_versions.has(section):
            yield from (rows for rows in self.found_versions.of(section) if rows.height)
            return
        stored = StoredVersions(
            self.view, bucket.partition, self._wanted, self.condition, keys, self.tells_kinds
        )
        fields = self._fields(self._wanted)
        rows = max(_BATCH_ROWS_MIN, rows_in(memory_bytes, section.files, fields))
        for run in section.runs:
            yield from (batch.rows for batch in stored.of_run(run, rows))

    def windows(
        self,
        partition: bytes,
        section: Section,
        memory_bytes: int,
        keys: pl.DataFrame | None = None,
    ) -> Iterator[Window]:
        """The windows of a section that needs a merge: of some keys or, without `keys`, of all.

        Frames and errors are as described in `of`.
        """
        order, engine = self.view.order, self.view.engine
        merging = PartialMerge(engine) if self.has_older else engine
        _, check = self._condition_parts
        # A filter on other columns comes after the merge. Before it, an older version that matches
        # would come back.
        for window in self.stored_windows(partition, section, memory_bytes, keys):
            with self.view.reading():
                counted = window
                if section.has_dead_retracts:
                    # A run without a batch has no columns either.
                    upper = [place for place in section.upper if window[place].width]
                    counted = without_outlived(window, upper, order.key, IS_DEAD)
                    counted = [frame.drop(IS_DEAD) if frame.width else frame for frame in counted]
                counted = without_contained(counted, section.containing, order.key)
                pieces = merge_runs(
                    counted, order, merging, arrival_decides=section.arrival_decides
                )
            merged = pieces if check is None else [piece.filter(check) for piece in pieces]
            yield Window(window, counted, merged)

    def stored_windows(
        self,
        partition: bytes,
        section: Section,
        memory_bytes: int,
        keys: pl.DataFrame | None = None,
    ) -> Iterator[list[pl.DataFrame]]:
        """The versions of a section as stored in each of its runs, in key-range windows.

        A run without versions in the window may have no columns.
        """
        if self.found_versions is not None and self.found_versions.has(section):
            yield self.found_versions.of(section)
            return

        # The requested columns and those that decide. Numbers only if they decide or are requested.
        table = self.view.engine.columns(table_columns(self._wanted))
        numbered = SEQUENCE_NUMBER in self._wanted or not section.arrival_decides
        marks = [IS_DEAD] if section.has_dead_retracts else []
        columns = (*table, *([SEQUENCE_NUMBER] if numbered else []), VALUE_KIND, *marks)
        about_key, _ = self._condition_parts
        stored = StoredVersions(self.view, partition, columns, about_key, keys, self.tells_kinds)
        rows = rows_in(memory_bytes, section.files, self._fields(stored.columns))
        yield from self._windows(stored, section, rows)

    def _windows(
        self, stored: StoredVersions, section: Section, rows: int
    ) -> Iterator[list[pl.DataFrame]]:
        """The versions of a section in key-range windows of about `rows` rows."""
        # How many keys can match a condition. None if it leaves a column open.
        about_key, check = self._condition_parts
        terms = conjuncts(about_key)
        values = [equal_values(terms, name) for name in self.view.order.key]
        keys = None if None in values else math.prod(len(some or ()) for some in values)
        if keys is not None and keys * len(section.runs) <= rows:
            yield stored.of_runs(section.runs)
            return
        runs: list[VersionRun] = [FileRun(stored, run) for run in section.runs]
        sizes = [run.rows for run in runs]
        # If the batches of all runs are cut at similar keys, a window uses most of each batch.
        held = batch_rows(sizes, rows)
        largest = sizes.index(max(sizes))
        # A condition on merged versions can be applied to the largest run while it is read: for
        # keys that no other run has, the version in this run is the merged version.
        has_dead = any(file.dead_rows for file in section.runs[largest])
        others_fit = all(held[i] >= size for i, size in enumerate(sizes) if i != largest)
        if check is not None and not has_dead and others_fit:
            others = [[] if i == largest else [*run.batches(held[i])] for i, run in enumerate(runs)]
            key = list(self.view.order.key)
            batches = [batch.rows for some in others for batch in some if batch.rows.height]
            touched = pl.concat([rows.select(key) for rows in batches]) if batches else None
            filtering = replace(stored, condition=self.condition, always=touched)
            runs = [MemoryRun(some) for some in others]
            runs[largest] = FileRun(filtering, section.runs[largest])
        yield from windows_of(runs, held, self.view.order.key, self.together)

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        """The requested columns, and those of the condition."""
        return tuple(dict.fromkeys((*self.columns, *sorted(columns_of(self.condition)))))

    @cached_property
    def _condition_parts(self) -> tuple[Predicate | None, pl.Expr | None]:
        """The terms that are true for all versions of a key or for none, so that they can be
        applied early, and the check of the others, which is applied to merged versions.
        """
        key = {*self.view.order.key, *self.view.schema.partition_keys}
        terms = conjuncts(self.condition)
        about_key = conjunction(t for t in terms if columns_of(t) <= key)
        rest = conjunction(t for t in terms if not columns_of(t) <= key)
        if rest is None:
            return about_key, None
        return about_key, row_filter(rest, self._fields(sorted(columns_of(rest))))

    def _fields(self, columns: Sequence[str]) -> tuple[Field, ...]:
        return self.view.schema.select(table_columns(columns))


def batch_rows(sizes: Sequence[int], rows: int) -> list[int]:
    """How many rows of each run to hold in memory, for windows of about `rows` rows.

    The smallest runs are held as a whole while they fit in this number: each cut of a run adds
    windows, and the rows around a cut are decoded twice. The other runs share the rest in
    proportion to their size, so windows cover similar key ranges of each. So up to twice as many
    rows are held. A window takes, and copies, half of them.
    """
    spare, left, total = rows, len(sizes), max(1, sum(sizes))
    held: list[int | None] = [None] * len(sizes)
    for run in sorted(range(len(sizes)), key=sizes.__getitem__):
        if sizes[run] <= spare:
            held[run] = sizes[run]
            spare -= sizes[run]
            left -= 1
    shares = [max(spare // max(1, left), rows * size // total) for size in sizes]
    return [
        max(_BATCH_ROWS_MIN, share if whole is None else whole)
        for whole, share in zip(held, shares, strict=True)
    ]


def rows_in(memory_bytes: int, files: Sequence[PlannedFile], fields: Sequence[Field]) -> int:
    """About how many rows of these columns may be in memory, including their copies."""
    # About how much memory a row of these columns takes.
    rows = max(1, sum(file.meta.row_count for file in files))
    stored = sum(file.meta.file_size for file in files) // rows
    types = [f.type.to_arrow() for f in fields]
    fixed = sum(_fixed_bytes(t) for t in types)
    # Strings and nested values: estimated from the size on disk. Compression saves at least half.
    variable = sum(1 for t in types if not _fixed_bytes(t))
    return memory_bytes // _COPIES // max(16, fixed + variable * max(24, 2 * stored))


def _fixed_bytes(data_type: pa.DataType) -> int:
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:
        return 0


# -- rows of readers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows with some columns, in order, that match a predicate.

    NULL is shown as the column's default, and a condition on such a column sees the default.
    """

    view: TableView
    columns: tuple[str, ...]
    predicate: Predicate | None = None

    def versions(self, *, tells_kinds: bool = False) -> MergedVersions:
        """The merged versions that the rows are derived from. For `tells_kinds` see there."""
        # A condition on a column with a default applies to what is shown, so it is left to
        # `outcomes`, and the column must be read for it.
        columns = (*self._table_columns, VALUE_KIND) if self._defaults else self.columns
        condition = without_columns(self.predicate, self._defaults)
        columns = tuple(dict.fromkeys((*columns, VALUE_KIND)))
        return MergedVersions(self.view, columns, condition, tells_kinds=tells_kinds)

    def outcomes(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The result for each key of merged versions, including deletes.

        Has the columns and `_VALUE_KIND`, and maybe others.
        """
        if not self._defaults:
            return versions
        filled = versions.with_columns(
            pl.col(name).fill_null(pl.lit(pl.Series([value.as_py()], dtype=dtype)).first())
            for name, value in self._defaults.items()
            for dtype in [versions.schema[name]]
        )
        return filled if self._check is None else filled.filter(self._check)

    def shown(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The rows of merged versions."""
        rows = self.outcomes(versions)
        kinds = rows[VALUE_KIND]
        # Checking the kinds is much cheaper than filtering a frame without retractions.
        if kinds.max() != RowKind.INSERT:  # the lowest of them
            has_retracts = ((kinds == RowKind.DELETE) | (kinds == RowKind.UPDATE_BEFORE)).any()
            rows = rows.filter(IS_ADD) if has_retracts else rows
        return rows[list(self.columns)]

    def together(self, window: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """The rows of a window of merged versions as one frame; none if it has only deletes."""
        shown = [frame for frame in map(self.shown, window) if frame.height]
        # They go together, so that the next window is merged while a caller works on all of them.
        if shown:
            yield pl.concat(shown, rechunk=False)

    @cached_property
    def _table_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *sorted(columns_of(self.predicate)))))

    @cached_property
    def _defaults(self) -> Mapping[str, pa.Scalar]:
        return self.view.defaults(self._table_columns)

    @cached_property
    def _check(self) -> pl.Expr | None:
        if self.predicate is None:
            return None
        return row_filter(self.predicate, self.view.schema.select(self._table_columns))


# -- expiry of rows --------------------------------------------------------------------------------


# From this number on, a BIGINT counts milliseconds. In seconds, it would be 31,688 years.
_MILLIS_FROM = 10**12


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Lifetime:
    """Rows whose `field` is before `oldest_s`, in epoch seconds, have expired.

    NULL never expires. A TIMESTAMP without a time zone is in UTC.
    """

    field: Field
    oldest_s: int

    @classmethod
    def of(cls, view: TableView, now_ms: int | None = None) -> Lifetime | None:
        """The current maximum age of a table's rows. None for no limit."""
        options = view.options
        lifetime_ms, name = options.row_lifetime_ms, options.row_time_field
        if lifetime_ms is None or name is None or not view.kind.keeps_versions:
            return None
        now_s = (_clock_ms() if now_ms is None else now_ms) // 1000
        return cls(view.schema.field(name), now_s - lifetime_ms // 1000)

    @cached_property
    def shown(self) -> Predicate:
        """Matches the rows that have not expired."""
        name, type_ = self.field.name, self.field.type.to_arrow()
        if pa.types.is_timestamp(type_):
            ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
            young = Comparison(name, ">=", max(-(2**63), self.oldest_s * ticks))
            return disjunction([IsNull(name), young])
        oldest = max(-(2**31), self.oldest_s)
        young = Comparison(name, ">=", oldest)
        if self.field.type.root == "INT":
            return disjunction([IsNull(name), young])
        in_seconds = conjunction([young, Comparison(name, "<", _MILLIS_FROM)])
        assert in_seconds is not None
        in_millis = Comparison(name, ">=", max(_MILLIS_FROM, oldest * 1000))
        return disjunction([IsNull(name), in_seconds, in_millis])

    @cached_property
    def has_expired(self) -> pl.Expr:
        """An expression over rows with the column: whether each row has expired."""
        return ~row_filter(self.shown, [self.field])


def drops_expired(view: TableView) -> bool:
    """Whether a compaction can replace an expired row with a delete.

    It can if the row of a key is always one of its versions unchanged, because later versions then
    do not depend on it. If a row is composed of several versions, a later version would show
    columns or sums of the expired ones again. Such rows are kept but not shown.
    """
    engine = view.engine
    is_deleted_by = RowKind.DELETE in engine.tombstones and engine.skips(RowKind.DELETE) is None
    return engine.picks_a_version and is_deleted_by
