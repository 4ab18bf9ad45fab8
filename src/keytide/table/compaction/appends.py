"""Append tables: small files put together, and rows put in an order by which readers skip files.

No version is merged, so any files of a bucket may be taken. Rows that a deletion vector marks as
dead are left out of what is written, and the vectors of the files go with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest import DataFileMeta, FileKind, FileSource, ManifestEntry
from keytide.row_kind import RowKind
from keytide.table.compaction.clustering import Clustering, Ranges
from keytide.table.compaction.rewriting import Compacted
from keytide.table.read.merged_versions import rows_in
from keytide.table.read.plan import plan_files
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.bucket_index import by_index_key
from keytide.table.state.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.table.state.live_files import BucketId
from keytide.table.state.state import TableState
from keytide.table.state.view import TableView
from keytide.table.strides import rows_done
from keytide.table.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.table.write.partition_spec import every_partition
from keytide.table.write.task import Written

__all__ = ["ClusterTask", "PackTask", "Picks", "Rewriting", "cluster_tasks", "pack_tasks"]

# A file of at least so much of the target size is not written again for its size alone.
_LARGE_PERCENT = 70
# So many small files are worth a compaction that is not asked to take all.
_FEW = 5
# From so many rows a clustering learns how the values of a bucket lie.
_SAMPLE_ROWS = 100_000


# -- what is taken up ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picks:
    """Files by their names: those that are `taken` up however large, and those that are `left`."""

    taken: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


_NO_PICKS = Picks()


def pack_tasks(
    state: TableState, fits: Callable[[bytes], bool] = every_partition, *, full: bool,
    memory_bytes: int, picks: Picks = _NO_PICKS,
) -> list[PackTask]:  # fmt: skip
    """Tasks that put small files together: of each bucket with a few of them, or with two, in the
    partitions that fit.

    `full` takes buckets with two, and files of any size with dead rows. Raises `DataError` for a
    deletion vector that cannot be read.
    """
    tasks = []
    for bucket, files in _buckets(state, fits):
        target = state.view.options.target_file_size_bytes
        groups = list(_groups(files, target, picks, full=full))
        if groups:
            dead = _dead_rows(state, bucket)
            tasks.append(PackTask(state.view, bucket, tuple(groups), dead, memory_bytes))
    return tasks


def cluster_tasks(
    state: TableState, clustering: Clustering, fits: Callable[[bytes], bool], *, memory_bytes: int
) -> list[ClusterTask]:
    """Tasks that put all rows of each bucket in order. Raises as `pack_tasks`."""
    return [
        ClusterTask(state.view, bucket, files, _dead_rows(state, bucket), memory_bytes, clustering)
        for bucket, files in _buckets(state, fits)
    ]


def _buckets(
    state: TableState, fits: Callable[[bytes], bool]
) -> Iterator[tuple[BucketId, tuple[PlannedFile, ...]]]:
    for plan in plan_files(state.view, state.live.files, None, state.vector_files).buckets:
        if fits(plan.partition):
            yield (plan.partition, plan.bucket), plan.files


def _groups(
    files: Sequence[PlannedFile], target_bytes: int, picks: Picks, *, full: bool
) -> Iterator[tuple[PlannedFile, ...]]:
    """Files to become one each; they follow each other among those that are taken."""
    small = {
        file.meta.file_name for file in files
        if (file.meta.file_size * 100 < target_bytes * _LARGE_PERCENT
            or (full and file.dead_rows is not None))
        and file.meta.file_name not in picks.left
    }  # fmt: skip
    taken = picks.taken if len(small) < (1 if full else _FEW) else picks.taken | small
    group: list[PlannedFile] = []
    for file in files:
        if file.meta.file_name not in taken:
            continue
        if group and sum(f.meta.file_size for f in group) + file.meta.file_size > target_bytes:
            yield from _worth(group)
            group = []
        group.append(file)
    yield from _worth(group)


def _worth(group: Sequence[PlannedFile]) -> Iterator[tuple[PlannedFile, ...]]:
    if len(group) > 1 or any(file.dead_rows is not None for file in group):
        yield tuple(group)


def _dead_rows(state: TableState, bucket: BucketId) -> DeadRows:
    files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    return load_dead_rows(state.view.store, files, state.view.name)


# -- tasks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackTask:
    """Writes each group of files of a bucket as one file. Pickles."""

    view: TableView
    bucket: BucketId
    groups: tuple[tuple[PlannedFile, ...], ...]
    dead: DeadRows
    memory_bytes: int

    @property
    def files(self) -> list[ManifestEntry]:
        """The files that are taken up."""
        return [file.entry for group in self.groups for file in group]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> Compacted:
        """Write the files; nothing is left behind after an error.

        Raises `DataError` when the store refuses.
        """
        rewriting = Rewriting(self.view, self.bucket, self.memory_bytes)
        parts = ((group, rewriting.rows(group)) for group in self.groups)
        return rewriting.done(parts, self.dead)


@dataclass(frozen=True)
class ClusterTask:
    """Writes all rows of a bucket in the order of a clustering. Pickles.

    The rows are sorted in slices that fit in `memory_bytes`; for each of them all files are read.
    """

    view: TableView
    bucket: BucketId
    planned: tuple[PlannedFile, ...]
    dead: DeadRows
    memory_bytes: int
    clustering: Clustering

    @property
    def files(self) -> list[ManifestEntry]:
        """The files that are taken up."""
        return [file.entry for file in self.planned]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> Compacted:
        """Write the rows; nothing is left behind after an error. Raises as `PackTask`."""
        rewriting = Rewriting(self.view, self.bucket, self.memory_bytes)
        return rewriting.done([(self.planned, self._sorted(rewriting))], self.dead)

    def _sorted(self, rewriting: Rewriting) -> Iterator[pl.DataFrame]:
        sample = self._sample()
        ranges = self.clustering.ranges(sample)
        for low, high in self._slices(ranges, sample):
            found = [_between(f, ranges, low, high) for f in rewriting.rows(self.planned)]
            rows = pl.concat(found)
            number = pl.Series(_NUMBER, ranges.numbers(rows))
            order = self.clustering.columns
            by = order if self.clustering.strategy == "order" else (_NUMBER, *order)
            yield rows.with_columns(number).sort(by, nulls_last=False).drop(_NUMBER)

    def _sample(self) -> pl.DataFrame:
        """Rows of all files, evenly spread, with the columns to sort by."""
        total = sum(file.meta.row_count for file in self.planned)
        stored = StoredVersions(self.view, self.bucket[0], self.clustering.columns)
        step = max(1, total // _SAMPLE_ROWS)
        parts = stored.of_lone_files(self.planned, _SAMPLE_ROWS * step)
        return pl.concat([part.gather_every(step) for part in parts])

    def _slices(self, ranges: Ranges, sample: pl.DataFrame) -> Iterator[tuple[int, int]]:
        """Spans of numbers, the end excluded, whose rows fit in memory as far as can be."""
        rows = sum(file.meta.row_count for file in self.planned)
        fitting = max(1, rows_in(self.memory_bytes, self.planned, self.view.schema.fields))
        numbers = np.sort(ranges.numbers(sample))
        count = min(-(-rows // fitting), max(1, len(numbers)))
        inner = numbers[np.linspace(0, len(numbers), count + 1)[1:-1].astype(np.int64)]
        ends = [0, *np.unique(inner[inner > 0]).tolist(), _NUMBERS_END]
        return itertools.pairwise(ends)


_NUMBER = "number of the row"
_NUMBERS_END = 1 << 64


def _between(rows: pl.DataFrame, ranges: Ranges, low: int, high: int) -> pl.DataFrame:
    if (low, high) == (0, _NUMBERS_END):
        return rows
    numbers = ranges.numbers(rows)
    return rows.filter(pl.Series((numbers >= low) & (numbers <= high - 1)))


@dataclass(frozen=True)
class Rewriting:
    """Files of one bucket written again, as others; whatever `source` says they come of."""

    view: TableView
    bucket: BucketId
    memory_bytes: int
    source: FileSource = FileSource.COMPACT

    def rows(self, files: Iterable[PlannedFile]) -> Iterator[pl.DataFrame]:
        """The rows of some files without the dead ones, in parts that fit in memory."""
        taken = list(files)
        stored = StoredVersions(self.view, self.bucket[0], self.view.schema.names)
        rows_max = max(1, rows_in(self.memory_bytes, taken, self.view.schema.fields))
        return stored.of_lone_files(taken, rows_max)

    def done(
        self, parts: Iterable[tuple[Sequence[PlannedFile], Iterator[pl.DataFrame]]], dead: DeadRows
    ) -> Compacted:
        """What replaces files, part by part: `parts` has each one's files and its new rows."""
        new = NewFiles(self.view)
        entries: list[ManifestEntry] = []
        try:
            for files, frames in parts:
                old = [file.entry for file in files]
                entries += [replace(entry, kind=FileKind.DELETE) for entry in old]
                made = self._written(files, frames, new)
                entries += [added_file(self.bucket, old[0].total_buckets, meta) for meta in made]
        except BaseException:
            self.view.store.discard(new.given)
            raise
        gone = {entry.file.file_name for entry in entries if entry.kind is FileKind.DELETE}
        # Rows that die meanwhile would come back: that there were no vectors is to be told too.
        marks = (
            {self.bucket: dead.about(gone).without(gone)}
            if dead.stored or self.view.options.deletion_vectors_enabled
            else {}
        )
        return Compacted(self.bucket, Written(tuple(entries), indexes=by_index_key(marks)))

    def _written(
        self, files: Sequence[PlannedFile], frames: Iterator[pl.DataFrame], new: NewFiles
    ) -> Iterator[DataFileMeta]:
        prefix, file_format = self.view.options.data_file_prefix, self.view.options.file_format
        names = new.of(paths.FileNames(), prefix, file_format)(self.bucket)
        directory, writer = self.view.bucket_directory(*self.bucket), run_writer(self.view)
        first = min(file.meta.min_sequence_number for file in files)
        for frame in _rolled(frames, _rows_of_a_file(files, writer.target_file_size_bytes)):
            rows = frame.with_columns(
                pl.Series(SEQUENCE_NUMBER, np.arange(first, first + frame.height)),
                pl.lit(int(RowKind.INSERT), pl.Int8).alias(VALUE_KIND),
            )
            first += frame.height
            table, path = to_arrow(rows, stored_schema(self.view)), f"{directory}/{next(names)}"
            yield writer.write_file(table, path, source=self.source)
            rows_done(table.num_rows)


def _rows_of_a_file(files: Sequence[PlannedFile], target_bytes: int) -> int:
    """How many rows a new file has, so that it comes near the target: rows take what they took."""
    rows = sum(file.meta.row_count for file in files)
    count = max(1, round(sum(file.meta.file_size for file in files) / target_bytes))
    return max(1, -(-rows // count))


def _rolled(frames: Iterator[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The rows in frames of so many, the last one excepted."""
    held = next(frames, None)
    for frame in frames:
        held = frame if held is None else pl.concat([held, frame])
        while held.height > rows:
            yield held.head(rows)
            held = held.slice(rows)
    while held is not None and held.height:
        yield held.head(rows)
        held = held.slice(rows)
