"""Reads as Spark plans: files that Spark reads itself, merge tasks for the rest, and changes.

- Files that need no merge are read by Spark's own Parquet reader, with column pruning and filter
  pushdown, on local disk and, unless they are small, in object stores for which the session has a
  file system. Overlapping sections, and files with columns that Spark cannot read, are packed into
  bins of about equal size. Each bin is one Spark task that runs the same `ReadTask`s as a local
  scan.
- Deletion vectors are applied to row positions in the JVM. The vector of each file is broadcast to
  the executors as a bitmap, under a value that identifies the file. A row's bit is found by its
  position, so each row costs one lookup and no hashing. A bitmap is a list of stretches of 65,536
  rows, like the containers of a Roaring bitmap. A stretch without deleted rows is NULL, so the size
  of the broadcast depends on the number of deleted rows and not on the size of the files.
- Changes are read by the same tasks as a local read of changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from math import ceil
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.base.text import counted
from keytide.changes.change_scan import Changes, ChangesTask
from keytide.changes.stored_rows import Lane
from keytide.errors import DataError
from keytide.format.data_file import VALUE_KIND, missing_file
from keytide.format.index_files import dead_positions
from keytide.predicate.predicate import columns_of
from keytide.read.fallback import FallbackScan
from keytide.read.key_ranges import by_key_range
from keytide.read.plain_files import PlainShape, PlainSplit, has_floats, split_plain, stored_fields
from keytide.read.scan import FramesTask, ReadTask, Scan, naming_expired
from keytide.read.sections import PlannedFile, columns_without_nulls
from keytide.spark.capacity import pack, tasks_for
from keytide.spark.columns import batch_schema, column, spark_batches, spark_condition, spark_schema
from keytide.spark.error_translation import check_python, install_messages, pin
from keytide.spark.internals import is_connect
from keytide.spark.runner import Executors
from keytide.spark.stored_files import (
    Locate,
    far_bytes_min,
    known_parquet_files,
    locate_in,
    on_local_disk,
)
from keytide.store.interface import Store, storage_error
from keytide.types import AtomicType, Field, arrow_schema, quoted

# -- deletion vectors ------------------------------------------------------------------------------


FILE, BITS = map(scratch, ("file", "bits"))
# Powers of two: rows per stretch, and rows per word in it.
_STRETCH_SHIFT, _WORD_SHIFT = 16, 6
_STRETCH = 1 << _STRETCH_SHIFT
_WORDS = _STRETCH >> _WORD_SHIFT


def without_deleted(rows: DataFrame, bitmaps: DataFrame, identity_column: str) -> DataFrame:
    """Remove the rows that bitmaps mark from rows that Spark's file reader reads, lazily.

    For each file, `bitmaps` has the file's value of `identity_column`, a column of Spark's file
    metadata, as `FILE`, and its bitmap as `BITS`. A file without a bitmap has no marked rows.
    """
    # The table may have a column that is named `_metadata` too.
    metadata = rows.metadataColumn("_metadata")
    marked = rows.join(F.broadcast(bitmaps), metadata[identity_column] == bitmaps[FILE], "left")

    # Whether a row is deleted: 1 or 0. NULL in a stretch or a file without deleted rows.
    bits = bitmaps[BITS]
    row = metadata["row_index"]
    stretch = F.get(bits, F.shiftright(row, _STRETCH_SHIFT).cast("int"))
    word = F.shiftright(row, _WORD_SHIFT).bitwiseAND(F.lit(_WORDS - 1))
    in_word = row.bitwiseAND(F.lit((1 << _WORD_SHIFT) - 1))
    dead = F.getbit(F.get(stretch, word.cast("int")), in_word.cast("int"))
    return marked.where(F.coalesce(dead, F.lit(0)) == 0).drop(FILE, BITS)


def file_identity(files: Sequence[tuple[Store, str]]) -> tuple[str, pa.Array]:
    """A column of Spark's file metadata that distinguishes the files, and its value for each file.

    It is the file size if no two sizes are equal, because finding a number is much faster than
    finding a name. The sizes are read from the files and not from manifests: with a wrong size,
    deleted rows would be returned. In an object store, that would take a request for each file.
    Raises `DataError` for a missing file. REQUIRES: the files have different names.
    """
    local = [path for store, name in files if (path := store.uncached().local_path(name))]
    sizes = []
    for path in local:
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError as error:  # noqa: PERF203  # it names the file
            raise missing_file(str(path)) from error
        except OSError as error:
            raise storage_error("read", str(path), error) from error
    if len({*sizes}) == len(files):
        return "file_size", pa.array(sizes, pa.int64())
    names = [name.rpartition("/")[2] for _, name in files]
    return "file_name", pa.array(names, pa.string())


def bitmaps_of(files: Sequence[npt.NDArray[np.int64]]) -> pa.Array:
    """The bitmap of each file, given the positions of its deleted rows."""
    found = [_bitmap(positions) for positions in files]
    ends = np.cumsum([0, *map(len, found)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(found))


def _bitmap(positions: npt.NDArray[np.int64]) -> pa.Array:
    """Bitmaps of a file's stretches up to its last deleted row, in words of 64 rows."""
    with_dead, which = np.unique(positions >> _STRETCH_SHIFT, return_inverse=True)
    flags = np.zeros(len(with_dead) * _STRETCH, dtype=np.uint8)
    flags[which * _STRETCH + (positions & (_STRETCH - 1))] = 1
    words = np.packbits(flags, bitorder="little").view("<i8")
    is_none = np.ones(int(with_dead[-1]) + 1 if len(with_dead) else 0, dtype=np.bool_)
    is_none[with_dead] = False
    offsets = np.concatenate(([0], np.cumsum(~is_none))) * _WORDS
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(words), mask=pa.array(is_none)
    )


