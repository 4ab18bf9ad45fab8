"""Compactions of append tables: small files become large, and sorted rows let readers skip files.

No versions are merged, so any files of a bucket can be combined. Rows that a deletion vector marks
as dead are left out of the new files, and the vectors of the old files are removed.

'order' sorts by one column after the other. 'zorder' and 'hilbert' treat all columns equally and
sort along a curve. The distribution of values is learned from a sample: each column is cut into
ranges with about the same number of rows, and the curve goes through these ranges.

Morton's Z-order interleaves the bits of the dimensions. Hilbert's curve never jumps: consecutive
points on it are neighbors. Its numbers are computed as in J. Skilling, "Programming the Hilbert
curve" (AIP Conference Proceedings 707, 2004).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RowKind
from keytide.compaction.rewrite import CompactedBucket
from keytide.errors import InvalidError, NotFoundError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import SEQUENCE_NUMBER, VALUE_KIND
from keytide.format.manifest_entry import FileKind, FileSource, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.read.merged_versions import rows_in
from keytide.read.plan import plan_files
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    by_index_key,
    load_dead_rows,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableState, TableView
from keytide.tasks import rows_done
from keytide.types import AtomicType
from keytide.write.bucket_writer import NewFiles, added_file, run_writer, stored_schema
from keytide.write.partition_spec import every_partition
from keytide.write.task import TaskResult

# -- space-filling curves --------------------------------------------------------------------------


Places = npt.NDArray[np.uint64]

BITS_MAX = 63
"""The maximum number of bits of a number, for all dimensions together."""


def z_order(dimensions: Sequence[Places], bits: int) -> Places:
    """The number of each point along the Z-order curve. Coordinates are below 2 ** bits."""
    number = np.zeros_like(dimensions[0])
    for bit in reversed(range(bits)):
        for dimension in dimensions:
            number = (number << np.uint64(1)) | ((dimension >> np.uint64(bit)) & np.uint64(1))
    return number


def hilbert(dimensions: Sequence[Places], bits: int) -> Places:
    """The number of each point along Hilbert's curve. Coordinates are below 2 ** bits."""
    axes = [dimension.copy() for dimension in dimensions]
    # Undo the rotations of the curve, from the coarsest cube to the finest.
    first = axes[0]
    for bit in reversed(range(1, bits)):
        below = np.uint64((1 << bit) - 1)
        for axis in axes:
            has_bit = _has(axis, bit)
            exchanged = np.where(has_bit, np.uint64(0), (first ^ axis) & below)
            first ^= np.where(has_bit, below, exchanged)
            axis ^= exchanged
    for one, other in itertools.pairwise(axes):
        other ^= one
    flips = np.zeros_like(axes[0])
    for bit in reversed(range(1, bits)):
        flips ^= np.where(_has(axes[-1], bit), np.uint64((1 << bit) - 1), np.uint64(0))
    return z_order([axis ^ flips for axis in axes], bits)


def _has(axis: Places, bit: int) -> npt.NDArray[np.bool_]:
    has_bit: npt.NDArray[np.bool_] = (axis >> np.uint64(bit)) & np.uint64(1) == 1
    return has_bit


# -- sort orders -----------------------------------------------------------------------------------


_CURVES: dict[str, Callable[[Sequence[npt.NDArray[np.uint64]], int], npt.NDArray[np.uint64]]] = {
    "zorder": z_order,
    "hilbert": hilbert,
}
# This many bits distinguish a thousand ranges of a column. A file contains a few of them.
_BITS_MAX = 10


