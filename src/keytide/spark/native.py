"""Files that Spark's own Parquet reader reads, with its column pruning and filter pushdown.

Whether it can is decided from schemas alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from keytide.format.data_file import VALUE_KIND
from keytide.spark.dead_rows import without_dead_rows
from keytide.spark.pinned import pin
from keytide.spark.predicate import column, spark_condition
from keytide.spark.types import spark_schema
from keytide.spark.words import speak_plainly
from keytide.table.conditions.predicate import columns_of
from keytide.table.read.scan import Scan
from keytide.table.read.sections import PlannedFile
from keytide.table.state.view import TableView
from keytide.types import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    arrow_schema,
    quoted,
)

__all__ = [
    "NativeShape",
    "native_check",
    "native_rows",
    "parquet_reader",
    "shape_of",
    "spark_reads",
    "with_floats_read",
]


@dataclass(frozen=True)
class NativeShape:
    """How files of one kind are read natively.

    Files of one schema go together; `has_retracts` when rows of kind -U or -D may be among
    them, `has_dead_rows` when deletion vectors mark some.
    """

    schema_id: int
    has_retracts: bool
    has_dead_rows: bool


def shape_of(file: PlannedFile) -> NativeShape:
    """How one file is read."""
    return NativeShape(file.meta.schema_id, file.may_retract, file.dead_rows is not None)


def native_check(scan: Scan) -> Callable[[PlannedFile], bool]:
    """A function that says whether Spark reads a file of the scan as the table's reader does."""
    view = scan.view
    fields = view.schema.select(_columns_read(scan))
    if not view.files.are_plain or view.defaults(f.name for f in fields):
        return lambda file: False
    by_schema: dict[int, bool] = {}

    def check(file: PlannedFile) -> bool:
        schema_id = file.meta.schema_id
        if schema_id not in by_schema:
            by_schema[schema_id] = _schema_reads_natively(view, schema_id, fields)
        store, path = view.data_file(file.entry)
        return (
            by_schema[schema_id]
            and file.places is None
            and path.endswith(".parquet")
            # Executors map no copy that this machine has.
            and store.uncached().local_path(path) is not None
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
    if not spark_reads(old) or not spark_reads(new):
        return False
    if isinstance(old, AtomicType) and isinstance(new, AtomicType):
        same = old.with_nullable(True) == new.with_nullable(True)
        return same or new.root in _WIDENS_TO.get(old.root, ())
    return bool(old.with_nullable(True) == new.with_nullable(True))


def spark_reads(type_: DataType) -> bool:
    """Whether Spark's own reader reads a stored type as a table's reader does."""
    if isinstance(type_, AtomicType):
        # Nanoseconds are stored as INT96, which Spark takes for instants.
        return type_.root in _READABLE or (
            type_.root in _TIMESTAMPS and (type_.precision or 0) <= 6
        )
    if isinstance(type_, ArrayType | MultisetType):
        return spark_reads(type_.element)
    if isinstance(type_, MapType):
        return spark_reads(type_.key) and spark_reads(type_.value)
    return isinstance(type_, RowType) and all(spark_reads(f.type) for f in type_.fields)


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


# -- the plan ------------------------------------------------------------------------------------


def native_rows(
    scan: Scan, shape: NativeShape, files: Sequence[PlannedFile], spark: SparkSession
) -> DataFrame:
    """Files of one shape as a lazy DataFrame. Driver only."""
    view = scan.view
    fields = view.schema.select(_columns_read(scan))
    old_fields = {f.id: f for f in view.schemas[shape.schema_id].fields}
    stored = [old_fields[f.id] for f in fields if f.id in old_fields]
    pin(_folders(view, files), view, scan.snapshot_ids)
    speak_plainly()
    rows = _parquet(view, files, stored, spark, with_kinds=shape.has_retracts)
    if shape.has_dead_rows:
        rows = without_dead_rows(rows, view, files, spark)
    if shape.has_retracts:
        rows = rows.where(column(VALUE_KIND).isin(0, 2))
    rows = with_floats_read(rows, stored)
    target = spark_schema(arrow_schema(fields))
    if not _are_as_stored(fields, stored):
        rows = rows.select(
            [_mapped(old_fields.get(f.id), t) for f, t in zip(fields, target.fields, strict=True)]
        )
    if scan.predicate is not None:
        rows = rows.where(spark_condition(scan.predicate, fields, target))
    return rows.selectExpr(*map(quoted, scan.columns))


def with_floats_read(rows: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """The columns of some fields; filters on FLOAT and DOUBLE are asked of values alone.

    Spark asks filters of the bounds of row groups too. NaN is none of Parquet's bounds and the
    largest number to Spark, which would pass over it.
    """
    if not any(map(_has_floats, (field.type for field in fields))):
        return rows
    # Spark asks no bounds about the value of an expression, of which it does not know that it is
    # the column's own.
    return rows.select(
        [
            F.coalesce(column(f.name), column(f.name)).alias(f.name)
            if _has_floats(f.type)
            else column(f.name)
            for f in fields
        ]
    )


def _has_floats(type_: DataType) -> bool:
    if isinstance(type_, ArrayType | MultisetType):
        return _has_floats(type_.element)
    if isinstance(type_, MapType):
        return _has_floats(type_.key) or _has_floats(type_.value)
    if isinstance(type_, RowType):
        return any(_has_floats(f.type) for f in type_.fields)
    return isinstance(type_, AtomicType) and type_.root in ("FLOAT", "DOUBLE")


def _folders(view: TableView, files: Sequence[PlannedFile]) -> set[str]:
    """Where the files lie: in the table, and outside of it where it says so."""
    places = (view.data_file(file.entry) for file in files)
    return {str(store.local_path(path)).removesuffix(f"/{path}") for store, path in places}


def _are_as_stored(fields: Sequence[Field], stored: Sequence[Field]) -> bool:
    """Whether columns have the names and types that they have in files, in any case nullable."""
    return len(fields) == len(stored) and all(
        new.name == old.name and new.type.with_nullable(True) == old.type.with_nullable(True)
        for new, old in zip(fields, stored, strict=True)
    )


def _columns_read(scan: Scan) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*scan.columns, *sorted(columns_of(scan.predicate)))))


def _parquet(
    view: TableView,
    files: Sequence[PlannedFile],
    stored: Sequence[Field],
    spark: SparkSession,
    *,
    with_kinds: bool,
) -> DataFrame:
    schema = spark_schema(arrow_schema(stored))
    if with_kinds:
        schema = StructType([*schema.fields, *_KIND_SCHEMA.fields])
    places = (view.data_file(file.entry) for file in files)
    paths = [f"file:{store.local_path(path)}" for store, path in places]
    return parquet_reader(schema, spark).parquet(*paths)


def parquet_reader(schema: StructType, spark: SparkSession) -> DataFrameReader:
    """What reads files as they are."""
    return (
        spark.read.schema(schema)
        # Without these, brackets in a path are patterns, and days before 1582 are shifted.
        .option("__globPaths__", "false")
        .option("parquet.page.verify-checksum.enabled", "true")
        .option("datetimeRebaseMode", "CORRECTED")
        .option("int96RebaseMode", "CORRECTED")
    )


_KIND_SCHEMA = spark_schema(pa.schema([pa.field(VALUE_KIND, pa.int8())]))


def _mapped(old: Field | None, target: StructField) -> Column:
    source = F.lit(None) if old is None else column(old.name)
    return source.cast(target.dataType).alias(target.name)
