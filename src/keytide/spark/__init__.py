"""Tables on Apache Spark: DataFrames, a data source, and streams.

Keytide needs no jar of its own: executors run the same Python kernels as a local process. The
modules `read` and `write` implement `Scan.to_spark` and `Table.write`. `source` is the data source
`keytide`. `session` creates a session with the right settings, and `java` finds a Java runtime for
it. `types` and `predicate` translate types and conditions between Keytide and Spark.

>>> spark = kt.spark.session()                                          # doctest: +SKIP
>>> lake.table("shop.orders").scan().to_spark(spark).show()             # doctest: +SKIP
"""

from keytide.extras import library, require

library("pyspark", "spark", "Spark")
require("pandas", "spark", "Spark")  # pyspark imports it to convert rows to Python

from keytide.spark.lake_views import register_lake  # noqa: E402  # pyspark is there
from keytide.spark.session import register, session  # noqa: E402

__all__ = ["register", "register_lake", "session"]
