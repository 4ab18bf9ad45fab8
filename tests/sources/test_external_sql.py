"""External tables in SQL: defined, told of, read beside others, and never changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from table_rows import answer

DEFINE = (
    "CREATE EXTERNAL TABLE {name} ({columns}PRIMARY KEY (k) NOT ENFORCED) USING parquet "
    "LOCATION '{folder}' COMMENT 'theirs' WITH ('watermark.key' = 'w', 'tombstone.key' = 'd')"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    path.mkdir()
    for number, rows in enumerate(
        [
            {"k": [1, 2], "w": [1, 1], "d": [None, None], "v": ["a", "b"]},
            {"k": [1, 2], "w": [2, 2], "d": [None, True], "v": ["A", None]},
        ]
    ):
        types = pa.schema([("k", "int32"), ("w", "int64"), ("d", "bool"), ("v", "string")])
        pq.write_table(pa.table(rows, schema=types), path / f"{number}.parquet")
    return path


@pytest.fixture
def lake(tmp_path: Path, folder: Path) -> kt.Lake:
    lake = kt.connect(tmp_path / "lake", allow_external_files=True)
    lake.sql(DEFINE.format(name="e", columns="", folder=folder))
    lake.sql("CREATE TABLE own (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    lake.sql("INSERT INTO own VALUES (1, 'mine'), (2, 'mine')")
    return lake


def test_definition_is_shown_as_it_was_made(lake: kt.Lake, folder: Path) -> None:
    columns = "k INT, w BIGINT, d BOOLEAN, v STRING, "
    lake.sql(DEFINE.format(name="given", columns=columns, folder=folder))
    for name in ("e", "given"):
        ((text,),) = answer(lake, f"SHOW CREATE TABLE {name}")
        assert "EXTERNAL" in str(text)
        lake.sql(f"DROP TABLE {name}")
        lake.sql(str(text))
        assert answer(lake, f"SHOW CREATE TABLE {name}") == [(text,)]
        assert answer(lake, f"SELECT v FROM {name}") == [("A",)]
    assert answer(lake, "SHOW TABLES") == [("default", n) for n in ("e", "given", "own")]


def test_if_not_exists_leaves_what_is_there(lake: kt.Lake, folder: Path) -> None:
    again = DEFINE.format(name="e", columns="", folder=folder)
    with pytest.raises(kt.AlreadyExistsError):
        lake.sql(again)
    lake.sql(again.replace("TABLE", "TABLE IF NOT EXISTS", 1))


def test_description_tells_keys_and_place(lake: kt.Lake, folder: Path) -> None:
    told = [row[:3] for row in answer(lake, "DESCRIBE EXTENDED e") if row[0] != "schema"]
    assert told == [
        ("k", "INT", "primary key"),
        ("w", "BIGINT", "watermark key"),
        ("d", "BOOLEAN", "tombstone key"),
        ("v", "STRING", ""),
        ("external.format", "parquet", "option"),
        ("watermark.key", "w", "option"),
        ("tombstone.key", "d", "option"),
        ("table", "default.e", "table"),
        ("comment", "theirs", "table"),
        ("primary key", "k", "table"),
        ("location", str(folder), "table"),
    ]
    assert answer(lake, "SHOW TBLPROPERTIES e") == [row[:2] for row in told[4:7]]


def test_query_joins_both_kinds_of_tables(lake: kt.Lake) -> None:
    query = "SELECT own.k, e.v, own.v AS mine FROM own LEFT JOIN default.e USING (k) ORDER BY own.k"
    assert answer(lake, query) == [(1, "A", "mine"), (2, None, "mine")]
    assert answer(
        lake, "WITH x AS (SELECT k FROM e) SELECT v FROM own WHERE k IN (SELECT k FROM x)"
    ) == [("mine",)]


def test_plan_tells_what_is_asked_before_and_after_the_merge(lake: kt.Lake, folder: Path) -> None:
    plan = [line for (line,) in answer(lake, "EXPLAIN SELECT v FROM e WHERE k = 1 AND w > 1")]
    assert plan == [
        f"external table default.e: parquet at {folder}",
        "read: 2 parts with 4 versions",
        "conditions before merging: `k` = 1",
        "conditions after merging: `w` > 1",
        "columns: k, w, v",
        "read by: `k` = 1 AND `w` > 1",
    ]


def test_rows_go_into_tables_of_the_lake(lake: kt.Lake) -> None:
    lake.sql(
        "MERGE INTO own USING e ON own.k = e.k WHEN MATCHED THEN UPDATE SET v = e.v "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert answer(lake, "SELECT * FROM own") == [(1, "A")]
    lake.sql("INSERT INTO own SELECT k + 10, v FROM e")
    lake.sql("CREATE TABLE copied AS SELECT * FROM e")
    assert answer(lake, "SELECT count(*) FROM own") == [(2,)]
    assert answer(lake, "SELECT k, w, v FROM copied") == [(1, 2, "A")]
    theirs = lake.table("e").scan().to_arrow()
    lake.table("own").merge(theirs, "target.k = source.k").when_matched_delete().execute()
    assert answer(lake, "SELECT * FROM own") == [(11, "A")]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO e VALUES (1, 1, false, 'x')",
        "INSERT OVERWRITE e VALUES (1, 1, false, 'x')",
        "DELETE FROM e WHERE k = 1",
        "UPDATE e SET v = 'x'",
        "MERGE INTO e USING own ON e.k = own.k WHEN MATCHED THEN DELETE",
        "EXPLAIN DELETE FROM e",
        "TRUNCATE TABLE e",
        "ALTER TABLE e SET ('read.memory' = '1 gb')",
        "ALTER TABLE e ADD COLUMN more INT",
        "CALL sys.compact('e')",
        "CALL sys.create_tag('e', 'x')",
        "CALL sys.create_branch('e', 'x')",
        "SHOW PARTITIONS e",
        "CREATE TABLE other LIKE e",
    ],
)
def test_every_other_statement_is_refused_by_the_same_words(
    lake: kt.Lake, folder: Path, statement: str
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    message = rf"default\.e is an external table, parquet at {folder}, .* read-only"
    with pytest.raises(kt.UnsupportedError, match=message):
        lake.sql(statement)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ('SELECT * FROM "e$files"', "no system tables and no read OPTIONS"),
        ("SELECT * FROM e /*+ OPTIONS('scan.snapshot-id' = '1') */", "no system tables"),
        ("SELECT * FROM e VERSION AS OF 1", "has no versions"),
        ("SELECT * FROM e TIMESTAMP AS OF '2026-01-01'", "reads by time"),
    ],
)
def test_what_a_read_cannot_be_told_is_refused(lake: kt.Lake, query: str, message: str) -> None:
    with pytest.raises(kt.UnsupportedError, match=message):
        lake.sql(query)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("USING parquet", "requires LOCATION"),
        ("LOCATION '/tmp'", "requires USING"),
        ("USING parquet USING csv LOCATION '/tmp'", "USING is given twice"),
        ("USING parquet LOCATION '/tmp' PARTITIONED BY (k)", "expected the end"),
        ("USING parquet LOCATION '/tmp' AS SELECT 1", "expected the end"),
    ],
)
def test_statement_that_does_not_parse_is_pointed_at(
    lake: kt.Lake, rest: str, message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(f"CREATE EXTERNAL TABLE x (PRIMARY KEY (k)) {rest}")


def test_compaction_of_a_database_passes_external_tables_over(lake: kt.Lake) -> None:
    told = {row["table"]: row["left_because"] for row in
            lake.sql("CALL sys.compact_database()").to_pylist()}  # fmt: skip
    assert told["default.own"] is None
    assert "external table" in told["default.e"]
