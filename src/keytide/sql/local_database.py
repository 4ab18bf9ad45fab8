"""Empty DuckDB databases in memory, used again one after the other.

To open one takes longer than most queries, so one that was used is emptied and kept for the next
statement that wants the same settings. No two statements use one at the same time.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from keytide.sql.conditions import DUCKDB_MACRO

__all__ = ["local_database"]

_Settings = tuple[tuple[str, str], ...]

_IDLE_MAX = 2


@dataclass(frozen=True)
class _Database:
    settings: _Settings
    connection: duckdb.DuckDBPyConnection
    spill: Path
    """Where what does not fit in memory goes: a directory that is there from then on."""

    def empty(self) -> None:
        """Drop its tables."""
        found = self.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for (name,) in found:
            self.connection.execute(f'DROP TABLE "{name}"')


class _Idle:
    """Databases that nobody uses, of one process: threads of DuckDB do not live on in a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: list[_Database] = []

    def take(self, settings: _Settings) -> _Database | None:
        """One with some settings, which is the caller's until given back; None without any."""
        with self._lock:
            found = next((each for each in self._databases if each.settings == settings), None)
            if found is not None:
                self._databases.remove(found)
            return found

    def give_back(self, database: _Database) -> None:
        """Keep an empty one; the one that was idle for longest makes room for it."""
        with self._lock:
            self._databases.append(database)
            past = self._databases[:-_IDLE_MAX]
            del self._databases[:-_IDLE_MAX]
        for each in past:
            each.connection.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            databases, self._databases = self._databases, []
        for each in databases:
            each.connection.close()


_idle = _Idle()


def _after_fork() -> None:
    global _idle
    _forgotten.append(_idle)
    _idle = _Idle()


# What a fork took along waits for threads that are not there, so nothing may close it.
_forgotten: list[_Idle] = []
os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _idle.close())


@contextmanager
def local_database(
    allows_external_files: bool = False, **config: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database with nothing in it, which reads no variables of this process.

    Nor does it read files, unless they are allowed. What does not fit in memory goes to a directory
    of the database's own, since queries may read there. What the block leaves behind in it is gone
    afterwards, and so are registered rows.
    """
    settings = (("files", str(allows_external_files)), *sorted(config.items()))
    database = _idle.take(settings) or _opened(settings, allows_external_files, config)
    try:
        with database.connection.cursor() as connection:
            yield connection
        database.empty()
    except BaseException:
        # It may be what failed.
        database.connection.close()
        raise
    if database.spill.exists():
        database.connection.close()  # which deletes the directory
    else:
        _idle.give_back(database)


def _opened(settings: _Settings, allows_external_files: bool, config: dict[str, str]) -> _Database:
    spill = Path(tempfile.gettempdir()) / f"keytide-sql-{uuid.uuid4()}"
    given: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": str(spill),
        "python_enable_replacements": "false",
        **config,
    }
    connection = duckdb.connect(config=given)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute(DUCKDB_MACRO)
    if not allows_external_files:
        connection.execute(
            "SET enable_external_access = false; SET autoinstall_known_extensions = false; "
            "SET autoload_known_extensions = false"
        )
    connection.execute("SET lock_configuration = true")
    return _Database(settings, connection, spill)
