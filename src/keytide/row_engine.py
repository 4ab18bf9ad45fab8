"""The engine that computes SQL over rows that are at hand: DuckDB on one thread."""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["row_engine"]


@lru_cache(maxsize=1)
def row_engine() -> duckdb.DuckDBPyConnection:
    """A connection that reaches nothing outside; whoever uses it takes a cursor of it.

    One thread: rows stay in their order, and a task of Spark has one core. Times are in UTC.
    """
    import duckdb  # here, for it takes long to load

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "enable_external_access": False,
    }
    connection = duckdb.connect(config=settings)
    connection.execute("SET GLOBAL TimeZone = 'UTC'; SET lock_configuration = true")
    return connection


# Threads of Spark's gateway outlive the interpreter, what they see of modules does too, and DuckDB
# reports a connection that it finds there as leaked.
atexit.register(row_engine.cache_clear)
