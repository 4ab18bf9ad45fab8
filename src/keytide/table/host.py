"""Hosts that carry tasks out elsewhere.

Tables know that Spark exists, not how it works: when a Spark object shows up, its layer is
loaded by name and given the work. The core so never imports pyspark.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__all__ = ["is_spark_dataframe", "spark_reader", "spark_sql", "spark_writer", "sql_door"]


def is_spark_dataframe(data: Any) -> bool:
    """Whether `data` comes from pyspark, classic or Connect."""
    return type(data).__module__.split(".")[0] == "pyspark"


def spark_reader() -> ModuleType:
    """The module that reads scans on Spark. Raises ImportError without the `spark` extra."""
    return importlib.import_module("keytide.spark.read")


def spark_writer() -> ModuleType:
    """The module that writes Spark DataFrames. Raises ImportError without the `spark` extra."""
    return importlib.import_module("keytide.spark.write")


def spark_sql() -> ModuleType:
    """The module that runs SQL on Spark. Raises ImportError without the `spark` extra."""
    return importlib.import_module("keytide.spark.sql")


def sql_door() -> ModuleType:
    """The module that runs SQL texts; most users of a table never load it."""
    return importlib.import_module("keytide.sql.execute")
