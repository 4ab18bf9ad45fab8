"""Databases of DuckDB that are used again: nothing of one statement is there for the next."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import keytide
from keytide.sql import local_query as module
from keytide.sql.local_query import local_database


def instance(connection: duckdb.DuckDBPyConnection) -> str:
    """What tells the database behind a connection from others: the directory of its own."""
    ((found,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    return str(found)


def names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = connection.execute(
        "SELECT table_name FROM duckdb_tables() UNION ALL "
        "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    )
    return [name for (name,) in found.fetchall()]


def test_database_is_used_again_and_nothing_is_left_in_it() -> None:
    with local_database() as connection:
        first = instance(connection)
        connection.register("rows", pa.table({"a": [1]}))
        connection.execute('CREATE TABLE "copy" AS SELECT * FROM rows')
        connection.execute("CREATE TEMP TABLE seen AS SELECT 1 AS b")
        assert set(names(connection)) == {"rows", "copy", "seen"}
    with local_database() as connection:
        assert (instance(connection), names(connection)) == (first, [])


def test_random_numbers_of_one_statement_do_not_follow_from_a_seed_of_the_one_before() -> None:
    seen = set()
    for _ in range(3):
        with local_database() as connection:
            connection.execute("SELECT setseed(0.25)").fetchall()
        with local_database() as connection:
            seen |= {*connection.execute("SELECT random()").fetchall()}
    assert len(seen) == 3


def test_statements_at_the_same_time_have_databases_of_their_own() -> None:
    with local_database() as one, local_database() as other:
        assert instance(one) != instance(other)


def test_other_settings_are_another_database() -> None:
    with local_database() as connection:
        plain = instance(connection)
    with local_database(memory_limit="50MB", threads="1") as connection:
        ((threads,),) = connection.execute("SELECT current_setting('threads')").fetchall()
        assert (instance(connection) != plain, threads) == (True, 1)
    with local_database(allows_external_files=True) as connection:
        assert instance(connection) != plain


def test_database_of_a_block_that_failed_is_not_used_again() -> None:
    seen = []

    def fail() -> None:
        with local_database() as connection:
            seen.append(instance(connection))
            connection.execute("SELECT * FROM nothing_of_that_name")

    with pytest.raises(duckdb.Error):
        fail()
    with local_database() as connection:
        assert instance(connection) not in seen


def test_no_more_than_two_are_kept() -> None:
    barrier = threading.Barrier(4)

    def use() -> None:
        with local_database():
            barrier.wait(timeout=60)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(module._idle._databases) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_fork_has_databases_of_its_own(warehouse: str) -> None:
    lake = keytide.connect(warehouse)
    lake.sql("CREATE TABLE t (id BIGINT PRIMARY KEY NOT ENFORCED)")
    lake.sql("INSERT INTO t VALUES (1), (2)")
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 2}]
    child = os.fork()
    if child == 0:
        os._exit(0 if module._idle._databases == [] and Path(warehouse).is_dir() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
