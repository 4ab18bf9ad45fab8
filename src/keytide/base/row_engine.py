"""The engine for SQL expressions over in-memory rows: DuckDB with one thread."""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["row_engine"]


@lru_cache(maxsize=1)
def row_engine() -> duckdb.DuckDBPyConnection:
    """A connection without external access. Users create a cursor from it.

    With one thread, rows keep their order, and a Spark task has one core. Times are in UTC.
    """
    import duckdb  # imported here, because it takes long

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "enable_external_access": False,
        "temp_directory": "",  # otherwise a folder in the current one, for all to read
    }
    connection = duckdb.connect(config=settings)
    connection.execute("SET GLOBAL TimeZone = 'UTC'; SET lock_configuration = true")
    return connection


# Threads of Spark's gateway outlive the interpreter, and so do modules that they refer to. DuckDB
# would report a connection there as leaked.
atexit.register(row_engine.cache_clear)
