"""Files outside of the lake: shut, unless whoever opens the lake allows them."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

import keytide as kt
from keytide.sql.local_query import local_database


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file beside the lake, also the current folder's, whose text nobody is to see."""
    folder = tmp_path / "outside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "secret.csv").write_text("hidden,word\n1,2\n", encoding="utf-8")
    return str(folder / "secret.csv")


TEXTS = (
    "SELECT * FROM read_text('{}')",
    "SELECT * FROM read_blob('{}')",
    "SELECT * FROM read_csv('{}')",
    "SELECT * FROM read_csv_auto(['{}'])",
    "SELECT * FROM sniff_csv('{}')",
    "SELECT * FROM glob('{}*')",
    "SELECT * FROM '{}'",
    "SELECT * FROM `{}`",
    "SELECT * FROM 'secret.csv'",
    "SELECT * FROM csv.`{}`",
    "SELECT * FROM query('FROM ''{}''')",
    "SELECT * FROM query_table('{}')",
    "WITH w AS (SELECT * FROM read_text('{}')) SELECT * FROM w",
    "SELECT (SELECT content FROM read_text('{}'))",
    "INSERT INTO t SELECT 1, content FROM read_text('{}')",
    "CREATE TABLE u (PRIMARY KEY (k) NOT ENFORCED) AS SELECT 1 AS k, content FROM read_text('{}')",
    "UPDATE t SET v = (SELECT content FROM read_text('{}'))",
    "DELETE FROM t WHERE EXISTS (SELECT * FROM read_text('{}'))",
    "SELECT getenv('HOME')",
    "SELECT reflect('java.lang.System', 'getenv')",
    "SELECT java_method('java.lang.System', 'getenv')",
    "SELECT TRANSFORM(v) USING 'cat {}' FROM t",
    "SELECT * FROM IDENTIFIER('csv.`{}`')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{}.log')",
    "ATTACH '{}'",
    "COPY t TO '{}'",
    "INSTALL httpfs",
    "LOAD '{}'",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "EXPORT DATABASE '{}'",
)


DOORS = (
    *(
        f"CREATE EXTERNAL TABLE u (PRIMARY KEY (hidden)) USING {form} LOCATION '{{}}' "
        "WITH ('upsert.on-tie' = 'error')"
        for form in ("csv", "json", "parquet", "delta", "iceberg", "sqlite", "keytide", "paimon")
    ),
    *(f"CALL sys.adopt_{form}('u', '{{}}', 'hidden')" for form in ("delta", "iceberg", "parquet")),
)


@pytest.mark.parametrize("text", DOORS)
@pytest.mark.parametrize("spelling", ["plain", "file:", "dots", "link", "escape"])
def test_location_outside_of_the_lake_is_refused(
    warehouse: str, secret: str, text: str, spelling: str
) -> None:
    folder = str(Path(secret).parent)
    (Path(warehouse) / "link").symlink_to(folder)
    location = {
        "plain": folder, "file:": f"file://{folder}", "dots": f"{warehouse}/../outside",
        "link": f"{warehouse}/link", "escape": f"file://{warehouse}/%2e%2e/outside",
    }[spelling]  # fmt: skip
    lake = kt.connect(warehouse)
    with pytest.raises(kt.InvalidError, match="is outside the lake; to allow it"):
        lake.sql(text.format(location))
    assert lake.tables() == []


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", TEXTS)
def test_sql_stays_inside_of_the_lake(warehouse: str, secret: str, text: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    lake.sql("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(kt.InvalidError) as caught:
        lake.sql(text.format(secret))
    assert "hidden" not in str(caught.value)
    assert lake.tables() == ["default.t"]
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"k": 1, "v": "a"}]
    assert os.listdir() == ["secret.csv"]


@pytest.mark.takes_turns
def test_no_function_of_duckdb_reads_or_writes_files(secret: str) -> None:
    with local_database() as connection, local_database(allows_external_files=True) as opened:
        functions = connection.sql(
            "SELECT DISTINCT function_name, function_type LIKE 'table%' FROM duckdb_functions() "
            "WHERE function_type <> 'pragma' AND function_name NOT LIKE '%\\_scan%' ESCAPE '\\' "
            "AND function_name <> 'python_map_function'"
        ).fetchall()
        given = [f"'{secret}'", f"'{secret}', '{secret}'", f"['{secret}']"]
        shown, refused = set(), set()
        for name, is_table in functions:
            for arguments in given:
                text = f'SELECT * FROM "{name}"({arguments})' if is_table else ""
                try:
                    answer = connection.sql(text or f'SELECT "{name}"({arguments})')
                    if "hidden" in str(answer.fetchall() if answer is not None else ""):
                        shown.add(name)
                except duckdb.PermissionException:
                    refused.add(name)
                except duckdb.Error:
                    continue
        assert shown == set()
        assert {"read_text", "read_csv", "read_blob", "glob", "parquet_metadata"} <= refused
        assert os.listdir() == ["secret.csv"]
        assert "hidden" in str(opened.sql(f"SELECT * FROM read_text('{secret}')").fetchall())


def test_sql_reads_files_where_the_lake_is_opened_for_it(warehouse: str, secret: str) -> None:
    lake = kt.connect(warehouse, allow_external_files=True)
    expected = [{"hidden": 1, "word": 2}]
    assert lake.sql(f"SELECT * FROM read_csv('{secret}')").to_pylist() == expected
    assert lake.sql(f"SELECT * FROM '{secret}'").to_pylist() == expected
    assert lake.sql("SELECT s.* FROM 'secret.csv' AS s WHERE hidden = 1").to_pylist() == expected
    with pytest.raises(kt.NotFoundError, match=r"table \S+ does not exist"):
        lake.sql("SELECT * FROM nobody")


@pytest.mark.takes_turns
def test_queries_larger_than_memory_spill_into_a_folder_of_their_own() -> None:
    with local_database(memory_limit="50MB", threads="1") as connection:
        [(spill,)] = connection.sql("SELECT current_setting('temp_directory')").fetchall()
        rows = connection.execute("SELECT * FROM range(4000000) AS t(i) ORDER BY hash(i), i + 1")
        assert rows.fetchone() is not None
        assert list(Path(spill).iterdir())
    assert not Path(spill).parent.exists()
