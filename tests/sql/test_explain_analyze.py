"""EXPLAIN ANALYZE of queries: what is told was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app
from keytide.dml.memory import MemoryConnector
from keytide.sql.engine_text import QueryAnalysis
from keytide.sql.grammar import parse_statements
from keytide.sql.local_engine import LocalEngine
from keytide.sql.relations import bind
from keytide.sql.statements import Explain, Query

TABLES = """
CREATE TABLE t (k INT, d STRING, v INT, PRIMARY KEY (k, d) NOT ENFORCED) PARTITIONED BY (d)
    WITH ('bucket' = '2', 'num-sorted-run.compaction-trigger' = '9');
INSERT INTO t SELECT range, 'a', range FROM range(100);
INSERT INTO t SELECT range, 'a', -range FROM range(50, 120);
INSERT INTO t SELECT range, 'b', range FROM range(30);
DELETE FROM t WHERE k = 60;
CREATE TABLE log (x INT);
INSERT INTO log VALUES (1), (2), (110);
"""


def analysis(lake: kt.Lake, text: str) -> QueryAnalysis:
    (query,) = parse_statements(text)
    assert isinstance(query, Query)
    return LocalEngine().analyze(bind(query, lake.catalog))


def lines(lake: kt.Lake, text: str) -> list[str]:
    """The lines that are told, without times."""
    told = lake.sql(f"EXPLAIN ANALYZE {text}").to_arrow()["plan"].to_pylist()
    return [re.sub(r"[\d,.]+ (?:ms|bytes(?= in))", "…", line) for line in told]


def test_lines_of_a_query_of_one_partition(lake: kt.Lake) -> None:
    assert lines(lake, "SELECT v FROM t WHERE d = 'b' AND v > 9")[:6] == [
        "query: 20 rows of … in …, computed by DuckDB",
        "  scan of default.t, snapshot 4: 20 rows in …",
        "    columns: d, v",
        "    read by: `d` = 'b' AND `v` > 9",
        "    planned in …",
        "    buckets: 2 of 4 read",
    ]


@pytest.mark.parametrize(
    ("text", "versions", "merged", "rows"),
    [
        ("SELECT count(*) FROM t", 201, 150, 149),
        ("SELECT v FROM t WHERE d = 'a'", 171, 120, 119),
        ("SELECT v FROM t WHERE d = 'b'", 30, 30, 30),
        ("SELECT * FROM t WHERE k = 70 AND d = 'a'", 2, 1, 1),
        ("SELECT * FROM t WHERE k = 60 AND d = 'a'", 3, 1, 0),
    ],
)
def test_versions_that_are_read_merged_and_given_are_counted(
    lake: kt.Lake, text: str, versions: int, merged: int, rows: int
) -> None:
    (table,) = analysis(lake, text).relations
    assert table.scan is not None
    assert (table.scan.versions, table.scan.merged, table.scan.rows) == (versions, merged, rows)


def test_numbers_of_files_are_those_of_the_files_that_were_opened(lake: kt.Lake) -> None:
    (table,) = analysis(lake, "SELECT v FROM t WHERE d = 'b'").relations
    stored = lake.sql("SELECT * FROM t$files WHERE partition = '{b}'").to_pylist()
    every = lake.sql("SELECT count(*) AS n FROM t$files").to_pylist()[0]["n"]
    scan = table.scan
    assert scan is not None
    assert scan.files == len(stored) > 0
    assert scan.file_bytes == sum(file["file_size_in_bytes"] for file in stored)
    assert scan.stored_rows == sum(file["record_count"] for file in stored) == 30
    assert scan.pruned == (("partition", every - len(stored)),)
    assert (scan.buckets, scan.there.buckets, scan.there.files) == (2, 4, every)


def test_query_that_has_enough_leaves_buckets_unread(lake: kt.Lake) -> None:
    found = analysis(lake, "SELECT * FROM t LIMIT 1")
    (table,) = found.relations
    assert table.scan is not None
    assert (found.rows, table.scan.buckets) == (1, 1)
    assert table.scan.files < table.scan.there.files


def test_each_mention_of_a_table_is_measured_by_itself(lake: kt.Lake) -> None:
    found = analysis(lake, "SELECT * FROM t JOIN log ON t.k = log.x JOIN log m USING (x)")
    assert [table.rows for table in found.relations] == [149, 3, 3]
    assert [table.reads for table in found.relations] == [1, 1, 1]
    assert all(table.seconds is not None and table.seconds > 0 for table in found.relations)
    assert found.seconds >= max(table.seconds or 0 for table in found.relations)


def test_rows_and_bytes_are_those_that_the_query_returns(lake: kt.Lake) -> None:
    query = "SELECT k, v FROM t ORDER BY k"
    rows = lake.sql(query).to_arrow()
    found = analysis(lake, query)
    assert (found.rows, found.bytes) == (rows.num_rows, rows.nbytes)


def test_older_snapshots_views_and_system_tables_are_told(lake: kt.Lake) -> None:
    lake.sql("CREATE VIEW late AS SELECT * FROM t WHERE k > 100")
    told = lines(lake, "SELECT * FROM t VERSION AS OF 1 JOIN late USING (k)")
    assert "  scan of default.t, snapshot 1: 100 rows in …" in told
    assert "  scan of default.t, snapshot 4: 19 rows in …" in told
    assert (
        lines(lake, "SELECT * FROM log$snapshots")[1]
        == "  system table default.log$snapshots: 1 row"
    )
    assert lines(lake, "SELECT 1 AS a")[1] == "  reads no table"


def test_tables_elsewhere_are_counted_and_timed(lake: kt.Lake, warehouse: str) -> None:
    memory = MemoryConnector()
    orders = pa.table({"id": [1, 2, 3]})
    memory.create_table("orders", orders.schema, ["id"])
    memory.insert("orders", orders)
    lake = kt.connect(warehouse, allow_external_files=True)
    lake.attach("mem", memory.connector)
    elsewhere = Path(f"{warehouse}-elsewhere")
    elsewhere.mkdir()
    pq.write_table(pa.table({"id": [1, 1, 2], "n": [1, 2, 3]}), elsewhere / "rows.parquet")
    lake.sql(
        f"CREATE EXTERNAL TABLE ext (PRIMARY KEY (id) NOT ENFORCED) USING parquet "
        f"LOCATION '{elsewhere}' WITH ('watermark.key' = 'n')"
    )
    told = lines(lake, "SELECT * FROM mem.orders JOIN ext USING (id)")
    assert told[1] == "  table mem.orders of connector memory: 3 rows in …"
    (external,) = (line for line in told if line.startswith("  external table default.ext"))
    assert external.endswith(": 2 rows in …")


def test_rows_that_the_engine_refuses_are_an_error_as_without_analyze(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match="the engine says: Conversion Error"):
        lake.sql("EXPLAIN ANALYZE SELECT CAST(d AS INT) FROM t")


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO log VALUES (9)",
        "CREATE TABLE made AS SELECT 1 AS a",
        "DROP TABLE log",
        "TRUNCATE TABLE log",
        "CALL sys.compact('log')",
        "ALTER TABLE log DROP COLUMN x",
    ],
)
def test_statement_that_is_neither_query_nor_change_of_rows_is_refused(
    lake: kt.Lake, text: str
) -> None:
    with pytest.raises(kt.UnsupportedError, match=f"EXPLAIN ANALYZE {text.split()[0]} is not"):
        lake.sql(f"EXPLAIN ANALYZE {text}")
    assert lake.sql("SELECT count(*) AS n FROM log").to_pylist() == [{"n": 3}]
    assert "default.made" not in lake.tables()


def test_analysis_is_told_at_the_command_line(lake: kt.Lake) -> None:
    asked = ["sql", "-w", lake.uri, "--format", "csv", "EXPLAIN ANALYZE SELECT * FROM log"]
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0
    assert "versions: 3 read, 3 after the merge" in ran.stdout


def test_statement_knows_that_it_is_analyzed() -> None:
    (statement,) = parse_statements("EXPLAIN ANALYZE SELECT 1")
    assert isinstance(statement, Explain)
    assert statement.analyze


@pytest.mark.spark
def test_query_on_spark_is_not_measured(lake: kt.Lake, spark: Any) -> None:
    with pytest.raises(kt.UnsupportedError, match=r"look at the query in the Spark UI"):
        kt.connect(lake.uri, spark=spark).sql("EXPLAIN ANALYZE SELECT * FROM log")
