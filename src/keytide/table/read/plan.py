"""What a scan reads: decided from metadata alone, as a value.

Files are pruned by partition, bucket, key range and statistics, in this order; the `Funnel` keeps
count. What is left of a bucket is cut into sections of overlapping key ranges. A section of one
file needs no merge. Only predicates on key columns may drop single files of a section that has
to be merged: dropping an overlapped file by another column would bring older versions back
(watermark rule R17).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.format.arrow import polars_schema
from keytide.format.bucket import bucket_ids
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.merge.engines import compacts_by_lookup, engine_class
from keytide.options import TableOptions
from keytide.scratch import scratch
from keytide.table.conditions.matching import may_match, row_filter
from keytide.table.conditions.predicate import (
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    equal_values,
)
from keytide.table.read.statistics import decoded, key_bounds, value_bounds
from keytide.types import AtomicType, Field

__all__ = [
    "BucketPlan",
    "Funnel",
    "FunnelStage",
    "ScanPlan",
    "Section",
    "plan_scan",
]

_POINTS_MAX = 1 << 20

_PLACE = scratch("place")


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
    """How pruning narrowed a scan down, stage by stage."""

    stages: tuple[FunnelStage, ...] = ()

    def after(self, stage: str, entries: Sequence[ManifestEntry]) -> Funnel:
        """The funnel with one more stage."""
        counted = FunnelStage(
            stage,
            len({e.partition for e in entries}),
            len({(e.partition, e.bucket) for e in entries}),
            len(entries),
            sum(e.file.row_count for e in entries),
            sum(e.file.file_size for e in entries),
        )
        return Funnel((*self.stages, counted))


@dataclass(frozen=True)
class Section:
    """Files of one bucket whose key ranges overlap, as sorted runs, oldest first.

    `arrival_decides`: every version in a later run is newer than those in the runs before it,
    so that stored sequence numbers need not be read to order them.
    """

    runs: tuple[tuple[ManifestEntry, ...], ...]
    arrival_decides: bool = True
    containing: tuple[int, ...] = ()
    """Positions of the runs above level 0, lowest level first, in a table that compacts by lookup:
    the first of them that has a key contains what the others hold for it."""

    @property
    def needs_merge(self) -> bool:
        """Whether a key may occur in more than one of the files."""
        return len(self.runs) > 1

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """All files of the section."""
        return tuple(itertools.chain.from_iterable(self.runs))


@dataclass(frozen=True)
class BucketPlan:
    """The sections of one bucket that a scan reads."""

    partition: bytes
    bucket: int
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class ScanPlan:
    """The buckets that a scan reads, and how it came to them."""

    buckets: tuple[BucketPlan, ...]
    funnel: Funnel = field(default_factory=Funnel)


def plan_scan(
    entries: Iterable[ManifestEntry],
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    options: TableOptions,
    predicate: Predicate | None = None,
) -> ScanPlan:
    """Plan a scan over live files. `schemas` holds the schema of every file's `_SCHEMA_ID`."""
    terms = conjuncts(predicate)
    files = [entry for entry in entries if entry.bucket >= 0]
    funnel = Funnel().after("all", files)
    files = _prune_partitions(files, schema, terms)
    funnel = funnel.after("partition", files)
    files = _prune_buckets(files, schema, options, terms)
    funnel = funnel.after("bucket", files)
    if options.deletion_vectors_enabled:
        # Readers see compacted files only, which together are unique by key.
        files = [entry for entry in files if entry.file.level > 0]
        funnel = funnel.after("compacted", files)
    files = _prune_key_ranges(files, schema, terms)
    funnel = funnel.after("key range", files)
    buckets = _sections(files, schema, options)
    buckets = _prune_statistics(buckets, schema, schemas, options, terms)
    kept = [entry for plan in buckets for section in plan.sections for entry in section.files]
    return ScanPlan(tuple(buckets), funnel.after("statistics", kept))


# -- pruning -----------------------------------------------------------------------------------


def _prune_partitions(
    files: list[ManifestEntry], schema: TableSchema, terms: Sequence[Predicate]
) -> list[ManifestEntry]:
    fields = schema.partition_fields()
    names = {f.name for f in fields}
    about = conjunction(t for t in terms if columns_of(t) and columns_of(t) <= names)
    if about is None or not files:
        return files
    partitions = list(dict.fromkeys(entry.partition for entry in files))
    values = decoded(partitions, fields).with_columns(pl.Series(_PLACE, partitions, pl.Binary))
    kept = set(values.filter(row_filter(about, fields))[_PLACE])
    return [entry for entry in files if entry.partition in kept]


