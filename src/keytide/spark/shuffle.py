"""Shuffles that bring the rows of each place to one task."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from keytide.spark.connect import is_apache_spark

__all__ = ["brought_together"]


def brought_together(rows: DataFrame, places: int, by: Column) -> DataFrame:
    """The rows in `places` partitions. Those of one place, a number from 0, are in one partition.

    In Apache Spark, each place has a partition of its own.
    """
    if is_apache_spark(rows.sparkSession):
        return rows.repartitionById(places, by)
    return rows.repartition(places, by)
