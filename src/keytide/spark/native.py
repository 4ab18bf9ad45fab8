"""Plain files read by Spark's own Parquet reader, with column pruning and filter pushdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from keytide.format.data_file import VALUE_KIND
from keytide.predicate.predicate import columns_of
from keytide.read.plain_files import PlainShape, has_floats, stored_fields
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile
from keytide.spark.connect import is_connect
from keytide.spark.dead_rows import without_dead_rows
from keytide.spark.file_systems import Locate
from keytide.spark.known_files import known_parquet_files
from keytide.spark.pinned import pin
from keytide.spark.predicate import column, spark_condition
from keytide.spark.types import spark_schema
from keytide.spark.words import speak_plainly
from keytide.types import (
    AtomicType,
    Field,
    arrow_schema,
    quoted,
)

__all__ = ["native_rows", "parquet_files", "spark_reads", "with_floats_read"]


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


# -- the plan ------------------------------------------------------------------------------------


def native_rows(
    scan: Scan,
    shape: PlainShape,
    files: Sequence[PlannedFile],
    locate: Locate,
    spark: SparkSession,
) -> DataFrame:
    """Files of one shape as a lazy DataFrame. Runs on the driver. REQUIRES: all are located."""
    view = scan.view
    places = [view.data_file(file.entry) for file in files]
    uris = [uri for store, path in places if (uri := locate(store, path)) is not None]
    fields = view.schema.select(_columns_read(scan))
    old_fields = stored_fields(view, shape, fields)
    stored = [old for old in old_fields if old is not None]
    folders = {uri.removesuffix(f"/{path}") for (_, path), uri in zip(places, uris, strict=True)}
    pin(folders, view, scan.snapshot_ids)
    speak_plainly()
    sizes = dict(zip(uris, (file.meta.file_size for file in files), strict=True))
    rows = _parquet(sizes, stored, spark, with_kinds=shape.has_retracts)
    if shape.has_dead_rows:
        rows = without_dead_rows(rows, view, files, spark)
    if shape.has_retracts:
        rows = rows.where(f"{quoted(VALUE_KIND)} IN (0, 2)")
    rows = with_floats_read(rows, stored)
    target = spark_schema(arrow_schema(fields))
    if not _are_as_stored(fields, stored):
        rows = rows.select(
            [_mapped(old, new) for old, new in zip(old_fields, target.fields, strict=True)]
        )
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


def _are_as_stored(fields: Sequence[Field], stored: Sequence[Field]) -> bool:
    """Whether columns have the names and types that are stored in files, and are nullable."""
    return len(fields) == len(stored) and all(
        new.name == old.name and new.type.with_nullable(True) == old.type.with_nullable(True)
        for new, old in zip(fields, stored, strict=True)
    )


def _columns_read(scan: Scan) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*scan.columns, *sorted(columns_of(scan.predicate)))))


def _parquet(
    sizes: Mapping[str, int], stored: Sequence[Field], spark: SparkSession, *, with_kinds: bool
) -> DataFrame:
    schema = spark_schema(arrow_schema(stored))
    if with_kinds:
        schema = StructType([*schema.fields, *_KIND_SCHEMA.fields])
    known = None if is_connect(spark) else _sizes_to_tell(sizes)
    rows = None if known is None else known_parquet_files(known, schema, _OPTIONS, spark)
    return parquet_files([*sizes], schema, spark) if rows is None else rows


_LOOKED_UP_MAX = 32
"""Spark lists more files than this in a job, which has a task for each file."""


def _sizes_to_tell(sizes: Mapping[str, int]) -> Mapping[str, int] | None:
    """The sizes that Spark does not have to look for. None if it should look for all files.

    It looks for a few files on local disk in no time, and reports one that is missing.
    """
    if not any(uri.startswith(_LOCAL) for uri in sizes):
        return sizes
    if len(sizes) <= _LOOKED_UP_MAX:
        return None
    try:
        # Deleted rows are found by the size of a file, so it must be the one on disk.
        return {uri: Path(uri.removeprefix(_LOCAL)).stat().st_size for uri in sizes}
    except OSError:
        return None


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


def _mapped(old: Field | None, target: StructField) -> Column:
    source = F.lit(None) if old is None else column(old.name)
    return source.cast(target.dataType).alias(target.name)
