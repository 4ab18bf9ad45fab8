"""Tables on Apache Spark: DataFrames in and out, a data source, streams.

Nothing here needs a jar of ours: executors run the same Python kernels as a local process.
`read` and `write` carry `Scan.to_spark` and `Table.write` out; `source` is the data source
`keytide`; `session` makes a session in which all of it works, after `java` has found a runtime
for it; `types` and `predicate` translate between the two vocabularies.

>>> spark = kt.spark.session()                                          # doctest: +SKIP
>>> lake.table("shop.orders").scan().to_spark(spark).show()             # doctest: +SKIP
"""

from keytide.extras import library, require

library("pyspark", "spark", "Spark")
require("pandas", "spark", "Spark")  # pyspark loads it when rows come to Python

from keytide.spark.lake_views import register_lake  # noqa: E402  # pyspark is there
from keytide.spark.session import register, session  # noqa: E402

__all__ = ["register", "register_lake", "session"]