# -- plain files -----------------------------------------------------------------------------------


def spark_reads(type_: AtomicType) -> bool:
    """Whether Spark's own reader reads a stored type as Keytide does."""
    # Nanoseconds are stored as INT96, which Spark reads as timestamps with a time zone.
    return type_.root in _READABLE or (type_.root in _TIMESTAMPS and (type_.precision or 0) <= 6)


_READABLE = frozenset(
    (
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL",
        "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DATE",
    )
)  # fmt: skip
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ")


# -- plans of plain files --------------------------------------------------------------------------


def native_rows(
    scan: Scan, shape: PlainShape, files: Sequence[PlannedFile], locate: Locate, spark: SparkSession
) -> DataFrame:
    """Files of one shape as a lazy DataFrame. Runs on the driver. REQUIRES: all are located."""
    view = scan.view
    places = [view.data_file(file.entry) for file in files]
    uris = [uri for store, path in places if (uri := locate(store, path)) is not None]
    fields = view.schema.select(
        tuple(dict.fromkeys((*scan.columns, *sorted(columns_of(scan.predicate)))))
    )
    old_fields = stored_fields(view, shape, fields)
    stored = [old for old in old_fields if old is not None]
    folders = {uri.removesuffix(f"/{path}") for (_, path), uri in zip(places, uris, strict=True)}
    pin(folders, view, scan.snapshot_ids)
    install_messages()
    sizes = dict(zip(uris, (file.meta.file_size for file in files), strict=True))
    rows = _parquet(sizes, stored, spark, with_kinds=shape.has_retracts)
    if shape.has_dead_rows:
        # Remove the rows that deletion vectors mark from rows that Spark's file reader reads,
        # lazily. `files` are the files that Spark reads, each of them with a vector. The driver
        # reads the vectors, and broadcasts their bitmaps when the frame is evaluated. Raises
        # `DataError` when a file or a vector is missing or corrupt.
        known_by, values = file_identity([view.data_file(file.entry) for file in files])
        found = [dead_positions(view.store, f.dead_rows) for f in files if f.dead_rows is not None]
        marks = pa.table([values, bitmaps_of(found)], names=[FILE, BITS])
        rows = without_deleted(rows, spark.createDataFrame(marks), known_by)
    if shape.has_retracts:
        rows = rows.where(f"{quoted(VALUE_KIND)} IN (0, 2)")
    rows = with_floats_read(rows, stored)
    target = spark_schema(arrow_schema(fields))

    # Whether columns have the names and types that are stored in files, and are nullable.
    are_as_stored = len(fields) == len(stored) and all(
        new.name == old.name and new.type.with_nullable(True) == old.type.with_nullable(True)
        for new, old in zip(fields, stored, strict=True)
    )
    if not are_as_stored:
        mapped = []
        for old, new in zip(old_fields, target.fields, strict=True):
            source = F.lit(None) if old is None else column(old.name)
            mapped.append(source.cast(new.dataType).alias(new.name))
        rows = rows.select(mapped)
    if scan.predicate is not None:
        rows = rows.where(spark_condition(scan.predicate, fields, target))
    return rows.selectExpr(*map(quoted, scan.columns))


