"""Tables that others keep, on Spark: versions of keys are dealt out by key and merged by tasks.

Where it is known of all versions which came later, and the files are such as Spark reads alike,
only keys and watermarks are dealt out. What comes back is which rows of which file are superseded,
as bitmaps, and Spark's own reader reads the files without those. Else the versions are dealt out
whole, and what they are merged into is what Spark gets. In either case the rows of one version are
read, that of the scan, and all is lazy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.dml.attached import PagesScan
from keytide.external.connector import ExternalHandle
from keytide.external.dealt import (
    CUT,
    DEALT,
    LOST,
    PART,
    DealTask,
    dealt_frames,
    lost_rows,
    positions_in,
)
from keytide.external.key_merge import KeyMerge
from keytide.external.merging import Merging, split_condition
from keytide.external.parquet_part import ParquetPart
from keytide.external.shown_rows import ShownRows
from keytide.spark.connect import cores
from keytide.spark.dead_rows import BITS, FILE, bitmaps_of, told_apart, without_marked
from keytide.spark.native import parquet_reader, spark_reads
from keytide.spark.predicate import column, spark_condition
from keytide.spark.read import BINS_PER_CORE, TASK_MEMORY_BYTES, pack
from keytide.spark.runner import Executors
from keytide.spark.types import spark_batches, spark_schema
from keytide.table.conditions.predicate import columns_of
from keytide.types import AtomicType, arrow_schema, quoted, type_from_arrow

__all__ = ["merged_to_spark"]

_SMALL_BYTES = 64 << 20
"""Versions up to this size are merged by one task: to deal them out takes longer."""
_VALUE_BYTES, _TIMES_STORED = 32, 8
_PLACES_MAX = 4096
_ROWS_MARKED_MAX = 1 << 30
"""Of more rows no bitmaps are broadcast."""


def merged_to_spark(
    scan: PagesScan, table: ExternalHandle, spark: SparkSession
) -> DataFrame | None:
    """The rows of a table that others keep, as a lazy DataFrame; None where one task is to merge.

    Driver only; parts are planned here. Raises what planning raises.
    """
    about_key, rest = split_condition(table.predicate, table.table.view.schema.primary_keys)
    versions = table.table.versions(about_key)
    merging = Merging(versions, tuple(column.name for column in scan.columns), rest)
    if not merging.columns or not _is_worth_dealing(merging):
        return None
    files = _plain_files(table, merging)
    if files is None:
        return _merged(merging, scan.schema, spark)
    return _without_superseded(table, merging, files, spark)


def _is_worth_dealing(merging: Merging) -> bool:
    """Whether versions are many, and lie in parts of which several can be read at once."""
    parts = merging.versions.parts
    has_one = len(parts) == 1 and not isinstance(parts[0], ParquetPart)
    size = _bytes_of(merging)
    return bool(parts) and not has_one and size is not None and size > _SMALL_BYTES


def _bytes_of(merging: Merging) -> int | None:
    """About what the versions take in memory; None where nobody knows."""
    rows = [part.rows for part in merging.versions.parts]
    if None not in rows:
        return sum(n or 0 for n in rows) * _VALUE_BYTES * len(merging.columns_read)
    stored = [part.stored_bytes for part in merging.versions.parts]
    return None if None in stored else sum(n or 0 for n in stored) * _TIMES_STORED


# -- versions dealt out and merged -----------------------------------------------------------------


def _merged(merging: Merging, schema: pa.Schema, spark: SparkSession) -> DataFrame:
    """The rows, of which Python has read all."""
    # Which keys need whole rows is known too late: others have read the versions.
    whole = Merging(
        merging.versions,
        merging.columns,
        merging.condition,
        compares_rows=not merging.versions.are_in_order,
    )
    task = _MergeTask(whole.by_key, whole.shown, schema)
    return Executors().made(task, _dealt(whole, spark), spark_schema(schema))


def _dealt(merging: Merging, spark: SparkSession) -> DataFrame:
    """The versions, dealt out by key: a partition for each place."""
    versions, memory = merging.versions, _memory(merging.by_key)
    # Of one place as much as is merged at once; there are some for each core in any case.
    share = memory // 4
    places = max(BINS_PER_CORE * cores(spark), (_bytes_of(merging) or 0) // share)
    places = min(places, _PLACES_MAX)

    def task(bin_: Sequence[int]) -> DealTask:
        columns, rows_max = merging.columns_read, merging.rows_in(memory)
        return DealTask(versions.some(sorted(bin_)), columns, places, rows_max)

    sizes = [part.stored_bytes or part.rows or 0 for part in versions.parts]
    bins = pack(range(len(sizes)), cores(spark) * BINS_PER_CORE, sizes.__getitem__)
    count = sum(part.rows or 0 for part in versions.parts) or None
    dealt = Executors().rows([task(bin_) for bin_ in bins], spark_schema(DEALT), spark, count)
    return dealt.repartitionById(places, column(CUT))


def _memory(by_key: KeyMerge) -> int:
    return min(by_key.view.options.read_memory_bytes, TASK_MEMORY_BYTES)


@dataclass(frozen=True)
class _MergeTask:
    """Merges what fell to one place."""

    by_key: KeyMerge
    shown: ShownRows
    schema: pa.Schema

    def batches(self, dealt: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as Spark wants them. Runs on executors."""
        frames = dealt_frames(dealt)
        for rows in self.by_key.merged(frames, _memory(self.by_key), _cuts, []):
            yield from spark_batches(self.shown.of(rows), self.schema)


