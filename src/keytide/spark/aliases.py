"""Names that a SELECT gives to its columns, which later columns of it refer to.

Spark calls them lateral column aliases. A session can switch them off, and Sail does not have them.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from keytide.spark.connect import is_apache_spark

__all__ = ["knows_aliases"]

_SETTING = "spark.sql.lateralColumnAlias.enableImplicitResolution"


def knows_aliases(spark: SparkSession) -> bool:
    """Whether a column of a SELECT can refer to columns before it."""
    return is_apache_spark(spark) and spark.conf.get(_SETTING, "true") == "true"