def with_floats_read(rows: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """The columns, such that filters on FLOAT and DOUBLE are only evaluated on values.

    Spark also evaluates filters on row-group bounds. NaN is not included in Parquet's bounds, but
    Spark treats it as the largest number, so it would skip row groups that contain NaN.
    """
    if not any(map(has_floats, (field.type for field in fields))):
        return rows
    # Spark pushes no filter down on an expression, even if its value equals the column's.
    names = [(quoted(field.name), has_floats(field.type)) for field in fields]
    return rows.selectExpr(
        [f"coalesce({name}, {name}) AS {name}" if floats else name for name, floats in names]
    )


def _parquet(
    sizes: Mapping[str, int], stored: Sequence[Field], spark: SparkSession, *, with_kinds: bool
) -> DataFrame:
    schema = spark_schema(arrow_schema(stored))
    if with_kinds:
        schema = StructType([*schema.fields, *_KIND_SCHEMA.fields])

    # Spark looks for a few files on local disk in no time, and reports one that is missing.
    is_local = any(uri.startswith(_LOCAL) for uri in sizes)
    is_told = not is_connect(spark) and not (is_local and len(sizes) <= _LOOKED_UP_MAX)
    known = sizes if is_told else None
    if is_told and is_local:
        try:
            # Deleted rows are found by the size of a file, so it must be the one on disk.
            known = {uri: Path(uri.removeprefix(_LOCAL)).stat().st_size for uri in sizes}
        except OSError:
            known = None
    rows = None if known is None else known_parquet_files(known, schema, _OPTIONS, spark)
    return parquet_files([*sizes], schema, spark) if rows is None else rows


_LOOKED_UP_MAX = 32
"""Spark lists more files than this in a job, which has a task for each file."""


def parquet_files(uris: Sequence[str], schema: StructType, spark: SparkSession) -> DataFrame:
    """The rows of Parquet files, unchanged, as a lazy DataFrame. Names are not escaped in URIs."""
    reader = spark.read.schema(schema).options(**_OPTIONS)
    escaped = [_OF_PATTERNS.sub(r"\\\g<0>", uri) for uri in uris]
    if escaped != list(uris):
        # Without patterns, Spark reads all files once more for each name that looks like one.
        reader = reader.option("__globPaths__", "true")
    return reader.parquet(*escaped)


_LOCAL = "file://"
_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")

_OPTIONS = {
    # Otherwise brackets in a path are patterns, and dates before 1582 are shifted.
    "__globPaths__": "false",
    "parquet.page.verify-checksum.enabled": "true",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

_KIND_SCHEMA = spark_schema(pa.schema([pa.field(VALUE_KIND, pa.int8())]))


# -- scans -----------------------------------------------------------------------------------------


TASK_MEMORY_BYTES = 256 << 20
"""Memory for the merge in one Spark task, unless 'read.memory' is smaller."""

ReadBin: TypeAlias = "tuple[ReadTask, ...]"


def scan_to_spark(scan: Scan, spark: SparkSession) -> DataFrame:
    """The rows of a scan as a lazy DataFrame that keeps reading the scan's snapshot.

    Runs on the driver and reads metadata only. Works in classic and Spark Connect sessions, if the
    executors can access the same paths. Raises `SetupError` when Spark runs another Python version,
    and what planning raises. A later error in a task is raised as the Keytide error, which is also
    an error class of Spark. It is a `DataError` when the snapshot has expired in the meantime.
    """
    check_python(spark)
    locate = locate_in(spark)
    split = split_scan(scan, locate, far_bytes_min(spark))
    parts = [native_rows(scan, shape, files, locate, spark) for shape, files in split.plain.items()]
    bins = bins_of_reads(split.tasks, lambda *work: tasks_for(spark, *work))
    if bins or not parts:
        parts.append(_merged(scan, split.tasks, bins, spark))
    rows = reduce(lambda one, other: one.unionAll(other), parts)
    return rows if scan.limit is None else rows.limit(scan.limit)


def fallback_to_spark(scan: FallbackScan, spark: SparkSession) -> DataFrame:
    """The rows of a scan of two branches, see `scan_to_spark`."""
    first, fallback = (scan_to_spark(part, spark) for part in scan.parts)
    rows = first.unionAll(fallback)
    return rows if scan.limit is None else rows.limit(scan.limit)


# -- native reads and merge tasks ------------------------------------------------------------------


def split_scan(scan: Scan, locate: Locate = on_local_disk, far_bytes_min: int = 0) -> PlainSplit:
    """A scan's files for Spark's own reader, by shape, and the tasks for all other files.

    Tasks read files below `far_bytes_min` that are not on local disk.
    """

    def takes(file: PlannedFile) -> bool:
        store, path = scan.view.data_file(file.entry)
        is_small = file.meta.file_size < far_bytes_min
        if is_small and on_local_disk(store, path) is None:
            return False
        return locate(store, path) is not None

    return split_plain(scan, spark_reads, takes)


@dataclass(frozen=True)
class BinTask:
    """Reads and merges a bin. A NULL in one of the `never_null` columns is an error."""

    tasks: tuple[FramesTask, ...]
    schema: pa.Schema
    table: str
    never_null: frozenset[str] = frozenset()
    snapshot_ids: tuple[int, ...] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's batch format. Runs on executors.

        Raises `DataError` for a corrupt file, and when one of the snapshots has expired.
        """
        for task in self.tasks:
            memory = min(task.view.options.read_memory_bytes, TASK_MEMORY_BYTES)
            with naming_expired(task.view, self.snapshot_ids):
                for frame in task.frames(memory):
                    for name in self.never_null:
                        if count := frame[name].null_count():
                            raise DataError(
                                f"table {self.table}, column {name!r}: found "
                                f"{counted(count, 'row')} with NULL, but the statistics in a "
                                "manifest say that there are none. spark.read.format('keytide') "
                                "reads the table without these statistics; overwrite the table "
                                "with its rows"
                            )
                    yield from spark_batches(frame, self.schema)


def bins_of_reads(tasks: Sequence[ReadTask], count_for: Callable[[int, int], int]) -> list[ReadBin]:
    """The reads, packed for as many tasks as `count_for` says for their bytes and rows.

    A bucket that is too large for one task is read by ranges of its keys. Statistics are not sent.
    """
    stored = sum(task.stored_bytes for task in tasks)
    count = count_for(stored, sum(task.stored_rows for task in tasks))
    parts = [part for task in tasks for part in by_key_range(task, ceil(stored / count))]
    planned = (part.without_statistics() for part in parts)
    return pack(planned, count, lambda task: task.stored_bytes)


# -- merge tasks ----------------------------------------------------------------------------------


def _merged(
    scan: Scan, reads: Sequence[ReadTask], bins: Sequence[ReadBin], spark: SparkSession
) -> DataFrame:
    schema = scan.schema

    # The columns that have no NULL in any row of the tasks, according to statistics.
    files = [file.entry for task in reads for file in task.bucket.files]
    as_stored = scan.columns if scan.view.engine.picks_a_version else scan.view.order.key
    fields = scan.view.schema.select([name for name in scan.columns if name in as_stored])
    never_null = columns_without_nulls(files, fields, scan.view.schemas)
    tasks = [
        BinTask(tasks, schema, scan.view.name, never_null, scan.snapshot_ids) for tasks in bins
    ]
    target = spark_schema(schema)
    count = sum(read.stored_rows for read in reads)
    if not never_null:
        return Executors().rows(tasks, target, spark, count)
    narrow = [StructField(f.name, f.dataType, f.name not in never_null) for f in target.fields]

    # The same rows with nullable columns, so that the schema does not depend on statistics. Spark
    # checks nullable values for NULL where rows enter the plan. A union with an empty DataFrame,
    # which the optimizer removes, makes the columns nullable only after that point.
    rows = Executors().rows(tasks, StructType(narrow), spark, count)
    nothing = batch_schema(schema).empty_table()
    return rows.unionAll(rows.sparkSession.createDataFrame(nothing, spark_schema(schema)))


# -- changes ---------------------------------------------------------------------------------------


def changes_to_spark(changes: Changes, spark: SparkSession) -> DataFrame:
    """The changes as a lazy DataFrame that keeps reading the same snapshots.

    All rows of a key are in one partition, in order.

    Runs on the driver and reads metadata only. Works in classic and Spark Connect sessions. An
    error in a task is raised as the Keytide error, which is also an error class of Spark.
    """
    check_python(spark)
    bins = bins_of(changes, lambda *work: tasks_for(spark, *work), changes.schema)
    # A changed key gives a before and an after image.
    count = 2 * sum(file.meta.row_count for task in changes.tasks() for file in task.files)
    return Executors().rows(bins, spark_schema(changes.schema), spark, count)


def bins_of(
    changes: Changes, count_for: Callable[[int, int], int], schema: pa.Schema
) -> list[BinTask]:
    """Pack the tasks into bins, which return the columns of `schema`.

    `count_for` says how many, for the bytes and rows of all files.

    Tasks of one lane stay together and in order, because the partitions of a DataFrame have no
    order among them.
    """
    of_lanes: dict[Lane, list[ChangesTask]] = {}
    for task in changes.tasks():
        of_lanes.setdefault(task.lane, []).append(task)
    files = [file.meta for tasks in of_lanes.values() for task in tasks for file in task.files]
    count = count_for(sum(f.file_size for f in files), sum(f.row_count for f in files))
    bins = pack(
        of_lanes.values(),
        count,
        lambda tasks: sum(file.meta.file_size for task in tasks for file in task.files),
    )
    flat = (tuple(chain.from_iterable(members)) for members in bins)
    return [
        BinTask(tasks, schema, changes.view.name, snapshot_ids=changes.snapshot_ids)
        for tasks in flat
    ]
