"""Scans as Spark plans: native Parquet reads where nothing overlaps, merge tasks for the rest.

Files that need no merge are read by Spark's own Parquet reader, with its column pruning and
filter pushdown; deletion vectors are applied to row positions in the JVM. Overlapping sections,
and files with columns that Spark cannot read, are packed into bins of about equal size; each bin
is one Spark task that runs the same `ReadTask`s as a local scan.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from keytide.format.data_file import VALUE_KIND
from keytide.format.manifest import ManifestEntry
from keytide.spark.connect import cores
from keytide.spark.predicate import column, spark_condition
from keytide.spark.types import spark_batches, spark_schema
from keytide.spark.worker import settle
from keytide.table.plan import Section
from keytide.table.predicate import columns_of
from keytide.table.read import ReadTask
from keytide.table.scan import Scan
from keytide.table.view import TableView
from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    arrow_schema,
)

__all__ = [
    "ReadBin",
    "ReadSplit",
    "pack",
    "read_bin",
    "scan_to_spark",
    "split_scan",
    "split_tasks",
]

BINS_PER_CORE = 4
"""More bins balance better; each of them costs a Spark task."""

TASK_MEMORY_BYTES = 256 << 20
"""What the merge of one Spark task may hold, where 'read.memory' does not say less."""

ReadBin: TypeAlias = "tuple[ReadTask, ...]"


def scan_to_spark(scan: Scan, spark: SparkSession) -> DataFrame:
    """The rows of a scan as a lazy DataFrame that stays with the scan's snapshot.

    Driver only; reads metadata, no data. Works on classic and Spark Connect sessions, where the
    executors see the same paths. What a task raises reaches the user as Spark's PythonException
    with the Keytide error's text.
    """
    split = split_scan(scan)
    parts = [
        _native(scan, shape, files, split.dead_rows, spark) for shape, files in split.native.items()
    ]
    bins = pack(split.tasks, cores(spark) * BINS_PER_CORE)
    if bins or not parts:
        parts.append(_merged(scan, bins, spark))
    return reduce(lambda one, other: one.unionAll(other), parts)


# -- what Spark reads itself, and what tasks merge ------------------------------------------------


@dataclass(frozen=True)
class NativeShape:
    """How files of one kind are read natively.

    Files of one schema go together; `has_retracts` when rows of kind -U or -D may be among
    them, `has_dead_rows` when deletion vectors mark some.
    """

    schema_id: int
    has_retracts: bool
    has_dead_rows: bool


@dataclass(frozen=True)
class ReadSplit:
    """A scan's files for Spark's own reader, by shape, and the tasks for all others.

    `dead_rows` holds the marked positions of native files, by file name.
    """

    native: dict[NativeShape, list[ManifestEntry]]
    dead_rows: dict[str, pa.Array]
    tasks: list[ReadTask]


def split_scan(scan: Scan) -> ReadSplit:
    """Divide a scan. Decided from metadata alone."""
    reads_natively = _native_check(scan)
    native: dict[NativeShape, list[ManifestEntry]] = {}
    dead_rows: dict[str, pa.Array] = {}
    tasks: list[ReadTask] = []
    for task in scan.tasks():
        dead_rows.update(task.dead_rows)
        for section in task.sections:
            if section.needs_merge or not all(map(reads_natively, section.files)):
                tasks.append(_one_section(task, section))
                continue
            for entry in section.files:
                shape = _shape(entry, has_dead_rows=entry.file.file_name in task.dead_rows)
                native.setdefault(shape, []).append(entry)
    return ReadSplit(native, dead_rows, tasks)


def split_tasks(scan: Scan) -> list[ReadTask]:
    """A scan as tasks of one section each."""
    return [_one_section(task, section) for task in scan.tasks() for section in task.sections]


def pack(tasks: Iterable[ReadTask], bins_max: int) -> list[ReadBin]:
    """Distribute tasks over at most `bins_max` bins of about equal bytes, the largest first."""
    by_size = sorted(((_bytes(task), task) for task in tasks), key=lambda pair: -pair[0])
    bins: list[tuple[int, list[ReadTask]]] = [(0, []) for _ in range(min(bins_max, len(by_size)))]
    for size, task in by_size:
        index = min(range(len(bins)), key=lambda i: bins[i][0])
        filled, members = bins[index]
        members.append(task)
        bins[index] = (filled + size, members)
    return [tuple(members) for _, members in bins]


def read_bin(tasks: ReadBin, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read and merge a bin's tasks. Runs on executors."""
    settle()
    for task in tasks:
        memory = min(task.view.options.read_memory_bytes, TASK_MEMORY_BYTES)
        for frame in task.frames(memory):
            yield from spark_batches(frame, schema)


def _one_section(task: ReadTask, section: Section) -> ReadTask:
    names = {entry.file.file_name for entry in section.files}
    dead_rows = {name: task.dead_rows[name] for name in names & task.dead_rows.keys()}
    return replace(task, sections=(section,), dead_rows=dead_rows)


def _shape(entry: ManifestEntry, *, has_dead_rows: bool) -> NativeShape:
    # At level 0 some writers record no deletes although there are some.
    has_retracts = entry.file.level == 0 or entry.file.delete_row_count != 0
    return NativeShape(entry.file.schema_id, has_retracts, has_dead_rows)


def _bytes(task: ReadTask) -> int:
    return sum(e.file.file_size for section in task.sections for e in section.files)


def _native_check(scan: Scan) -> Callable[[ManifestEntry], bool]:
    view = scan.view
    fields = view.schema.select(_columns_read(scan))
    if view.defaults(f.name for f in fields):
        return lambda entry: False
    by_schema: dict[int, bool] = {}

    def check(entry: ManifestEntry) -> bool:
        schema_id = entry.file.schema_id
        if schema_id not in by_schema:
            by_schema[schema_id] = _schema_reads_natively(view, schema_id, fields)
        path = view.file_path(entry)
        return (
            by_schema[schema_id]
            and path.endswith(".parquet")
            and view.store.local_path(path) is not None
        )

    return check