def _prune_buckets(
    files: list[ManifestEntry],
    schema: TableSchema,
    options: TableOptions,
    terms: Sequence[Predicate],
) -> list[ManifestEntry]:
    fields = schema.select(options.bucket_key or schema.trimmed_primary_keys)
    pinned = [_spellings(equal_values(terms, f.name), f) for f in fields]
    if not fields or not files or any(values is None for values in pinned):
        return files
    columns = _combined([values for values in pinned if values is not None])
    if columns is None:
        return files
    wanted: dict[int, set[int]] = {}
    for total in {entry.total_buckets for entry in files if entry.total_buckets > 0}:
        ids = bucket_ids(columns, [f.type for f in fields], total, options.bucket_function)
        wanted[total] = set(np.unique(ids).tolist())
    return [
        e for e in files if e.total_buckets not in wanted or e.bucket in wanted[e.total_buckets]
    ]


def _spellings(values: Sequence[Any] | None, field: Field) -> pa.Array | None:
    """The bytes that equal values may have in a bucket key; None where they are too many to tell.

    Some writers keep -0.0, NaNs of all kinds, and blanks at the end of a CHAR.
    """
    if values is None:
        return None
    assert isinstance(field.type, AtomicType)
    if field.type.root in ("FLOAT", "DOUBLE"):
        if any(value != value for value in values):
            return None
        values = [*values, *(-0.0 for value in values if value == 0)]
    elif field.type.root == "CHAR":
        length = field.type.length or 0
        if len(values) * length > _POINTS_MAX:
            return None
        values = [
            value and value.rstrip(" ").ljust(size)
            for value in values
            for size in range(length if value is None else len(value.rstrip(" ")), length + 1)
        ]
    return _array(values, field)


def _array(values: Sequence[Any], field: Field) -> pa.Array:
    frame = pl.DataFrame({field.name: values}, schema=polars_schema([field]))
    array = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).column(0).combine_chunks()
    return array.cast(field.type.to_arrow())


def _combined(columns: Sequence[pa.Array]) -> list[pa.Array] | None:
    """Every combination of the columns' values; None for too many."""
    sizes = [len(column) for column in columns]
    if math.prod(sizes) > _POINTS_MAX:
        return None
    places = np.indices(sizes).reshape(len(sizes), -1)
    return [column.take(pa.array(at)) for column, at in zip(columns, places, strict=True)]


def _prune_key_ranges(
    files: list[ManifestEntry], schema: TableSchema, terms: Sequence[Predicate]
) -> list[ManifestEntry]:
    fields = schema.trimmed_primary_key_fields()
    names = {f.name for f in fields}
    about = conjunction(t for t in terms if columns_of(t) and columns_of(t) <= names)
    if about is None or not files:
        return files
    bounds = key_bounds(files, fields)
    kept = bounds.with_columns(may_match(about, fields).alias("kept"))["kept"]
    return [entry for entry, keep in zip(files, kept, strict=True) if keep]


def _prune_statistics(
    buckets: list[BucketPlan],
    schema: TableSchema,
    schemas: Mapping[int, TableSchema],
    options: TableOptions,
    terms: Sequence[Predicate],
) -> list[BucketPlan]:
    about = conjunction(t for t in terms if columns_of(t))
    if about is None or not buckets:
        return buckets
    files = [e for plan in buckets for section in plan.sections for e in section.files]
    fields = tuple(f for f in schema.fields if f.name in columns_of(about))
    bounds = value_bounds(files, fields, schemas)
    possible = bounds.with_columns(may_match(about, fields).alias("kept"))["kept"].to_list()
    kept_files = {id(entry) for entry, keep in zip(files, possible, strict=True) if keep}
    is_put_together = not engine_class(options).picks_a_version

    def survives(section: Section) -> bool:
        if section.needs_merge and is_put_together:
            return True  # a row may be put together from files that each do not match
        return any(id(entry) in kept_files for entry in section.files)

    pruned = [
        BucketPlan(p.partition, p.bucket, tuple(s for s in p.sections if survives(s)))
        for p in buckets
    ]
    return [plan for plan in pruned if plan.sections]


# -- sections ------------------------------------------------------------------------------------


