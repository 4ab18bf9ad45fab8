"""Column types in Spark, and Arrow batches in the form that Spark accepts.

Every column is nullable in Spark, as in Spark's file sources, so that a DataFrame's schema does not
depend on how the rows are read. TIME has nanoseconds and timestamps have microseconds, as in Spark.
Smaller fractions of a second are truncated.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from keytide.errors import InvalidError
from keytide.format.arrow import to_arrow
from keytide.spark.internals import from_arrow_schema, to_arrow_schema

__all__ = [
    "arrow_schema_of",
    "batch_schema",
    "batches_of",
    "row_bytes",
    "spark_batches",
    "spark_schema",
]

_ROW_BYTES, _VALUE_BYTES = 8, {"binary": 100, "string": 20}
"""What Spark assumes for a row, and for values that are larger than a number."""

# Spark converts a whole batch at a time. Larger batches only need more memory.
_BATCH_ROWS = 32 << 10


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a scan's rows."""
    return from_arrow_schema(batch_schema(schema))


def batch_schema(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema in which Spark accepts a scan's rows."""
    return pa.schema([_batch_field(field) for field in schema])


def row_bytes(schema: StructType) -> int:
    """About the size that Spark assumes for a row."""
    kinds = (field.dataType.typeName() for field in schema.fields)
    return _ROW_BYTES + sum(_VALUE_BYTES.get(kind, 8) for kind in kinds)


def spark_batches(frame: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of `schema` as batches of `batch_schema(schema)`."""
    yield from batches_of(to_arrow(frame, schema))


def batches_of(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Arrow rows as batches of their `batch_schema`."""
    target = batch_schema(rows.schema)
    columns = [_convert(c, f.type) for c, f in zip(rows.columns, target, strict=True)]
    yield from pa.Table.from_arrays(columns, schema=target).to_batches(_BATCH_ROWS)


def arrow_schema_of(schema: StructType, table: str) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows.

    Raises `InvalidError`, naming the columns whose type has no Arrow equivalent.
    """
    try:
        return to_arrow_schema(schema)
    except PySparkException:
        wrong = ", ".join(
            f"{field.name!r} is {field.dataType.simpleString()}"
            for field in schema.fields
            if not _has_arrow_type(StructType([field]))
        )
        raise InvalidError(
            f"table {table}: the DataFrame has columns of unsupported types: {wrong}; cast or "
            "drop them"
        ) from None


def _has_arrow_type(schema: StructType) -> bool:
    try:
        to_arrow_schema(schema)
    except PySparkException:
        return False
    return True


def _batch_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _batch_type(field.type), nullable=True)


def _batch_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", tz=data_type.tz)
    if pa.types.is_time(data_type):
        return pa.time64("ns")
    if pa.types.is_map(data_type):
        key = pa.field("key", _batch_type(data_type.key_type), nullable=False)
        return pa.map_(key, _batch_field(data_type.item_field.with_name("value")))
    if pa.types.is_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return pa.list_(_batch_field(data_type.value_field.with_name("element")))
    if pa.types.is_struct(data_type):
        return pa.struct([_batch_field(member) for member in data_type])
    return data_type


def _convert(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(target):
        return column
    if pa.types.is_timestamp(target) and column.type.unit == "ns":
        # Spark rounds down, but a cast would round towards 1970.
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(target, safe=False)
