"""DuckDB with its extensions reads a published table as the page about publishing shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import duckdb_reader
import keytide as kt
from pages import PAGES, Changed, blocks_of

MARK = "run with DuckDB's extensions"


def test_duckdb_reads_a_table_as_the_page_shows(tmp_path: Path) -> None:
    if not duckdb_reader.is_here():
        pytest.skip("make interop-env brings DuckDB's extensions")
    lake = kt.connect(tmp_path / "lake")
    lake.sql("""
        CREATE TABLE orders (id INT, PRIMARY KEY (id) NOT ENFORCED)
        WITH ('publish' = 'delta,iceberg', 'upsert.mode' = 'full');
        INSERT INTO orders VALUES (1), (2)
    """)
    [code] = [block.code for block in blocks_of(PAGES / "publishing.md") if block.mark == MARK]
    queries = [line.partition(";")[0] for line in Changed(tmp_path)(code).splitlines()]
    assert len(queries) == 2
    for query in queries:
        rows = duckdb_reader.the_process().query(query)
        assert sorted(rows["id"].to_pylist()) == [1, 2]