def _schema_reads_natively(view: TableView, schema_id: int, fields: Sequence[Field]) -> bool:
    stored = view.schemas[schema_id]
    lowered = {name.lower() for name in stored.names}
    if len(lowered) < len(stored.names):
        return False  # Spark does not tell names apart by case
    old_fields = {f.id: f for f in stored.fields}
    return all(f.id not in old_fields or _reads_as(old_fields[f.id].type, f.type) for f in fields)


def _reads_as(old: DataType, new: DataType) -> bool:
    """Whether Spark reads the stored type, and its cast to the new one is that of the kernels."""
    if not _spark_reads(old) or not _spark_reads(new):
        return False
    if isinstance(old, AtomicType) and isinstance(new, AtomicType):
        same = old.with_nullable(True) == new.with_nullable(True)
        return same or new.root in _WIDENS_TO.get(old.root, ())
    return bool(old.with_nullable(True) == new.with_nullable(True))


def _spark_reads(kind: DataType) -> bool:
    if isinstance(kind, AtomicType):
        # Nanoseconds are stored as INT96, which Spark takes for instants.
        return kind.root in _READABLE or (kind.root in _TIMESTAMPS and (kind.precision or 0) <= 6)
    if isinstance(kind, ArrayType | MultisetType):
        return _spark_reads(kind.element)
    if isinstance(kind, MapType):
        return _spark_reads(kind.key) and _spark_reads(kind.value)
    return isinstance(kind, RowType) and all(_spark_reads(f.type) for f in kind.fields)


_READABLE = frozenset(
    (
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL",
        "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DATE",
    )
)  # fmt: skip
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ")
_WIDENS_TO = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT"),
    "SMALLINT": ("INT", "BIGINT"),
    "INT": ("BIGINT",),
    "FLOAT": ("DOUBLE",),
    "CHAR": ("VARCHAR",),
    "VARCHAR": ("VARCHAR",),
    "BINARY": ("VARBINARY",),
    "VARBINARY": ("VARBINARY",),
}


# -- native reads ---------------------------------------------------------------------------------


def _native(
    scan: Scan,
    shape: NativeShape,
    files: Sequence[ManifestEntry],
    dead_rows: Mapping[str, pa.Array],
    spark: SparkSession,
) -> DataFrame:
    view = scan.view
    fields = view.schema.select(_columns_read(scan))
    old_fields = {f.id: f for f in view.schemas[shape.schema_id].fields}
    stored = [old_fields[f.id] for f in fields if f.id in old_fields]
    rows = _parquet(view, files, stored, spark, with_kinds=shape.has_retracts)
    if shape.has_dead_rows:
        names = [entry.file.file_name for entry in files]
        rows = _without_dead_rows(rows, {name: dead_rows[name] for name in names}, spark)
    if shape.has_retracts:
        rows = rows.where(column(VALUE_KIND).isin(0, 2))
    target = spark_schema(arrow_schema(fields))
    rows = rows.select(
        [_mapped(old_fields.get(f.id), t) for f, t in zip(fields, target.fields, strict=True)]
    )
    if scan.predicate is not None:
        rows = rows.where(spark_condition(scan.predicate, target))
    return rows.select([column(name) for name in scan.columns])


def _columns_read(scan: Scan) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*scan.columns, *sorted(columns_of(scan.predicate)))))


def _parquet(
    view: TableView,
    files: Sequence[ManifestEntry],
    stored: Sequence[Field],
    spark: SparkSession,
    *,
    with_kinds: bool,
) -> DataFrame:
    schema = spark_schema(arrow_schema(stored))
    if with_kinds:
        schema = StructType([*schema.fields, *_KIND_SCHEMA.fields])
    paths = [f"file:{view.store.local_path(view.file_path(entry))}" for entry in files]
    return (
        spark.read.schema(schema)
        # Without these, brackets in a path are patterns, and days before 1582 are shifted.
        .option("__globPaths__", "false")
        .option("datetimeRebaseMode", "CORRECTED")
        .parquet(*paths)
    )


_KIND_SCHEMA = spark_schema(pa.schema([pa.field(VALUE_KIND, pa.int8())]))


def _mapped(old: Field | None, target: StructField) -> Column:
    source = F.lit(None) if old is None else column(old.name)
    return source.cast(target.dataType).alias(target.name)


def _without_dead_rows(
    rows: DataFrame, dead_rows: Mapping[str, pa.Array], spark: SparkSession
) -> DataFrame:
    marked = pa.concat_tables(
        pa.table({"_FILE": pa.repeat(name, len(positions)), "_ROW": positions.cast(pa.int64())})
        for name, positions in dead_rows.items()
    )
    dead = spark.createDataFrame(marked)
    return rows.join(
        F.broadcast(dead),
        (F.col("_metadata.file_name") == dead["_FILE"])
        & (F.col("_metadata.row_index") == dead["_ROW"]),
        "left_anti",
    )


# -- merge tasks ----------------------------------------------------------------------------------


def _merged(scan: Scan, bins: Sequence[ReadBin], spark: SparkSession) -> DataFrame:
    schema = scan.schema
    # A bin is pickled as a whole, so that its tasks share one view; only the task that reads it
    # unpickles it.
    payloads = [pickle.dumps(tasks) for tasks in bins]

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_bin(pickle.loads(payloads[number]), schema)

    numbers = spark.range(0, len(payloads), 1, max(1, len(payloads)))
    return numbers.mapInArrow(read, spark_schema(schema))
