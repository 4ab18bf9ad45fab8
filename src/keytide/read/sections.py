"""Sections: files of a bucket with overlapping key ranges, as the sorted runs of a merge.

The statistics of data files are frames with one row for each file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import scratch
from keytide.format.arrow import polars_schema
from keytide.format.binary_row import decode_rows
from keytide.format.index_files import VectorPlace
from keytide.format.manifest_entry import DataFileMeta, Entries, ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.stats import EMPTY_STATS
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.options import TableOptions
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.types import AtomicType, Field
from keytide.types.logical import holds_all

# -- statistics of data files ----------------------------------------------------------------------


_PLACE = scratch("place")


def decoded(rows: Sequence[bytes], fields: Sequence[Field]) -> pl.DataFrame:
    """Binary rows as a frame with the columns `fields`."""
    arrays = decode_rows(rows, [f.type for f in fields])
    frame = pl.from_arrow(pa.table(arrays, names=[f.name for f in fields]))
    assert isinstance(frame, pl.DataFrame)
    return frame


def key_bounds(files: Entries, fields: Sequence[Field]) -> pl.DataFrame:
    """The bounds of each key column: the first from the exact ends of the file, the rest from
    statistics.
    """
    first = fields[0]
    stored = [*files.column("_MIN_KEY").to_list(), *files.column("_MAX_KEY").to_list()]
    ends = decoded(stored, fields)[first.name]
    low, high = ends[: len(files)], ends[len(files) :]
    if low.dtype.is_float():  # the ends of a file that sorts NaN first say nothing
        says_nothing = (low > high).fill_null(value=False)
        low, high = low.set(says_nothing, None), high.set(says_nothing, None)
    columns = {f"{first.name}.min": low, f"{first.name}.max": high}
    if len(fields) > 1:
        least = files.column("_KEY_STATS._MIN_VALUES").to_list()
        # Some writers store no key statistics, as a row without fields.
        if all(arity(row) == len(fields) for row in least):
            stats_lows = decoded(least, fields)
            stats_highs = decoded(files.column("_KEY_STATS._MAX_VALUES").to_list(), fields)
            for f in fields[1:]:
                columns[f"{f.name}.min"] = stats_lows[f.name]
                columns[f"{f.name}.max"] = stats_highs[f.name]
    return with_unknowns(pl.DataFrame(columns), fields, files.column("_ROW_COUNT").to_list())


def value_bounds(
    files: Sequence[ManifestEntry],
    fields: Sequence[Field],
    schemas: Mapping[int, TableSchema],
) -> pl.DataFrame:
    """The statistics of columns, one row for each file in the given order.

    `<column>.min`, `.max` and `.nulls` are NULL if unknown. `rows` is the number of rows. Columns
    are matched by field id. If a type was changed, bounds are kept unless the other type may order
    values differently.
    """
    # Files with the same schema and columns are decoded together.
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    for index, entry in enumerate(files):
        groups.setdefault((entry.file.schema_id, entry.file.value_stats_cols), []).append(index)
    parts = []
    for (schema_id, columns), indexes in groups.items():
        group = [files[i] for i in indexes]

        file_schema = schemas[schema_id]
        names = file_schema.names if columns is None else columns
        stored = [file_schema.by_name[name] for name in names if name in file_schema.by_name]
        places = {old.id: place for place, old in enumerate(stored)}
        rows = [entry.file.row_count for entry in group]
        # A row with another number of fields cannot be matched with columns, so nothing is known.
        usable = all(arity(e.file.value_stats.min_values) == len(stored) for e in group)
        found: dict[str, pl.Series] = {}
        types = polars_schema(fields)
        if usable and stored:
            lows = decoded([e.file.value_stats.min_values for e in group], stored)
            highs = decoded([e.file.value_stats.max_values for e in group], stored)
            for new in fields:
                position = places.get(new.id)
                if position is None:
                    continue
                before, now = stored[position].type, new.type
                is_wider = (
                    isinstance(before, AtomicType)
                    and isinstance(now, AtomicType)
                    and holds_all(before, now)
                )
                # The other type may order values differently.
                if not is_wider and before.with_nullable(True) != now.with_nullable(True):
                    continue
                old, target = stored[position].name, types[new.name]
                found[f"{new.name}.min"] = lows[old].cast(target)
                found[f"{new.name}.max"] = highs[old].cast(target)
                counts = [_null_count(entry, position) for entry in group]
                found[f"{new.name}.nulls"] = pl.Series(counts, dtype=pl.Int64)
        bounds = with_unknowns(pl.DataFrame(found), fields, rows)
        parts.append(bounds.with_columns(pl.Series(_PLACE, indexes, pl.Int64)))
    return pl.concat(parts, how="diagonal_relaxed").sort(_PLACE)


def columns_without_nulls(
    files: Sequence[ManifestEntry],
    fields: Sequence[Field],
    schemas: Mapping[int, TableSchema],
) -> frozenset[str]:
    """The columns that have no NULL in any of the files, according to statistics.

    Bounds must be known too: some writers count no NULLs if they did not look at the values.
    """
    if not files:
        return frozenset()
    known = value_bounds(files, fields, schemas)
    return frozenset(
        f.name
        for f in fields
        if (known[f"{f.name}.nulls"] == 0).all(ignore_nulls=False)
        and not known[f"{f.name}.min"].has_nulls()
    )


def _null_count(entry: ManifestEntry, position: int) -> int | None:
    counts = entry.file.value_stats.null_counts
    return counts[position] if counts is not None and position < len(counts) else None


def with_unknowns(
    bounds: pl.DataFrame, fields: Sequence[Field], rows: Sequence[int]
) -> pl.DataFrame:
    """Bounds as `value_bounds` returns them, completed with NULL where nothing is known."""
    types = polars_schema(fields)
    missing = [
        pl.lit(None, dtype=pl.Int64 if part == "nulls" else types[f.name]).alias(f"{f.name}.{part}")
        for f in fields
        for part in ("min", "max", "nulls")
        if f"{f.name}.{part}" not in bounds.columns
    ]
    counted = pl.DataFrame({"rows": pl.Series(rows, dtype=pl.Int64)})
    return pl.concat([counted, bounds], how="horizontal").with_columns(missing)


def arity(row: bytes) -> int:
    """The number of columns in a binary row."""
    return int.from_bytes(row[:4], "big")


# -- sections --------------------------------------------------------------------------------------


_SECTIONS_PLACE, _RANK = map(scratch, ("place", "rank"))

# For this few keys, sorting in Python is faster than calling Polars.
_FEW_KEYS = 100
_PYTHON_ORDER = {pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.String, pl.Binary}
"""Types whose values compare like their Python values."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file to read, and where its dead rows are recorded, if it has any.

    `has_kinds` says whether the file stores a kind for each row. Otherwise all rows are +I. With
    `keeps_retracts`, dead rows of kind -U and -D are read too: readers must not see these deletes,
    but they take part in merges. If `places` are given (ascending positions), no other rows of the
    file are needed.
    """

    entry: ManifestEntry
    dead_rows: VectorPlace | None = None
    has_kinds: bool = True
    keeps_retracts: bool = False
    places: npt.NDArray[np.int64] | None = field(default=None, compare=False)

    @property
    def meta(self) -> DataFileMeta:
        """The metadata of the file in the manifest."""
        return self.entry.file

    @property
    def may_retract(self) -> bool:
        """Whether its rows may include rows of kind -U or -D."""
        # On level 0, some writers do not record deletes although there are some.
        return self.has_kinds and (self.meta.level == 0 or self.meta.delete_row_count != 0)

    def without_statistics(self) -> PlannedFile:
        """The file without statistics."""
        meta = replace(self.meta, key_stats=EMPTY_STATS, value_stats=EMPTY_STATS)
        return replace(self, entry=replace(self.entry, file=meta))

    def as_stored(self) -> PlannedFile:
        """The file with all rows that are stored in it."""
        return replace(self, dead_rows=None, places=None)


Run = tuple[PlannedFile, ...]
"""Files that follow each other in key order."""


@dataclass(frozen=True)
class Section:
    """Files of one bucket with overlapping key ranges, as sorted runs, oldest first.

    `arrival_decides`: every version in a later run is newer than those in earlier runs, so the
    stored sequence numbers are not needed to order them.
    """

    runs: tuple[Run, ...]
    arrival_decides: bool = True
    containing: tuple[int, ...] = ()
    """The positions of the runs above level 0, lowest level first, in a table that compacts by
    lookup. The first of them that has a key contains everything that the others have for it.
    """

    @property
    def needs_merge(self) -> bool:
        """Whether a key may occur in more than one of the files."""
        return len(self.runs) > 1

    @property
    def upper(self) -> tuple[int, ...]:
        """The positions of the runs above level 0."""
        return tuple(place for place, run in enumerate(self.runs) if run[0].meta.level > 0)

    @property
    def has_dead_retracts(self) -> bool:
        """Whether deletes may be read that a deletion vector marks as dead."""
        return any(file.keeps_retracts for file in self.files)

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """All files of the section."""
        return tuple(itertools.chain.from_iterable(self.runs))

    def without_statistics(self) -> Section:
        """The section without the statistics of its files."""
        runs = tuple(tuple(file.without_statistics() for file in run) for run in self.runs)
        return replace(self, runs=runs)


@dataclass(frozen=True)
class BucketPlan:
    """The sections of one bucket. They have no key in common."""

    partition: bytes
    bucket: int
    sections: tuple[Section, ...]

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """All files of the bucket."""
        return tuple(itertools.chain.from_iterable(section.files for section in self.sections))


def sections_of(
    buckets: Mapping[BucketId, Sequence[PlannedFile]], view: TableView
) -> list[BucketPlan]:
    """The files of each bucket, given in commit order, grouped into sections in key order."""
    crowded = [file for files in buckets.values() if len(files) > 1 for file in files]
    # The ends are decoded and ranked for all buckets together. Ranks of different buckets are never
    # compared, but one sort is much cheaper than thousands.
    ranges = iter(_overlaps(crowded, view.schema))
    plans = []
    for bucket, files in buckets.items():
        if len(files) > 1:
            placed = list(itertools.islice(ranges, len(files)))

            sections: list[list[_Placed]] = []
            reach = -1
            for file in sorted(placed, key=attrgetter("low", "high")):
                if file.low > reach:
                    sections.append([])
                sections[-1].append(file)
                reach = max(reach, file.high)
            plans.append(
                BucketPlan(*bucket, tuple(_section(files, view.options) for files in sections))
            )
        else:
            plans.append(BucketPlan(*bucket, tuple(Section(((file,),)) for file in files)))
    return plans


def overlapping(
    files: Sequence[PlannedFile], others: Sequence[PlannedFile], view: TableView
) -> list[PlannedFile]:
    """Those `others` that may have keys in the key range of `files`."""
    placed = _overlaps([*files, *others], view.schema)
    own = placed[: len(files)]
    low, high = min(file.low for file in own), max(file.high for file in own)
    return [each.planned for each in placed[len(files) :] if each.low <= high and each.high >= low]


def is_out_of_order(entry: ManifestEntry, key: Sequence[Field]) -> bool:
    """Whether a file's first key is after its last key: its writer sorts NaN first, not last.

    Its rows must be sorted before they are merged, and its ends say nothing about its other rows.
    """
    if not any(f.type.root in ("FLOAT", "DOUBLE") for f in key):
        return False
    low, high = key_ranks(decoded([entry.file.min_key, entry.file.max_key], key))
    return low > high


class _Placed(NamedTuple):
    """A file, its position in commit order, and its key range as ranks."""

    planned: PlannedFile
    order: int
    low: int
    high: int


def _overlaps(files: Sequence[PlannedFile], schema: TableSchema) -> list[_Placed]:
    if not files:
        return []
    fields = schema.trimmed_primary_key_fields()
    ends = decoded([*(f.meta.min_key for f in files), *(f.meta.max_key for f in files)], fields)
    ranked = key_ranks(ends)
    count = len(files)
    placed = list(map(_Placed, files, range(count), ranked[:count], ranked[count:]))
    # The ends of a file with another sort order, see `is_out_of_order`, do not bound it. So it is
    # assumed to overlap with everything.
    unbounded = [file for file in placed if file.low > file.high]
    if unbounded:
        lowest, highest = min(ranked), max(ranked)
        for file in unbounded:
            placed[file.order] = file._replace(low=lowest, high=highest)
    return placed


def key_ranks(keys: pl.DataFrame) -> list[int]:
    """A number for each key that grows with the key."""
    if (
        keys.height <= _FEW_KEYS
        and set(keys.dtypes) <= _PYTHON_ORDER
        and not any(column.null_count() for column in keys.iter_columns())
    ):
        rows = keys.rows()
        rank_of = {key: rank for rank, key in enumerate(sorted(set(rows)))}
        return [rank_of[key] for key in rows]
    ranks: list[int] = (
        keys.with_row_index(_SECTIONS_PLACE)
        .sort(keys.columns, nulls_last=False)
        .select(
            _SECTIONS_PLACE,
            pl.any_horizontal(pl.col(n).ne_missing(pl.col(n).shift(1)) for n in keys.columns)
            .cum_sum()
            .alias(_RANK),
        )
        .sort(_SECTIONS_PLACE)[_RANK]
        .to_list()
    )
    return ranks


def _section(files: list[_Placed], options: TableOptions) -> Section:
    if len(files) == 1:
        return Section(((files[0].planned,),), containing=_containing([files], options))
    groups: dict[tuple[int, ...], list[_Placed]] = {}
    for file in files:
        meta = file.planned.meta
        # A level above 0 is one run. On level 0, the files of one flush are.
        flush = (0, meta.min_sequence_number, meta.max_sequence_number)
        groups.setdefault((meta.level,) if meta.level > 0 else flush, []).append(file)
    runs = []
    for group in groups.values():
        # Each file is a separate run if ranges overlap after all.
        overlap = any(a.high >= b.low for a, b in itertools.pairwise(group))
        runs += [[file] for file in group] if overlap else [group]
    # Oldest first. For equal numbers, the higher level is older, because files only move to higher
    # levels. Within a level, the commit order decides.
    runs.sort(key=lambda run: (_min_sequence(run), -run[0].planned.meta.level, run[0].order))
    ascending = all(
        max(file.planned.meta.max_sequence_number for file in older) < _min_sequence(newer)
        for older, newer in itertools.pairwise(runs)
    )
    planned = tuple(tuple(file.planned for file in run) for run in runs)
    return Section(planned, ascending, _containing(runs, options))


def _containing(runs: list[list[_Placed]], options: TableOptions) -> tuple[int, ...]:
    """The positions of the runs above level 0, lowest level first, if they contain others."""
    if not compacts_by_lookup(options):
        return ()
    if options.deletion_vectors_enabled and engine_class(options).picks_a_version:
        # Superseded rows are marked, and a late delete may be below the version that it lost to.
        return ()
    levels = [run[0].planned.meta.level for run in runs]
    return tuple(sorted((i for i, level in enumerate(levels) if level), key=levels.__getitem__))


def _min_sequence(run: list[_Placed]) -> int:
    return min(file.planned.meta.min_sequence_number for file in run)
