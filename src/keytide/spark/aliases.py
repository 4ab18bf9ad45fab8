"""Names that a SELECT gives to its columns, which later columns of it refer to.

Spark calls them lateral column aliases. A session can switch them off, and Sail does not have them.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from sqlglot import exp

from keytide.spark.connect import is_apache_spark

__all__ = ["knows_aliases", "without_aliases"]

_SETTING = "spark.sql.lateralColumnAlias.enableImplicitResolution"


def knows_aliases(spark: SparkSession) -> bool:
    """Whether a column of a SELECT can refer to columns before it."""
    return is_apache_spark(spark) and spark.conf.get(_SETTING, "true") == "true"


def without_aliases(node: exp.Expr) -> exp.Expr:
    """Replace the names of columns that a SELECT itself defines by their expressions.

    REQUIRES: these names are not those of columns of its tables.
    """
    if isinstance(node, exp.Select):
        known: dict[str, exp.Expr] = {}
        for each in node.expressions:
            for column in list(each.find_all(exp.Column)):
                if not column.table and column.name in known:
                    column.replace(exp.paren(known[column.name].copy()))
            if isinstance(each, exp.Alias) and each.alias.startswith("$"):
                known[each.alias] = each.this
    return node
