"""SQL on Spark: queries over scans, and writes that never leave the executors."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keytide as kt
from table_rows import answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(warehouse: str, spark: SparkSession) -> kt.Lake:
    lake = kt.connect(warehouse, spark=spark)
    lake.sql(
        """
        CREATE TABLE t (id INT, v STRING, n DECIMAL(9, 2), m MAP<STRING, INT>, r ROW<x INT>,
          PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2');
        INSERT INTO t VALUES (1, 'a', 1.5, MAP['k', 1], ROW(7)), (2, 'b', 2.5, NULL, NULL);
        INSERT INTO t (id, v) VALUES (2, 'c')
        """
    )
    return lake


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id, v FROM t ORDER BY id", [(1, "a"), (2, "c")]),
        ("SELECT v FROM t VERSION AS OF 1 WHERE id = 2", [("b",)]),
        ("SELECT v FROM t /*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE id = 2", [("b",)]),
        ("SELECT count(*) FROM t a JOIN t b ON a.id < b.id", [(1,)]),
        (
            "SELECT m['k'], r.x, ARRAY[1, 2][1], MAP['z', 3]['z'] FROM t WHERE id = 1",
            [(1, 7, 2, 3)],
        ),
        ("SELECT commit_kind FROM t$snapshots WHERE snapshot_id = 2", [("APPEND",)]),
        ("WITH q AS (SELECT id FROM t) SELECT sum(id) FROM q", [(3,)]),
    ],
)
def test_query_gives_the_rows_of_the_local_engine(
    lake: kt.Lake, warehouse: str, text: str, expected: list[tuple[Any, ...]]
) -> None:
    assert answer(lake, text) == expected
    assert answer(kt.connect(warehouse), text) == expected


def test_rows_of_a_query_are_inserted_by_the_executors(lake: kt.Lake) -> None:
    lake.sql("INSERT INTO t (id, v, n) SELECT id + 10, upper(v), id FROM t")
    assert answer(lake, "SELECT id, v, n FROM t WHERE id > 10 ORDER BY id") == [
        (11, "A", 1),
        (12, "C", 2),
    ]


def test_table_is_made_of_a_query_and_overwritten_by_another(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE u (PRIMARY KEY (id) NOT ENFORCED) AS SELECT id, v FROM t")
    assert answer(lake, "SELECT * FROM u ORDER BY id") == [(1, "a"), (2, "c")]
    lake.sql("INSERT OVERWRITE u SELECT id, v FROM t WHERE id = 1")
    assert answer(lake, "SELECT * FROM u") == [(1, "a")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT nobody FROM t", "line 1, column 8"),
        ("INSERT INTO t (id, n) SELECT id, v FROM t", "column 'n'"),
        ("INSERT INTO t (id) SELECT id, v FROM t", "2 columns"),
        ("INSERT INTO t (id, v) SELECT if(id = 1, NULL, id), v FROM t", "'id'"),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(
    lake: kt.Lake, text: str, message: str
) -> None:
    before = len(lake.table("t").snapshots())
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(text)
    assert message in str(caught.value)
    assert len(lake.table("t").snapshots()) == before


def test_views_of_queries_leave_no_trace_in_the_session(lake: kt.Lake, spark: SparkSession) -> None:
    result = lake.sql("SELECT * FROM t")
    assert [v.name for v in spark.catalog.listTables() if v.name.startswith("keytide_")] == []
    assert result.to_spark().count() == 2


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM text.`{}`",
        "INSERT INTO t (id, v) SELECT 9, value FROM text.`{}`",
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
        "SELECT * FROM IDENTIFIER('text.`{}`')",
        "SELECT TRANSFORM(v) USING 'cat {}' FROM t",
        "SELECT * FROM t FOR UPDATE",
        "DELETE FROM t LIMIT 1",
    ],
)
def test_query_that_leaves_the_lake_or_loses_a_clause_is_refused(
    lake: kt.Lake, tmp_path: Path, text: str
) -> None:
    (tmp_path / "secret.txt").write_text("hidden\n", encoding="utf-8")
    with pytest.raises(kt.InvalidError, match="line 1"):
        lake.sql(text.format(tmp_path / "secret.txt"))
    assert answer(lake, "SELECT count(*) FROM t") == [(2,)]


def test_files_are_read_where_the_lake_is_opened_for_it(
    lake: kt.Lake, warehouse: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "seen.txt").write_text("seen\n", encoding="utf-8")
    opened = kt.connect(warehouse, spark=spark, allow_external_files=True)
    opened.sql(f"INSERT INTO t (id, v) SELECT 9, value FROM text.`{tmp_path}/seen.txt`")
    assert answer(lake, "SELECT v FROM t WHERE id = 9") == [("seen",)]


def test_update_sets_what_a_query_gives(lake: kt.Lake) -> None:
    lake.sql("UPDATE t SET v = (SELECT max(v) FROM t), n = (SELECT count(*) FROM t)")
    assert {row[1:] for row in answer(lake, "SELECT id, v, n FROM t")} == {("c", Decimal("2.00"))}
    lake.sql("UPDATE t SET n = (SELECT count(*) FROM t AS u WHERE u.id <= t.id)")
    assert answer(lake, "SELECT n FROM t ORDER BY id") == [(Decimal("1.00"),), (Decimal("2.00"),)]


def test_create_table_as_that_fails_leaves_no_table(lake: kt.Lake) -> None:
    text = "CREATE TABLE u (PRIMARY KEY (k) NOT ENFORCED) AS SELECT nullif(id, {}) AS k, v FROM t"
    with pytest.raises(kt.KeytideError):
        lake.sql(text.format(2))
    assert lake.tables() == ["default.t"]
    assert lake.sql(text.format(3)).row_count == 2
    assert answer(lake, "SELECT k FROM u ORDER BY k") == [(1,), (2,)]


def test_query_that_fails_on_its_rows_is_an_error_of_keytide(lake: kt.Lake, warehouse: str) -> None:
    result = lake.sql("SELECT 1 / (id - 1) AS x FROM t")
    with pytest.raises(kt.InvalidError, match="DIVIDE_BY_ZERO"):
        result.to_arrow()
    for file in Path(warehouse).rglob("data-*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(kt.DataError, match=r"data-.*\.parquet"):
        lake.sql("SELECT id, v FROM t").to_arrow()


def test_names_of_nested_withs_are_their_own(spark: SparkSession, warehouse: str) -> None:
    text = (
        "WITH w AS (SELECT 1 AS n) SELECT n, "
        "(WITH w AS (SELECT n + 1 AS n FROM w) SELECT n FROM w) AS m, "
        "(WITH w AS (SELECT 7 AS n) SELECT n FROM w) AS o FROM w"
    )
    expected = [{"n": 1, "m": 2, "o": 7}]
    for lake in (kt.connect(warehouse), kt.connect(warehouse, spark)):
        assert lake.sql(text).to_pylist() == expected