@dataclass(frozen=True)
class Clustering:
    """A strategy and its columns."""

    strategy: str
    columns: tuple[str, ...]

    @classmethod
    def parse(
        cls, strategy: str, columns: Sequence[str], schema: TableSchema, table: str
    ) -> Clustering:
        """Parse a clustering.

        Raises `InvalidError` for an unknown strategy, for no columns, too many or duplicate
        columns, and for a column whose values have no order. Raises `NotFoundError` for a column
        that the table lacks.
        """
        known = ("order", *_CURVES)
        if strategy not in known:
            raise InvalidError(
                f"table {table}: order_strategy is {strategy!r}; expected one of {', '.join(known)}"
            )
        if not 0 < len(columns) <= BITS_MAX or len(set(columns)) < len(columns):
            raise InvalidError(f"table {table}: order_by is {list(columns)}; name each column once")
        for name in columns:
            if name not in schema.by_name:
                raise NotFoundError(
                    f"table {table}: order_by names the column {name!r}, which does not exist; "
                    f"columns: {', '.join(schema.names)}"
                )
            kind = schema.field(name).type
            if not isinstance(kind, AtomicType) or kind.root == "VARIANT":
                raise InvalidError(
                    f"table {table}: order_by names the column {name!r} of type {kind.sql()}, "
                    "which cannot be sorted; use a column of a simple type"
                )
        return cls(strategy, tuple(columns))

    def ranges(self, sample: pl.DataFrame) -> Ranges:
        """Ranges of the columns, learned from a sample of rows."""
        bits = max(1, min(_BITS_MAX, BITS_MAX // len(self.columns)))
        return Ranges(self, bits, tuple(_cuts(sample[name], 1 << bits) for name in self.columns))


@dataclass(frozen=True)
class Ranges:
    """Where the columns of a clustering are cut."""

    clustering: Clustering
    bits: int
    cuts: tuple[pl.Series, ...]

    def numbers(self, rows: pl.DataFrame) -> npt.NDArray[np.uint64]:
        """A number for each row, by which rows are sorted.

        Rows with equal numbers are sorted by the columns.
        """
        ids = [
            np.asarray(cuts.search_sorted(rows[name], side="right")).astype(np.uint64)
            for name, cuts in zip(self.clustering.columns, self.cuts, strict=True)
        ]
        curve = _CURVES.get(self.clustering.strategy)
        return ids[0] if curve is None else curve(ids, self.bits)


def _cuts(values: pl.Series, ranges: int) -> pl.Series:
    """At most `ranges - 1` values that cut a column into ranges with about the same number of
    rows.
    """
    known: pl.Series = values.drop_nulls().sort()
    if not len(known):
        return known
    places = np.linspace(0, len(known), ranges + 1)[1:-1].astype(np.int64)
    cuts: pl.Series = known.gather(np.minimum(places, len(known) - 1)).unique().sort()
    return cuts


# -- compaction ------------------------------------------------------------------------------------


# A file with at least this percentage of the target size is not rewritten for its size alone.
_LARGE_PERCENT = 70
# This many small files are worth a compaction that was not asked to include all.
_FEW = 5
# A clustering learns the distribution of a bucket's values from this many rows.
_SAMPLE_ROWS = 100_000


# -- selection of files ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Picks:
    """File names: files that are `included` however large they are, and files that are
    `excluded`.
    """

    included: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()


_NO_PICKS = Picks()


def pack_tasks(
    state: TableState, fits: Callable[[bytes], bool] = every_partition, *, full: bool,
    memory_bytes: int, picks: Picks = _NO_PICKS,
) -> list[PackTask]:  # fmt: skip
    """Tasks that combine small files, in the partitions that match `fits`.

    By default, only buckets with several small files. With `full`, buckets with two are enough, and
    files of any size with dead rows are included. Raises `DataError` for a deletion vector that
    cannot be read.
    """
    tasks, target = [], state.view.options.target_file_size_bytes
    for bucket, files in _buckets(state, fits):
        small = {
            file.meta.file_name for file in files
            if (file.meta.file_size * 100 < target * _LARGE_PERCENT
                or (full and file.dead_rows is not None))
            and file.meta.file_name not in picks.excluded
        }  # fmt: skip
        taken = picks.included if len(small) < (1 if full else _FEW) else picks.included | small
        # Groups of adjacent files, which become one file each.
        groups: list[list[PlannedFile]] = [[]]
        for file in files:
            if file.meta.file_name not in taken:
                continue
            size = sum(f.meta.file_size for f in (*groups[-1], file))
            if groups[-1] and size > target:
                groups.append([])
            groups[-1].append(file)
        worth = [
            tuple(group)
            for group in groups
            if len(group) > 1 or any(file.dead_rows is not None for file in group)
        ]
        if worth:
            dead = _dead_rows(state, bucket)
            tasks.append(PackTask(state.view, bucket, tuple(worth), dead, memory_bytes))
    return tasks


def cluster_tasks(
    state: TableState, clustering: Clustering, fits: Callable[[bytes], bool], *, memory_bytes: int
) -> list[ClusterTask]:
    """Tasks that sort all rows of each bucket. Raises like `pack_tasks`."""
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


def _dead_rows(state: TableState, bucket: BucketId) -> DeadRows:
    files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    return load_dead_rows(state.view.store, files, state.view.name)


# -- tasks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackTask:
    """Writes each group of files of a bucket as one file. Picklable."""

    view: TableView
    bucket: BucketId
    groups: tuple[tuple[PlannedFile, ...], ...]
    dead: DeadRows
    memory_bytes: int

    @property
    def files(self) -> list[ManifestEntry]:
        """The files that are compacted."""
        return [file.entry for group in self.groups for file in group]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> CompactedBucket:
        """Write the files. Nothing is left behind after an error.

        Raises `DataError` if the store fails.
        """
        rewriting = BucketRewrite(self.view, self.bucket, self.memory_bytes)
        parts = ((group, rewriting.rows(group)) for group in self.groups)
        return rewriting.write(parts, self.dead)


@dataclass(frozen=True)
class ClusterTask:
    """Writes all rows of a bucket in the order of a clustering. Picklable.

    The rows are sorted in slices that fit in `memory_bytes`. For each slice, all files are read.
    """

    view: TableView
    bucket: BucketId
    planned: tuple[PlannedFile, ...]
    dead: DeadRows
    memory_bytes: int
    clustering: Clustering

    @property
    def files(self) -> list[ManifestEntry]:
        """The files that are compacted."""
        return [file.entry for file in self.planned]

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> CompactedBucket:
        """Write the rows. Nothing is left behind after an error. Raises like `PackTask`."""
        rewriting = BucketRewrite(self.view, self.bucket, self.memory_bytes)
        return rewriting.write([(self.planned, self._sorted(rewriting))], self.dead)

    def _sorted(self, rewriting: BucketRewrite) -> Iterator[pl.DataFrame]:
        # Evenly distributed rows of all files, with the columns to sort by.
        total = sum(file.meta.row_count for file in self.planned)
        stored = StoredVersions(self.view, self.bucket[0], self.clustering.columns)
        step = max(1, total // _SAMPLE_ROWS)
        parts = stored.of_lone_files(self.planned, _SAMPLE_ROWS * step)
        sample = pl.concat([part.gather_every(step) for part in parts])
        ranges = self.clustering.ranges(sample)

        # Ranges of numbers, end excluded, whose rows fit in memory as far as possible.
        fitting = max(1, rows_in(self.memory_bytes, self.planned, self.view.schema.fields))
        numbers = np.sort(ranges.numbers(sample))
        count = min(-(-total // fitting), max(1, len(numbers)))
        inner = numbers[np.linspace(0, len(numbers), count + 1)[1:-1].astype(np.int64)]
        ends = [0, *np.unique(inner[inner > 0]).tolist(), _NUMBERS_END]
        for low, high in itertools.pairwise(ends):
            found = []
            for frame in rewriting.rows(self.planned):
                if (low, high) == (0, _NUMBERS_END):
                    found.append(frame)
                else:
                    own = ranges.numbers(frame)
                    found.append(frame.filter(pl.Series((own >= low) & (own <= high - 1))))
            rows = pl.concat(found)
            number = pl.Series(_NUMBER, ranges.numbers(rows))
            order = self.clustering.columns
            by = order if self.clustering.strategy == "order" else (_NUMBER, *order)
            yield rows.with_columns(number).sort(by, nulls_last=False).drop(_NUMBER)


_NUMBER = "number of the row"
_NUMBERS_END = 1 << 64


@dataclass(frozen=True)
class BucketRewrite:
    """Rewrites files of one bucket as others. `source` is recorded as their origin."""

    view: TableView
    bucket: BucketId
    memory_bytes: int
    source: FileSource = FileSource.COMPACT

    def rows(self, files: Iterable[PlannedFile]) -> Iterator[pl.DataFrame]:
        """The rows of files without the dead ones, in parts that fit in memory."""
        taken = list(files)
        stored = StoredVersions(self.view, self.bucket[0], self.view.schema.names)
        rows_max = max(1, rows_in(self.memory_bytes, taken, self.view.schema.fields))
        return stored.of_lone_files(taken, rows_max)

    def write(
        self, parts: Iterable[tuple[Sequence[PlannedFile], Iterator[pl.DataFrame]]], dead: DeadRows
    ) -> CompactedBucket:
        """Write the new files, part by part. `parts` has the old files and the new rows of each."""
        view, new, entries = self.view, NewFiles(self.view), list[ManifestEntry]()
        options, schema = view.options, stored_schema(view)
        directory, writer = view.bucket_directory(*self.bucket), run_writer(view)
        try:
            for files, frames in parts:
                names = new.of(view.new_names(), options.data_file_prefix, options.file_format)
                names_here = names(self.bucket)
                entries += [replace(file.entry, kind=FileKind.DELETE) for file in files]
                # The number of rows for a file near the target size, based on their present size.
                stored_bytes = sum(file.meta.file_size for file in files)
                count = max(1, round(stored_bytes / writer.target_file_size_bytes))
                rows_each = max(1, -(-sum(file.meta.row_count for file in files) // count))
                first = min(file.meta.min_sequence_number for file in files)
                for frame in _rolled(frames, rows_each):
                    rows = frame.with_columns(
                        pl.Series(SEQUENCE_NUMBER, np.arange(first, first + frame.height)),
                        pl.lit(int(RowKind.INSERT), pl.Int8).alias(VALUE_KIND),
                    )
                    first += frame.height
                    table, path = to_arrow(rows, schema), f"{directory}/{next(names_here)}"
                    meta = writer.write_file(table, path, source=self.source)
                    rows_done(table.num_rows)
                    total = files[0].entry.total_buckets
                    entries.append(added_file(self.bucket, total, meta))
        except BaseException:
            view.store.discard(new.names)
            raise
        gone = {entry.file.file_name for entry in entries if entry.kind is FileKind.DELETE}
        # Rows that die in the meantime would come back, so the absence of vectors must be recorded
        # too.
        marks = (
            {self.bucket: dead.about(gone).without(gone)}
            if dead.stored or options.deletion_vectors_enabled
            else {}
        )
        return CompactedBucket(self.bucket, TaskResult(tuple(entries), indexes=by_index_key(marks)))


def _rolled(frames: Iterator[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The rows in frames of this many rows. The last frame may be smaller."""
    held = next(frames, None)
    for frame in frames:
        held = frame if held is None else pl.concat([held, frame])
        while held.height > rows:
            yield held.head(rows)
            held = held.slice(rows)
    while held is not None and held.height:
        yield held.head(rows)
        held = held.slice(rows)
