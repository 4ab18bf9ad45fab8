"""Schema evolution of tables when DataFrames are written to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from keytide.catalogs.growing import grown
from keytide.commit.author import Author
from keytide.definition.growth import growth
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.snapshot.stored import PinnedTable, StoredTable
from keytide.spark.predicate import column
from keytide.spark.types import arrow_schema_of, spark_schema
from keytide.spark.write import check_frame, with_partition
from keytide.write.overwriting import partition_to_replace
from keytide.write.padded_rows import padded_schema
from keytide.write.writable import writable_view

__all__ = ["grow", "grown_for"]


def grown_for(
    table: StoredTable,
    df: DataFrame,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[PinnedTable, DataFrame]:
    """As `keytide.catalogs.growing.grown_for`.

    Types are checked first, values while they are written. Runs no job.
    """
    pinned = table.pinned()
    spec = partition_to_replace(writable_view(pinned), partition)
    df = df if spec is None else with_partition(df, spec)
    pinned = grow(pinned, df.schema, author)
    return pinned, _padded(df, pinned.schema, table.name)


def grow(pinned: PinnedTable, columns: StructType, author: Author | None = None) -> PinnedTable:
    """A table that accepts rows with these columns. Raises as `Table.write` does."""
    found = arrow_schema_of(columns, pinned.name)

    def check(schema: TableSchema) -> None:
        options = TableOptions.parse(schema.options)
        check_frame(padded_schema(found, schema, options), schema, options, pinned.name)

    return grown(pinned, partial(growth, columns=found, table=pinned.name), check, author)


def _padded(df: DataFrame, schema: TableSchema, table: str) -> DataFrame:
    """A DataFrame with missing columns added, as `padded` does for Arrow."""
    found = arrow_schema_of(df.schema, table)
    target = padded_schema(found, schema, TableOptions.parse(schema.options))
    if target.equals(found):
        return df
    known = {field.name: field.dataType for field in df.schema.fields}
    return df.select(
        *(
            _as_type(column(f.name), known[f.name], f.dataType).alias(f.name)
            if f.name in known
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in spark_schema(target).fields
        )
    )


def _as_type(value: Column, found: DataType, target: DataType) -> Column:
    if isinstance(found, StructType) and isinstance(target, StructType):
        known = {field.name: field.dataType for field in found.fields}
        members = (
            _as_type(value.getField(f.name), known[f.name], f.dataType).alias(f.name)
            if f.name in known
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in target.fields
        )
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(found, ArrayType) and isinstance(target, ArrayType):
        element, wide = found.elementType, target.elementType
        return F.transform(value, lambda each: _as_type(each, element, wide))
    if isinstance(found, MapType) and isinstance(target, MapType):
        item, wide = found.valueType, target.valueType
        return F.transform_values(value, lambda _, each: _as_type(each, item, wide))
    return value.cast(target)
