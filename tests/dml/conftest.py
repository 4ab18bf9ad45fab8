"""Databases for tests: a file of SQLite, and a server of PostgreSQL that is started once."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import SomeDatabase, started

from keytide.dml.database_dialects import PostgresDatabase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sqlite(tmp_path: Path) -> SomeDatabase:
    driver = pytest.importorskip("adbc_driver_sqlite.dbapi")
    path = tmp_path / "a base.db"
    path.touch()
    return SomeDatabase("sqlite", str(path), lambda place: driver.connect(place, autocommit=True))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server, without a database."""
    found = subprocess.run(
        ["sh", ROOT / "scripts/postgres-bin.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no PostgreSQL: {found.stderr.strip()}")
    # Not among the other temporary files: the server's user may not come there.
    folder = Path(tempfile.mkdtemp(prefix="keytide-pg-", dir="/tmp"))
    try:
        with started(Path(found.stdout.strip()), folder) as address:
            yield address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[SomeDatabase]:
    """A database that is empty again for each test."""
    pytest.importorskip("adbc_driver_postgresql.dbapi")
    server = SomeDatabase(
        "postgres", f"{postgres_server}/postgres", lambda place: PostgresDatabase(place).connect()
    )
    yield server
    schemas = server.rows(
        "SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^pg_' "
        "AND nspname <> 'information_schema'"
    )
    server.run(*(f'DROP SCHEMA "{name}" CASCADE' for (name,) in schemas), "CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> SomeDatabase:
    """Either of them."""
    found: SomeDatabase = request.getfixturevalue(request.param)
    return found