def _cuts(held_bytes: int, held_rows: int, budget: int) -> int:
    """How many parts to cut into what is more than was thought."""
    return 64


# -- files that Spark reads ------------------------------------------------------------------------


def _plain_files(table: ExternalHandle, merging: Merging) -> list[Path] | None:
    """The files of the parts, where Spark's own reader reads them as ours does; else None."""
    names = _columns_of_files(table, merging)
    versions = merging.versions
    rows = sum(part.rows or 0 for part in versions.parts)
    if merging.refuses_ties or not versions.are_in_order or rows > _ROWS_MARKED_MAX:
        return None
    if not all(_is_read_alike(table, name) for name in names):
        return None
    if any(not field.type.nullable for field in merging.view.schema.select(merging.columns)):
        return None  # NULLs are to be refused
    lowered = {name.lower() for name in table.table.source.schema.names}
    if len(lowered) < len(table.table.source.schema.names):
        return None  # Spark does not tell names apart by case
    paths = [
        part.plain_path(names) if isinstance(part, ParquetPart) else None for part in versions.parts
    ]
    found = [path for path in paths if path is not None and path.is_file()]
    has_all = len(found) == len(paths) and len({path.name for path in found}) == len(found)
    return found if has_all else None


def _columns_of_files(table: ExternalHandle, merging: Merging) -> tuple[str, ...]:
    asked = sorted(columns_of(table.predicate))
    return tuple(dict.fromkeys((*merging.columns, *asked)))


def _is_read_alike(table: ExternalHandle, name: str) -> bool:
    """Whether a column has the type that lies there, and one that Spark reads as we do."""
    own = table.table.view.schema.field(name).type.with_nullable(True)
    there = type_from_arrow(table.table.source.schema.field(name).type).with_nullable(True)
    return isinstance(own, AtomicType) and own == there and spark_reads(own)


def _without_superseded(
    table: ExternalHandle, merging: Merging, files: Sequence[Path], spark: SparkSession
) -> DataFrame:
    """The rows, which Spark reads itself once it knows which of them are superseded."""
    fields = merging.view.schema.select(_columns_of_files(table, merging))
    schema = spark_schema(arrow_schema(fields))
    rows = parquet_reader(schema, spark).parquet(*(f"file:{path}" for path in files))
    known_by, values = told_apart(files)
    rows = without_marked(rows, _bitmaps(merging, values, spark), known_by)
    if table.predicate is not None:
        rows = rows.where(spark_condition(table.predicate, fields, schema))
    return rows.selectExpr(*map(quoted, merging.columns))


def _bitmaps(merging: Merging, values: pa.Array, spark: SparkSession) -> DataFrame:
    """For each file its value, by which Spark knows it, and which rows are superseded or dead."""
    versions = merging.versions
    narrow = Merging(versions, merging.view.schema.primary_keys)
    lost_schema = spark_schema(LOST)
    lost = Executors().made(_LostTask(narrow.by_key), _dealt(narrow, spark), lost_schema)
    deleted = {
        place: part
        for place, part in enumerate(versions.parts)
        if isinstance(part, ParquetPart) and part.has_dead_rows
    }
    if deleted:
        every = pa.table([[*deleted], [b""] * len(deleted)], schema=LOST)
        lost = lost.unionAll(spark.createDataFrame(every, lost_schema))
    places = min(len(values), cores(spark))
    dealt = lost.repartitionById(places, F.expr(f"{quoted(PART)} % {places}"))
    schema = pa.schema([(FILE, values.type), (BITS, pa.list_(pa.list_(pa.int64())))])
    return Executors().made(_BitmapTask(values, deleted), dealt, spark_schema(schema))


@dataclass(frozen=True)
class _LostTask:
    """Finds which versions are superseded of those that fell to one place."""

    by_key: KeyMerge

    def batches(self, dealt: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of `LOST`. Runs on executors."""
        return lost_rows(self.by_key, dealt, _memory(self.by_key))


@dataclass(frozen=True)
class _BitmapTask:
    """Makes bitmaps of the rows of files that are superseded, and of those that are `deleted`."""

    values: pa.Array
    deleted: dict[int, ParquetPart]

    def batches(self, lost: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each file. Runs on executors."""
        for place, positions in positions_in(lost).items():
            dead = self.deleted[place].dead_rows() if place in self.deleted else positions[:0]
            bits = bitmaps_of([np.union1d(positions, dead)])
            yield pa.record_batch([self.values.slice(place, 1), bits], [FILE, BITS])
