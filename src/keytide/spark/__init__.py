"""Tables on Apache Spark: DataFrames, a data source, and streams.

Keytide needs no jar of its own: executors run the same Python kernels as a local process. The
modules `read_plans` and `dataframe_writes` implement `Scan.to_spark` and `Table.write`.
`data_source` is the data source `keytide`. `sessions` creates a session with the right settings,
and finds a Java runtime for it. `columns` translates types and conditions between Keytide and
Spark.

>>> spark = kt.spark.session()                                          # doctest: +SKIP
>>> lake.table("shop.orders").scan().to_spark(spark).show()             # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import typing

from keytide.base.process import library, require
from keytide.spark.worker import use_cores_of_task

use_cores_of_task()
library("pyspark", "spark", "Spark")
require("pandas", "spark", "Spark")  # pyspark imports it to convert rows to Python

if typing.TYPE_CHECKING:
    from keytide.spark.session_sql import register_lake
    from keytide.spark.sessions import register, session

__all__ = ["register", "register_lake", "session"]

_HOMES = {
    "register": "keytide.spark.sessions",
    "register_lake": "keytide.spark.session_sql",
    "session": "keytide.spark.sessions",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        # Spark's workers import this package, and need no session and no views.
        module = _HOMES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)
