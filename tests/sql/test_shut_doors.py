"""Ways to files outside of a lake that is not opened for them: all are shut, and none is forgotten.

A secret is beside the lake, in files of several formats and in a table. No statement may show it,
store it, or write anything there.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.options import SECTIONS

SECRET = "nobody-is-to-see-this"
ROWS = {"k": [1], "v": [SECRET], "w": [1]}
KEYED = "(k BIGINT, v STRING, w BIGINT, PRIMARY KEY (k) NOT ENFORCED)"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    pq.write_table(pa.table(ROWS), folder / "a.parquet")
    (folder / "a.csv").write_text(f"k,v,w\n1,{SECRET},1\n")
    table = kt.connect(tmp_path / "other").create_table(
        "t", pa.table(ROWS).schema, primary_key=["k"]
    )
    table.write(pa.table(ROWS))
    return folder


@pytest.fixture
def lake(tmp_path: Path, outside: Path) -> kt.Lake:
    """A lake with a table, an external table, and views of files that an open lake made."""
    path = tmp_path / "lake"
    opened = kt.connect(path, allow_external_files=True)
    opened.sql(f"CREATE TABLE t {KEYED}; INSERT INTO t VALUES (1, 'plain', 1)")
    opened.sql(f"CREATE VIEW of_csv AS SELECT * FROM read_csv('{outside}/a.csv')")
    opened.sql(f"CREATE VIEW of_parquet AS SELECT * FROM '{outside}/a.parquet'")
    opened.sql("CREATE VIEW of_view AS SELECT * FROM of_csv")
    (path / "inside").mkdir()
    pq.write_table(pa.table({**ROWS, "v": ["inside"]}), path / "inside/a.parquet")
    opened.sql(
        f"CREATE EXTERNAL TABLE e {KEYED} USING parquet LOCATION '{path}/inside' "
        "WITH ('watermark.key' = 'w')"
    )
    (path / "link").symlink_to(outside)
    return kt.connect(path)


DOORS = [
    # definitions that name a place
    "ALTER TABLE e SET ('external.location' = '{out}')",
    "ALTER TABLE t SET ('external.location' = '{out}')",
    "ALTER TABLE t SET ('path' = '{table}')",
    "ALTER TABLE t SET ('type' = 'external')",
    "ALTER TABLE e SET LOCATION '{out}'",
    "ALTER TABLE e SET ('external.option.catalog.uri' = 'sqlite:///{out}/x.db')",
    "CREATE TABLE n {keyed} LOCATION '{table}'",
    "CREATE TABLE n {keyed} USING parquet LOCATION '{out}'",
    "CREATE TABLE n {keyed} USING parquet OPTIONS (path '{out}')",
    "CREATE TABLE n {keyed} WITH ('path' = '{table}')",
    "CREATE TABLE n {keyed} WITH ('type' = 'external', 'external.location' = '{out}')",
    "CREATE TABLE n {keyed} WITH ('type' = 'format-table', 'path' = '{out}')",
    "CREATE TABLE n {keyed} WITH ('type' = 'object-table', 'object-location' = '{out}')",
    "CREATE TABLE n {keyed} WITH ('external.format' = 'parquet', 'external.location' = '{out}')",
    "CREATE TABLE n LIKE e WITH ('external.location' = '{out}')",
    "CREATE EXTERNAL TABLE n {keyed} USING parquet LOCATION '{lake}/inside' "
    "WITH ('watermark.key' = 'w', 'external.location' = '{out}')",
    "CREATE EXTERNAL TABLE n {keyed} USING parquet LOCATION '{lake}/inside' "
    "WITH ('watermark.key' = 'w', 'external.option.location' = '{out}')",
    "CREATE EXTERNAL TABLE n USING iceberg LOCATION '{lake}/inside' WITH "
    "('external.option.catalog.uri' = 'sqlite:///{out}/x.db', "
    "'external.option.catalog.type' = 'sql')",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING keytide LOCATION '{table}'",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING parquet LOCATION '{lake}/link'",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING parquet LOCATION 's3://bucket/folder'",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING parquet LOCATION 'memory://x/y'",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING postgresql LOCATION 'postgresql://h/d'",
    "CREATE EXTERNAL TABLE n (PRIMARY KEY (k)) USING sqlite LOCATION '{out}/x.db'",
    "CALL sys.adopt_parquet('n', '{out}', 'k')",
    "CALL sys.adopt_parquet('n', '{lake}/link', 'k')",
    "CALL sys.adopt_delta('n', 'file://{out}', 'k')",
    "CALL sys.adopt_iceberg('n', '{lake}/../outside', 'k')",
    "CALL sys.publish('t', '{out}')",
    # hints and table options of a read
    "SELECT * FROM e /*+ OPTIONS('external.location' = '{out}') */",
    "SELECT * FROM t /*+ OPTIONS('external.location' = '{out}') */",
    "SELECT * FROM t /*+ OPTIONS('path' = '{table}') */",
    "SELECT * FROM t /*+ OPTIONS('branch' = '../../../other/default.db/t') */",
    "SELECT * FROM t VERSION AS OF '../../../../other/default.db/t/snapshot/snapshot-1'",
    # views over files that an open lake made
    *(
        text.format(view=view, out="{out}")
        for view in ("of_csv", "of_parquet", "of_view")
        for text in (
            "SELECT * FROM {view}",
            "INSERT INTO t SELECT * FROM {view}",
            "CREATE TABLE n AS SELECT * FROM {view}",
            "CREATE VIEW n AS SELECT * FROM {view}",
            "EXPLAIN ANALYZE SELECT * FROM {view}",
            "UPDATE t SET v = (SELECT v FROM {view})",
            "DELETE FROM t WHERE w IN (SELECT w FROM {view})",
            "MERGE INTO t USING {view} AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET *",
            "MERGE WITH SCHEMA EVOLUTION INTO t USING {view} AS s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET *",
            "AUTO CDC INTO n FROM {view} KEYS (k) SEQUENCE BY w",
        )
    ),
    # functions and statements that read or write files
    *(
        f"SELECT * FROM {function}('{{out}}/a.{end}')"
        for end in ("csv", "parquet")
        for function in (
            "read_csv", "read_parquet", "parquet_scan", "read_json", "read_ndjson_objects",
            "read_text", "read_blob", "sniff_csv", "glob", "parquet_metadata", "parquet_schema",
            "parquet_kv_metadata", "read_duckdb", "system.main.read_csv", "delta_scan",
            "iceberg_scan", "which_secret", "st_read", "read_xlsx",
        )
    ),
    "SELECT * FROM '{out}/a.csv'",
    "SELECT * FROM '{lake}/link/a.csv'",
    "SELECT * FROM '{lake}/inside/a.parquet'",
    "SELECT * FROM 's3://bucket/a.parquet'",
    "SELECT * FROM parquet.`{out}/a.parquet`",
    "FROM '{out}/a.csv'",
    "SUMMARIZE '{out}/a.csv'",
    "DESCRIBE '{out}/a.csv'",
    "TABLE '{out}/a.csv'",
    "COPY (SELECT 1) TO '{out}/n.csv'",
    "COPY t FROM '{out}/a.csv'",
    "INSERT INTO t SELECT * FROM '{out}/a.csv'",
    "INSERT OVERWRITE t SELECT * FROM read_csv('{out}/a.csv')",
    "MERGE INTO t USING (SELECT * FROM read_csv('{out}/a.csv')) s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET *",
    "CREATE TABLE n (k INT, v STRING GENERATED ALWAYS AS "
    "((SELECT content FROM read_text('{out}/a.csv'))))",
    "CREATE TABLE n (k INT, CHECK (EXISTS (SELECT * FROM read_text('{out}/a.csv'))))",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (v IN (SELECT content FROM read_text('{out}/a.csv')))",
    "TRUNCATE TABLE t PARTITION (k = (SELECT 1 FROM read_text('{out}/a.csv')))",
    "AUTO CDC INTO n FROM (SELECT * FROM read_csv('{out}/a.csv')) KEYS (k) SEQUENCE BY w",
]  # fmt: skip


def check_shut(lake: kt.Lake, outside: Path, text: str) -> None:
    folder, tables = Path(lake.uri.removeprefix("file://")), lake.tables()
    filled = text.format(
        out=outside, lake=folder, keyed=KEYED, table=outside.parent / "other/default.db/t"
    )
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(filled).to_pylist()
    assert SECRET not in str(caught.value)
    assert lake.tables() == tables
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"k": 1, "v": "plain", "w": 1}]
    assert sorted(os.listdir(outside)) == ["a.csv", "a.parquet"]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("text", DOORS)
def test_door_is_shut(lake: kt.Lake, outside: Path, text: str) -> None:
    check_shut(lake, outside, text)


@pytest.mark.spark
@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", [t for t in DOORS if "DESCRIBE" not in t])
def test_door_is_shut_on_spark(lake: kt.Lake, outside: Path, text: str, spark: Any) -> None:
    check_shut(kt.connect(lake.uri, spark=spark), outside, text)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", ["{out}", "file://{out}", "../../../outside"])
def test_no_option_leads_outside(lake: kt.Lake, outside: Path, value: str) -> None:
    given = value.format(out=outside)
    options = [option for section in SECTIONS.values() for option in section]
    for number, option in enumerate(options):
        key = re.sub("<.*?>", "v", option.key)
        made, altered = f"n{number}", f"ALTER TABLE t SET ('{key}' = '{given}')"
        ways = (
            (f"CREATE TABLE {made} {KEYED} WITH ('{key}' = '{given}')",
             f"INSERT INTO {made} VALUES (1, 'x', 1)", f"CALL sys.publish('{made}')",
             f"SELECT * FROM {made}"),
            (altered, "INSERT INTO t VALUES (1, 'plain', 1)", "SELECT * FROM t"),
        )  # fmt: skip
        for way in ways:
            with suppress(kt.KeytideError):  # once a step is refused, the next ones mean nothing
                for text in way:
                    assert SECRET not in str(lake.sql(text).to_pylist()), key
        assert sorted(os.listdir(outside)) == ["a.csv", "a.parquet"], key
