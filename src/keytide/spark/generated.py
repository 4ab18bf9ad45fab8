"""Generated columns that must be known before rows are distributed to tasks.

A task computes the generated columns of the rows that it writes. If rows are first grouped by
partition and bucket, the columns that determine partition and bucket are computed before that, by
the same engine as in tasks. Spark might evaluate an expression differently.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from keytide.definition.generated import GeneratedColumn, generated_columns
from keytide.errors import InvalidError
from keytide.predicate.values.columns import convert_column
from keytide.snapshot.view import TableView
from keytide.spark.predicate import column
from keytide.spark.types import spark_schema
from keytide.types import arrow_schema
from keytide.write.generated import computed_values

__all__ = ["with_placing_columns"]


def with_placing_columns(rows: DataFrame, view: TableView) -> DataFrame:
    """Fill the generated partition and bucket columns where they are missing or NULL.

    A row for which one cannot be computed can go to any task. Writing it reports the error.
    """
    placing = {*view.schema.partition_keys, *(field.name for field in view.bucket_fields)}
    for made in generated_columns(view.schema, view.options):
        name = made.field.name
        if name in placing and set(made.columns) <= set(rows.columns):
            computed = _by_udf(made, view)
            if name in rows.columns:
                computed = F.coalesce(column(name), computed)
            rows = rows.withColumn(name, computed)
    return rows


def _by_udf(made: GeneratedColumn, view: TableView) -> Column:
    def compute(*columns: pa.Array) -> pa.Array:
        nothing = pa.nulls(len(columns[0]), made.field.type.to_arrow())
        try:
            given = {
                field.name: convert_column(pa.chunked_array([values]), field, view.name)
                for field, values in zip(made.read, columns, strict=True)
            }
            given[made.field.name] = pa.chunked_array([nothing])
            found, _ = computed_values(made, given, view.schema, view.name)
        except InvalidError:
            return nothing
        return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)

    type_ = spark_schema(arrow_schema([made.field])).fields[0].dataType
    return F.arrow_udf(compute, type_)(*[column(name) for name in made.columns])
