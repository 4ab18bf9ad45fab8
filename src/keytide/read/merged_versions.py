"""Merged versions: one version per key, merged from the runs that contain the key.

Overlapping runs are merged in key-range windows, so memory depends on the batch size and not on the
bucket. Deletes remain among the versions, so that merged versions can replace the ones that they
were merged from. A reader leaves deletes out, and a compaction writes them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.format.data_file import IS_DEAD, SEQUENCE_NUMBER, VALUE_KIND
from keytide.merge.folding import Merging, Standing
from keytide.merge.touched import merge_runs, without_contained, without_outlived
from keytide.merge.windows import SIDE_BY_SIDE, Batch, Together
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import (
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    equal_values,
)
from keytide.read.found import Found
from keytide.read.runs import StoredVersions, table_columns
from keytide.read.sections import BucketPlan, PlannedFile, Section
from keytide.read.version_runs import FileRun, HeldRun, VersionRun, windows_of
from keytide.snapshot.view import TableView
from keytide.types import Field

__all__ = ["MergedVersions", "Window", "batch_rows", "rows_in"]

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

    For files in `found`, only the versions there are used, and nothing is read.
    """

    view: TableView
    columns: tuple[str, ...]
    condition: Predicate | None = None
    has_older: bool = False
    tells_kinds: bool = True
    found: Found | None = None
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
            read = self._merged_in_order if section.needs_merge else self._lone_in_order
            for frame in read(bucket, section, memory_bytes, keys):
                yield frame.select(self.columns).sort(key, nulls_last=False)

    def of(self, bucket: BucketPlan, memory_bytes: int) -> Iterator[list[pl.DataFrame]]:
        """The windows of the bucket: frames with `columns` and maybe others, rows in any order.

        No key is in two frames. Windows of sections that were split by key come in key order. A
        window fits in about `memory_bytes`, including the memory to create it. Raises
        `InvalidError`, which names the key, if versions cannot be merged. Raises `DataError`, which
        names the file, if it cannot be read. With older versions below, raises `OlderNeededError`
        if merged versions would not work on top of them.
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
                for frame in self._lone(bucket, files, memory_bytes):
                    yield Window([frame], [frame], [frame])

    def _lone_in_order(
        self, bucket: BucketPlan, section: Section, memory_bytes: int, keys: pl.DataFrame | None
    ) -> Iterator[pl.DataFrame]:
        if self.found is not None and self.found.has(section):
            yield from (rows for rows in self.found.of(section) if rows.height)
            return
        columns = _unique(self.columns, sorted(columns_of(self.condition)))
        stored = StoredVersions(
            self.view, bucket.partition, columns, self.condition, keys, self.tells_kinds
        )
        rows = max(_BATCH_ROWS_MIN, rows_in(memory_bytes, section.files, self._fields(columns)))
        for run in section.runs:
            yield from (batch.rows for batch in stored.of_run(run, rows))

    def _merged_in_order(
        self, bucket: BucketPlan, section: Section, memory_bytes: int, keys: pl.DataFrame | None
    ) -> Iterator[pl.DataFrame]:
        for window in self.windows(bucket.partition, section, memory_bytes, keys):
            if window.merged:
                yield pl.concat([piece.select(self.columns) for piece in window.merged])

    def _lone(
        self, bucket: BucketPlan, files: Sequence[PlannedFile], memory_bytes: int
    ) -> Iterator[pl.DataFrame]:
        columns = _unique(self.columns, sorted(columns_of(self.condition)))
        stored = StoredVersions(
            self.view, bucket.partition, columns, self.condition, tells_kinds=self.tells_kinds
        )
        rows = rows_in(memory_bytes, files, self._fields(columns))
        return stored.of_lone_files(files, max(_BATCH_ROWS_MIN, rows))

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
        merging: Merging = Standing(engine) if self.has_older else engine
        check = self._check_of_merged
        # A filter on other columns comes after the merge. Before it, an older version that matches
        # would come back.
        for window in self.stored_windows(partition, section, memory_bytes, keys):
            with self.view.reading():
                counted = without_contained(
                    _without_outlived(window, section, order.key), section.containing, order.key
                )
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
        if self.found is not None and self.found.has(section):
            yield self.found.of(section)
            return
        columns = self._columns_to_merge(section)
        stored = StoredVersions(
            self.view, partition, columns, self._about_key, keys, self.tells_kinds
        )
        rows = rows_in(memory_bytes, section.files, self._fields(stored.columns))
        yield from self._windows(stored, section, rows)

    def _windows(
        self, stored: StoredVersions, section: Section, rows: int
    ) -> Iterator[list[pl.DataFrame]]:
        """The versions of a section in key-range windows of about `rows` rows."""
        keys = _pinned_keys(self._about_key, self.view.order.key)
        if keys is not None and keys * len(section.runs) <= rows:
            yield stored.of_runs(section.runs)
            return
        runs: list[VersionRun] = [FileRun(stored, run) for run in section.runs]
        sizes = [run.rows for run in runs]
        # If the batches of all runs are cut at similar keys, a window uses most of each batch.
        held = batch_rows(sizes, rows)
        largest = sizes.index(max(sizes))
        if self._may_filter(section, largest, sizes, held):
            others = [[] if i == largest else [*run.batches(held[i])] for i, run in enumerate(runs)]
            filtering = self._filtering(stored, [batch for some in others for batch in some])
            runs = [HeldRun(some) for some in others]
            runs[largest] = FileRun(filtering, section.runs[largest])
        yield from windows_of(runs, held, self.view.order.key, self.together)

    def _may_filter(
        self, section: Section, largest: int, sizes: Sequence[int], held: Sequence[int]
    ) -> bool:
        """Whether a condition on merged versions can be applied to the largest run while it is
        read.

        For keys that no other run has, the version in this run is the merged version.
        """
        if self._check_of_merged is None or any(file.dead_rows for file in section.runs[largest]):
            return False
        return all(held[i] >= size for i, size in enumerate(sizes) if i != largest)

    def _filtering(self, stored: StoredVersions, others: Sequence[Batch]) -> StoredVersions:
        """A reader of versions that match the condition, or whose key is in other runs."""
        key = list(self.view.order.key)
        touched = [batch.rows.select(key) for batch in others if batch.rows.height]
        always = pl.concat(touched) if touched else None
        return replace(stored, condition=self.condition, always=always)

    def _columns_to_merge(self, section: Section) -> tuple[str, ...]:
        """The requested columns and those that decide.

        Numbers only if they decide or are requested.
        """
        wanted = _unique(self.columns, sorted(columns_of(self.condition)))
        table = self.view.engine.columns(table_columns(wanted))
        numbered = SEQUENCE_NUMBER in wanted or not section.arrival_decides
        marks = [IS_DEAD] if section.has_dead_retracts else []
        return (*table, *([SEQUENCE_NUMBER] if numbered else []), VALUE_KIND, *marks)

    def _fields(self, columns: Sequence[str]) -> tuple[Field, ...]:
        return self.view.schema.select(table_columns(columns))

    @cached_property
    def _about_key(self) -> Predicate | None:
        """The terms that are true for all versions of a key or for none, so they can be applied
        early.
        """
        return conjunction(t for t in conjuncts(self.condition) if columns_of(t) <= self._key)

    @cached_property
    def _check_of_merged(self) -> pl.Expr | None:
        terms = [t for t in conjuncts(self.condition) if not columns_of(t) <= self._key]
        about = conjunction(terms)
        return None if about is None else row_filter(about, self._fields(sorted(columns_of(about))))

    @cached_property
    def _key(self) -> frozenset[str]:
        return frozenset((*self.view.order.key, *self.view.schema.partition_keys))


def _without_outlived(
    window: list[pl.DataFrame], section: Section, key: tuple[str, ...]
) -> list[pl.DataFrame]:
    if not section.has_dead_retracts:
        return window
    # A run without a batch has no columns either.
    upper = [place for place in section.upper if window[place].width]
    counted = without_outlived(window, upper, key, IS_DEAD)
    return [frame.drop(IS_DEAD) if frame.width else frame for frame in counted]


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


def _pinned_keys(condition: Predicate | None, key: Sequence[str]) -> int | None:
    """How many keys can match a condition. None if it leaves a column open."""
    terms = conjuncts(condition)
    values = [equal_values(terms, name) for name in key]
    return None if None in values else math.prod(len(some or ()) for some in values)


def rows_in(memory_bytes: int, files: Sequence[PlannedFile], fields: Sequence[Field]) -> int:
    """About how many rows of these columns may be in memory, including their copies."""
    return memory_bytes // _COPIES // _row_bytes(files, fields)


def _row_bytes(files: Sequence[PlannedFile], fields: Sequence[Field]) -> int:
    """About how much memory a row of these columns takes."""
    rows = max(1, sum(file.meta.row_count for file in files))
    stored = sum(file.meta.file_size for file in files) // rows
    types = [f.type.to_arrow() for f in fields]
    fixed = sum(_fixed_bytes(t) for t in types)
    # Strings and nested values: estimated from the size on disk. Compression saves at least half.
    variable = sum(1 for t in types if not _fixed_bytes(t))
    return max(16, fixed + variable * max(24, 2 * stored))


def _fixed_bytes(data_type: pa.DataType) -> int:
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:
        return 0


def _unique(*names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))
