"""A federated table on a server of PostgreSQL: histories, and several writers at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from databases import SomeDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt

KEYS = kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit")
COLUMNS = "k INTEGER NOT NULL, w BIGINT, d BOOLEAN, v TEXT"
# What the contract says, in the server's own words.
FRESHEST = (
    "SELECT k, w, v FROM (SELECT DISTINCT ON (k) * FROM t ORDER BY k, w DESC NULLS LAST, "
    "d DESC NULLS LAST, v DESC NULLS LAST) f WHERE d IS NOT TRUE ORDER BY k"
)


def lake_at(folder: Path, place: str, spark: Any = None) -> kt.Lake:
    lake = kt.connect(folder / "lake", spark=spark)
    lake.attach("far", place, format="postgresql", tables={"t": KEYS})
    return lake


def far_rows(lake: kt.Lake) -> list[tuple[Any, ...]]:
    rows = lake.sql("SELECT k, w, v FROM far.t").to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_changes_are_appended_and_the_freshest_version_is_the_row(
    postgres: SomeDatabase, tmp_path: Path
) -> None:
    postgres.run(f"CREATE TABLE t ({COLUMNS})")
    lake = lake_at(tmp_path, postgres.place)
    lake.sql("INSERT INTO far.t VALUES (1, 1, NULL, 'a'), (2, 1, NULL, 'b'), (3, 1, NULL, 'c')")
    assert lake.sql("UPDATE far.t SET v = 'z', w = w + 1 WHERE k = 1").row_count == 1
    assert lake.sql("UPDATE far.t SET d = TRUE, w = w + 1 WHERE v = 'b'").row_count == 1
    merged = lake.sql(
        "MERGE INTO far.t t USING (SELECT 3 AS k UNION ALL SELECT 4) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = 'm', w = t.w + 1 "
        "WHEN NOT MATCHED THEN INSERT (k, w, v) VALUES (s.k, 1, 'n')"
    )
    assert merged.row_count == 2
    assert far_rows(lake) == [(1, 2, "z"), (3, 2, "m"), (4, 1, "n")] == postgres.rows(FRESHEST)
    assert postgres.rows("SELECT count(*) FROM t") == [(7,)]
    with pytest.raises(kt.InvalidError, match="not above"):
        lake.sql("UPDATE far.t SET v = 'late', w = w")
    with pytest.raises(kt.InvalidError, match=r"NOT NULL|primary key"):
        lake.table("far.t").write([{"k": None, "w": 1, "d": None, "v": ""}])
    assert postgres.rows("SELECT count(*) FROM t") == [(7,)]


KEY, TEXT = st.integers(0, 3), st.sampled_from("abc")
CHANGES = st.one_of(
    st.builds("INSERT INTO {{}} VALUES ({}, {}, NULL, '{}')".format, KEY, st.integers(0, 99), TEXT),
    st.builds("UPDATE {{}} SET v = '{}', w = w + 1 WHERE k >= {}".format, TEXT, KEY),
    st.builds("UPDATE {{}} SET k = {}, w = w + 50 WHERE k = {}".format, KEY, KEY),
    st.builds("UPDATE {{}} SET d = TRUE, w = w + 1 WHERE v = '{}'".format, TEXT),
)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(CHANGES, min_size=2, max_size=6))
def test_history_gives_the_rows_that_it_gives_in_a_table_of_the_lake(
    postgres: SomeDatabase, tmp_path_factory: pytest.TempPathFactory, changes: list[str]
) -> None:
    postgres.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({COLUMNS})")
    lake = lake_at(tmp_path_factory.mktemp("history"), postgres.place)
    lake.sql(
        "CREATE TABLE near (k INT, w BIGINT, d BOOLEAN, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('watermark.key' = 'w', 'tombstone.key' = 'd', 'upsert.dml-watermark' = 'explicit')"
    )
    for change in changes:
        told = [outcome(lake, change.format(name)) for name in ("far.t", "near")]
        assert told[0] == told[1], change
    near = lake.sql("SELECT k, w, v FROM near ORDER BY k").to_pylist()
    # Two inserts may tie, and then nobody knows which came later.
    if len({*postgres.rows("SELECT k, w FROM t")}) == len(postgres.rows("SELECT k FROM t")):
        assert far_rows(lake) == [tuple(row.values()) for row in near] == postgres.rows(FRESHEST)


def outcome(lake: kt.Lake, text: str) -> object:
    try:
        return lake.sql(text).row_count
    except kt.KeytideError as error:
        return type(error)


WRITER = """
import sys
import keytide as kt
folder, place, number = sys.argv[1:]
lake = kt.connect(folder)
keys = kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit")
lake.attach("far", place, format="postgresql", tables={"t": keys})
for turn in range(5):
    at = 10 * (turn + 1) + int(number)
    lake.sql(f"INSERT INTO far.t VALUES ({turn % 3}, {at}, NULL, 'i{number}')")
    lake.sql(f"UPDATE far.t SET v = 'u{number}', w = greatest(w + 1, {at}) "
             f"WHERE k < 3 AND k <> {turn % 3}")
