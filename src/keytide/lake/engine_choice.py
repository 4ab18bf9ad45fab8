"""Choice of the SQL engine for a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keytide.sql.query_engine import Engine


def engine_of(spark: Any, allows_external_files: bool) -> Engine:
    """The Spark engine if there is a session, otherwise DuckDB in this process.

    Raises `SetupError` when the extra `spark` is not installed.
    """
    if spark is not None:
        from keytide.spark.session_sql import SparkEngine

        return SparkEngine(spark)
    from keytide.sql.local_engine import LocalEngine

    return LocalEngine(allows_external_files)