def _sections(
    files: Sequence[ManifestEntry], schema: TableSchema, options: TableOptions
) -> list[BucketPlan]:
    by_bucket: dict[tuple[bytes, int], list[int]] = {}
    for index, entry in enumerate(files):
        by_bucket.setdefault((entry.partition, entry.bucket), []).append(index)
    if options.deletion_vectors_enabled or not schema.primary_keys:
        return [
            BucketPlan(*bucket, tuple(Section(((files[i],),)) for i in indexes))
            for bucket, indexes in by_bucket.items()
        ]
    crowded = {bucket for bucket, indexes in by_bucket.items() if len(indexes) > 1}
    ranges = _overlaps(
        [files[i] for bucket in by_bucket if bucket in crowded for i in by_bucket[bucket]], schema
    )
    plans, rest = [], iter(ranges)
    for bucket, indexes in by_bucket.items():
        if bucket not in crowded:
            plans.append(BucketPlan(*bucket, (Section(((files[indexes[0]],),)),)))
            continue
        placed = list(itertools.islice(rest, len(indexes)))
        plans.append(BucketPlan(*bucket, _bucket_sections(placed, options)))
    return plans


@dataclass(frozen=True)
class _Placed:
    """A file, its place in commit order, and its key range as ranks."""

    entry: ManifestEntry
    order: int
    low: int
    high: int


def _overlaps(files: Sequence[ManifestEntry], schema: TableSchema) -> list[_Placed]:
    if not files:
        return []
    fields = schema.trimmed_primary_key_fields()
    ends = decoded([*(e.file.min_key for e in files), *(e.file.max_key for e in files)], fields)
    ranked = _ranks(ends)
    count = len(files)
    placed = []
    for order, entry in enumerate(files):
        low, high = ranked[order], ranked[count + order]
        if low > high:  # sorted by another order, see `is_out_of_order`
            low, high = min(ranked), max(ranked)
        placed.append(_Placed(entry, order, low, high))
    return placed


def is_out_of_order(entry: ManifestEntry, key: Sequence[Field]) -> bool:
    """Whether a file begins above its end: its writer sorts NaN first, not last.

    Its rows have to be sorted before they are merged, and its ends say nothing about the others.
    """
    if not any(getattr(f.type, "root", "") in ("FLOAT", "DOUBLE") for f in key):
        return False
    low, high = _ranks(decoded([entry.file.min_key, entry.file.max_key], key))
    return low > high


def _ranks(keys: pl.DataFrame) -> list[int]:
    """A number per key that grows with it."""
    ranks: list[int] = (
        keys.with_row_index(_PLACE)
        .sort(keys.columns, nulls_last=False)
        .select(
            _PLACE,
            pl.any_horizontal(pl.col(n).ne_missing(pl.col(n).shift(1)) for n in keys.columns)
            .cum_sum()
            .alias("rank"),
        )
        .sort(_PLACE)["rank"]
        .to_list()
    )
    return ranks


def _bucket_sections(placed: list[_Placed], options: TableOptions) -> tuple[Section, ...]:
    sections: list[list[_Placed]] = []
    reach = -1
    for file in sorted(placed, key=lambda f: (f.low, f.high)):
        if file.low > reach:
            sections.append([])
        sections[-1].append(file)
        reach = max(reach, file.high)
    return tuple(_section(files, options) for files in sections)


def _section(files: list[_Placed], options: TableOptions) -> Section:
    groups: dict[tuple[int, ...], list[_Placed]] = {}
    for file in files:
        groups.setdefault(_run_key(file), []).append(file)
    runs = [run for group in groups.values() for run in _disjoint(group)]
    runs.sort(key=lambda run: (_min_sequence(run), -run[0].entry.file.level, run[0].order))
    ascending = all(
        _max_sequence(older) < _min_sequence(newer) for older, newer in itertools.pairwise(runs)
    )
    containing = _upper_runs(runs) if compacts_by_lookup(options) else ()
    return Section(tuple(tuple(f.entry for f in run) for run in runs), ascending, containing)


def _upper_runs(runs: list[list[_Placed]]) -> tuple[int, ...]:
    """The positions of the runs above level 0, lowest level first."""
    levels = [run[0].entry.file.level for run in runs]
    return tuple(sorted((i for i, level in enumerate(levels) if level), key=levels.__getitem__))


def _run_key(file: _Placed) -> tuple[int, ...]:
    # A level above 0 is one run; at level 0 the files of one flush are.
    meta = file.entry.file
    if meta.level > 0:
        return (meta.level,)
    return (0, meta.min_sequence_number, meta.max_sequence_number)


def _disjoint(group: list[_Placed]) -> list[list[_Placed]]:
    """The group as one run, or every file as its own where ranges overlap after all."""
    if any(a.high >= b.low for a, b in itertools.pairwise(group)):
        return [[file] for file in group]
    return [group]


def _min_sequence(run: list[_Placed]) -> int:
    return min(file.entry.file.min_sequence_number for file in run)


def _max_sequence(run: list[_Placed]) -> int:
    return max(file.entry.file.max_sequence_number for file in run)
