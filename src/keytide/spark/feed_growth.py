"""Schema evolution of tables that are fed by a change feed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame

from keytide.catalogs.growing import grown
from keytide.commit.author import Author
from keytide.feeds.feed import FeedSpec
from keytide.feeds.infer import Sample
from keytide.feeds.outgrown import feed_growth, together
from keytide.snapshot.stored import PinnedTable
from keytide.spark.errors import on_driver
from keytide.spark.feed_files import MESSAGE
from keytide.spark.place import bytes_of_rows, place_of
from keytide.spark.types import spark_schema
from keytide.types import Field, parse_sql_type
from keytide.write.writable import writable_view

__all__ = ["grown_with"]

_FOUND = pa.schema([("name", pa.string()), ("type", pa.string())])


def grown_with(
    table: PinnedTable, messages: DataFrame, spec: FeedSpec, author: Author
) -> PinnedTable:
    """Add the columns that the messages of a batch need. `spec` describes the feed before that.

    Raises what `grown` raises.
    """
    brought = together(_brought(table, messages.select(MESSAGE), spec))
    return grown(table, partial(feed_growth, brought=brought), author=author)


def _brought(table: PinnedTable, messages: DataFrame, spec: FeedSpec) -> list[Field]:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = Sample(batch.column(MESSAGE), spec.format).brought(spec)
            columns = [[f.name for f in found], [f.type.sql() for f in found]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, pa.string()) for c in columns], schema=_FOUND
            )

    limit = writable_view(table).options.driver_work_bytes_max
    if place_of(messages.sparkSession, limit, bytes_of_rows(messages)).is_driver:
        with on_driver():
            batches = messages.toArrow().to_batches()
        rows = pa.Table.from_batches(look(batches), _FOUND).to_pylist()
    else:
        found = messages.mapInArrow(look, spark_schema(_FOUND)).distinct().collect()
        rows = sorted((row.asDict() for row in found), key=lambda row: str(row["name"]))
    return [Field(-1, row["name"], parse_sql_type(row["type"])) for row in rows]