"""


@pytest.mark.takes_turns
def test_several_processes_append_at_once_and_all_readers_see_the_freshest(
    postgres: SomeDatabase, tmp_path: Path
) -> None:
    postgres.run(f"CREATE TABLE t ({COLUMNS})")
    command = [sys.executable, "-c", WRITER, tmp_path / "lake", postgres.place]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(2)]
    for turn in range(10):  # a client of the server's own is a third one
        postgres.run(f"INSERT INTO t VALUES ({turn % 3}, {1000 + turn}, {turn > 8}, 'own')")
    assert [writer.wait(120) for writer in writers] == [0, 0]
    rows = postgres.rows(FRESHEST)
    assert far_rows(lake_at(tmp_path, postgres.place)) == rows
    assert postgres.rows("SELECT count(*) FROM t WHERE v LIKE 'i%' OR v = 'own'") == [(20,)]


@pytest.mark.takes_turns
@pytest.mark.spark
def test_job_of_spark_and_a_process_append_at_once(
    spark: Any, postgres: SomeDatabase, tmp_path: Path
) -> None:
    postgres.run(f"CREATE TABLE t ({COLUMNS})")
    lake = lake_at(tmp_path, postgres.place, spark)
    table = lake.table("far.t")
    assert isinstance(table, kt.FederatedTable)
    command = [sys.executable, "-c", WRITER, tmp_path / "lake", postgres.place, "1"]
    writer = subprocess.Popen(command)
    rows = spark.range(100).selectExpr(
        "CAST(id AS INT) k", "id + 1 AS w", "CAST(NULL AS BOOLEAN) d", "'s' AS v"
    )
    assert table.write(rows) == kt.AppendResult(100, None)
    assert lake.sql("UPDATE far.t SET v = 'z', w = w + 7 WHERE k >= 90").row_count == 10
    assert lake.sql("UPDATE far.t SET d = TRUE, w = w + 7 WHERE k = 95").row_count == 1
    merged = (
        table.merge(rows.selectExpr("k + 95 AS k"), "target.k = source.k AND target.k >= 90")
        .when_matched_update({"v": "'m'", "w": "target.w + 1"})
        .when_not_matched_insert({"k": "source.k", "w": "1", "v": "'n'"}, "source.k < 102")
        .execute()
    )
    assert merged.rows == 4 + 3  # 96 to 99 match; 95, which is deleted, 100 and 101 do not
    assert writer.wait(120) == 0
    expected = postgres.rows(FRESHEST)
    assert far_rows(lake) == far_rows(lake_at(tmp_path, postgres.place)) == expected
    assert {k: v for k, _, v in expected if k >= 94} == {
        94: "z", 96: "m", 97: "m", 98: "m", 99: "m", 100: "n", 101: "n",
    }  # fmt: skip
