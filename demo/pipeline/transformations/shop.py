"""Loads a feed into a Keytide table, and reads Keytide tables into Spark's own tables.

This file does not import Keytide: Spark finds the format by its name.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
FEED, LAKE = spark.conf.get("shop.feed"), spark.conf.get("shop.lake")

# Upserts: a row replaces the row with the same key. Each batch is committed once.
dp.create_sink("orders", "keytide", {"path": f"{LAKE}/shop.db/orders"})


@dp.append_flow(target="orders")
def incoming() -> DataFrame:
    """The feed, in any order. The sequence field of the table decides which row is the latest."""
    return spark.readStream.schema("id LONG, status STRING, version LONG").json(FEED)


@dp.materialized_view
def customers_by_country() -> DataFrame:
    """The rows of a Keytide table, counted again in each run."""
    customers = spark.read.format("keytide").load(f"{LAKE}/shop.db/customers")
    return customers.groupBy("country").count()


@dp.table
def customer_changes() -> DataFrame:
    """Each change of a Keytide table, emitted once, with its row kind."""
    changes = spark.readStream.format("keytide").option("readChangeFeed", "true")
    return changes.load(f"{LAKE}/shop.db/customers")
