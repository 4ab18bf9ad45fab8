"""A feed into a table of Keytide, and tables of Keytide into Spark's own.

Nothing of Keytide is imported here: Spark finds the format by its name.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
FEED, LAKE = spark.conf.get("shop.feed"), spark.conf.get("shop.lake")

# Upserts: a row takes the place of the one with its key. Each batch is committed once.
dp.create_sink("orders", "keytide", {"path": f"{LAKE}/shop.db/orders"})


@dp.append_flow(target="orders")
def incoming() -> DataFrame:
    """What comes, in any order: the table's sequence field says what is newest."""
    return spark.readStream.schema("id LONG, status STRING, version LONG").json(FEED)


@dp.materialized_view
def customers_by_country() -> DataFrame:
    """A table of Keytide, counted anew in each run."""
    customers = spark.read.format("keytide").load(f"{LAKE}/shop.db/customers")
    return customers.groupBy("country").count()


@dp.table
def customer_changes() -> DataFrame:
    """Each change of a table of Keytide, told once, with its kind."""
    changes = spark.readStream.format("keytide").option("readChangeFeed", "true")
    return changes.load(f"{LAKE}/shop.db/customers")
