"""A pool of empty in-memory DuckDB databases.

Opening one takes longer than most queries. So a used database is emptied and kept for the next
statement with the same settings. No two statements use one at the same time.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from keytide.sql.pushdown import DUCKDB_MACRO

__all__ = ["local_database"]

_Settings = tuple[tuple[str, str], ...]

_IDLE_MAX = 2


@dataclass(frozen=True)
class _Database:
    settings: _Settings
    connection: duckdb.DuckDBPyConnection
    folder: Path
    """A directory that only this account can use."""

    @property
    def spill(self) -> Path:
        """The directory for data that does not fit in memory. DuckDB creates it."""
        return self.folder / "spill"

    def empty(self) -> None:
        """Drop its tables."""
        found = self.connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for (name,) in found:
            self.connection.execute(f'DROP TABLE "{name}"')

    def close(self) -> None:
        """Close it, and delete what it spilled."""
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Idle:
    """The idle databases of one process. DuckDB's threads do not survive a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: list[_Database] = []

    def take(self, settings: _Settings) -> _Database | None:
        """Take a database with these settings out of the pool. None if there is none."""
        with self._lock:
            found = next((each for each in self._databases if each.settings == settings), None)
            if found is not None:
                self._databases.remove(found)
            return found

    def give_back(self, database: _Database) -> None:
        """Return an empty database.

        If there are too many, the one that was idle longest is closed.
        """
        with self._lock:
            self._databases.append(database)
            past = self._databases[:-_IDLE_MAX]
            del self._databases[:-_IDLE_MAX]
        for each in past:
            each.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            databases, self._databases = self._databases, []
        for each in databases:
            each.close()


_idle = _Idle()


def _after_fork() -> None:
    global _idle
    _forgotten.append(_idle)
    _idle = _Idle()


# Databases copied by a fork would wait for threads that do not exist, so they are never closed.
_forgotten: list[_Idle] = []
os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _idle.close())


@contextmanager
def local_database(
    allows_external_files: bool = False, **config: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to an empty database, which cannot read variables of this process.

    It cannot read files either, unless allowed. Data that does not fit in memory is spilled to a
    directory of its own, because queries can read there. No other account can open it. After the
    block, everything in the database is dropped, including registered rows.
    """
    settings = (("files", str(allows_external_files)), *sorted(config.items()))
    database = _idle.take(settings)
    if database is not None and not database.folder.is_dir():  # cleared as an old temporary file
        database.close()
        database = None
    database = database or _opened(settings, allows_external_files, config)
    try:
        with database.connection.cursor() as connection:
            yield connection
        database.empty()
    except BaseException:
        # The connection itself may have failed.
        database.close()
        raise
    if database.spill.exists():
        database.close()
    else:
        _idle.give_back(database)


def _opened(settings: _Settings, allows_external_files: bool, config: dict[str, str]) -> _Database:
    folder = Path(tempfile.mkdtemp(prefix="keytide-sql-"))
    given: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": str(folder / "spill"),
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
    return _Database(settings, connection, folder)
