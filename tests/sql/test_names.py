"""Names of databases, tables and columns: as they are written, or else without regard to case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import AddColumn, RenameColumn

TABLES = (
    "CREATE TABLE Shop.Orders (Id INT, v STRING, PRIMARY KEY (Id) NOT ENFORCED); "
    "INSERT INTO Shop.Orders VALUES (1, 'a'), (2, 'b')"
)


STATEMENTS = (
    "SELECT ID FROM {0} WHERE iD = 1",
    "SELECT o.V FROM {0} AS o JOIN {0}$snapshots AS s ON true",
    "WITH W AS (SELECT * FROM {0}) SELECT * FROM w, (SELECT 1 FROM W)",
    "UPDATE {0} SET V = 'x' WHERE id = 1",
    "DELETE FROM {0} WHERE ID = 1",
    "INSERT INTO {0} (ID, V) VALUES (3, 'c')",
    "INSERT OVERWRITE {0} SELECT * FROM {0}",
    "TRUNCATE TABLE {0}",
    "ALTER TABLE {0} SET ('snapshot.num-retained.min' = '7')",
    "SHOW CREATE TABLE {0}",
    "SHOW COLUMNS FROM {0}",
    "DESCRIBE {0}",
    "CALL sys.why('{0}', 1)",
    "CREATE TABLE u LIKE {0}",
    "CREATE TABLE IF NOT EXISTS {0} (k INT PRIMARY KEY NOT ENFORCED)",
    "SHOW TABLES IN sHOP LIKE 'oRD%'",
    "EXPLAIN SELECT * FROM {0}",
    "DROP TABLE {0}",
)


@pytest.mark.parametrize("text", STATEMENTS)
@pytest.mark.parametrize("name", ["shop.orders", "SHOP.ORDERS"])
def test_every_statement_finds_names_in_any_case(lake: kt.Lake, text: str, name: str) -> None:
    lake.sql(text.format(name))
    assert [t for t in lake.tables() if t != "default.u"] in (["Shop.Orders"], [])


@pytest.mark.parametrize("text", STATEMENTS)
def test_name_that_may_mean_two_tables_is_refused_naming_both(lake: kt.Lake, text: str) -> None:
    pa_schema = lake.table("Shop.Orders").schema
    lake.create_table("Shop.oRDERs", pa_schema, ["Id"])
    if "sHOP" not in text:
        with pytest.raises(kt.InvalidError, match=r"Shop\.Orders or Shop\.oRDERs"):
            lake.sql(text.format("shop.orders"))
    lake.sql(text.format("Shop.Orders"))
    assert "Shop.oRDERs" in lake.tables()


def test_table_that_differs_in_case_only_is_not_made_twice(lake: kt.Lake) -> None:
    with pytest.raises(kt.AlreadyExistsError, match=r"Shop\.Orders"):
        lake.sql("CREATE TABLE shop.ORDERS (k INT PRIMARY KEY NOT ENFORCED)")
    assert lake.tables() == ["Shop.Orders"]


def test_what_with_names_hides_a_table_in_any_case(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE w (k INT PRIMARY KEY NOT ENFORCED)")
    assert lake.sql("WITH W AS (SELECT 7 AS k) SELECT k FROM w").to_pylist() == [{"k": 7}]


FIELDS = ("id", "ID", "iD", "v")


@given(
    names=st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True),
    nested=st.booleans(),
)
def test_new_columns_never_differ_in_case_only(
    names: list[str], nested: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = kt.connect(str(tmp_path_factory.mktemp("lake")))
    columns = ", ".join(f"{name} INT" for name in names)
    body = f"r ROW<{columns.replace(',', ', ')}>" if nested else columns
    text = f"CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, {body})"
    if len({name.lower() for name in names}) == len(names):
        lake.sql(text)
        return
    with pytest.raises(kt.InvalidError, match="differ only in case"):
        lake.sql(text)
    assert lake.tables() == []


@pytest.mark.parametrize(
    "change",
    [
        AddColumn(("V",), kt.parse_sql_type("INT")),
        AddColumn(("r",), kt.parse_sql_type("ROW<a INT, A INT>")),
        RenameColumn(("v",), "ID"),
    ],
)
def test_changed_columns_never_differ_in_case_only(lake: kt.Lake, change: Any) -> None:
    table = lake.table("Shop.Orders")
    with pytest.raises(kt.KeytideError, match="case"):
        table.alter(change)
    table.alter(RenameColumn(("v",), "V"))
    assert table.table_schema.names == ("Id", "V")


def test_columns_of_another_engine_that_differ_in_case_only_are_read_by_python_not_by_sql(
    lake: kt.Lake, warehouse: str
) -> None:
    lake.sql("CREATE TABLE other LIKE shop.orders")
    path = Path(warehouse, "default.db", "other", "schema", "schema-0")
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored["fields"][1]["name"] = "ID"
    path.write_text(json.dumps(stored), encoding="utf-8")
    table = lake.table("other")
    rows = [{"Id": 1, "ID": "a"}, {"Id": 2, "ID": "b"}]
    table.write(rows)
    assert table.scan().to_pylist() == rows
    for text in ("SELECT ID FROM other", "SELECT 1 FROM other", "DELETE FROM other"):
        with pytest.raises(kt.InvalidError, match="'Id' and 'ID' differ only in case"):
            lake.sql(text)
    lake.sql("ALTER TABLE other RENAME COLUMN ID TO v")
    assert lake.sql("SELECT v FROM other WHERE id = 2").to_pylist() == [{"v": "b"}]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "mark", ["$", "@", ":", "", "?", "%", "{{", "'", "`", '"', "--", "/*", "*"]
)
def test_columns_that_differ_in_marks_alone_are_all_read(mark: str) -> None:
    names = ["k", "row", f"{mark}row", f"row{mark}", f"{mark}row{mark}"]
    names = list(dict.fromkeys(names))
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    lake = kt.connect(f"memory://marks-{uuid4()}")
    table = lake.create_table("t", pa.schema([(n, pa.int64()) for n in names]), [])
    table.write([{name: place for place, name in enumerate(names)}])
    row = dict(zip(names, range(len(names)), strict=True))
    assert lake.sql("SELECT * FROM t").to_pylist() == [row]
    assert lake.sql(f"SELECT {', '.join(quoted)} FROM t").to_pylist() == [row]
    for name, column in zip(names, quoted, strict=True):
        assert lake.sql(f"SELECT {column} FROM t AS x").to_pylist() == [{name: row[name]}]
        found = lake.sql(f"SELECT x.k FROM t AS x, t AS y WHERE x.{column} = y.{column}")
        assert found.to_pylist() == [{"k": 0}]
