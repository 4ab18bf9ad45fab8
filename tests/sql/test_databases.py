"""Databases: made, used, dropped, and what names without one mean."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import keytide as kt

TABLES = """
CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v STRING); INSERT INTO t VALUES (1, 'default');
CREATE TABLE shop.t (k INT PRIMARY KEY NOT ENFORCED, v STRING);
INSERT INTO shop.t VALUES (1, 'shop')
"""


@pytest.mark.parametrize("place", ["disk", "far"])
def test_database_is_there_from_when_it_is_made_to_when_it_is_dropped(
    tmp_path: Path, place: str
) -> None:
    lake = kt.connect(tmp_path if place == "disk" else f"memory://databases-{uuid4()}")
    lake.sql("CREATE DATABASE shop COMMENT 'what is sold'; CREATE SCHEMA IF NOT EXISTS Shop")
    lake.create_database("shop", exists_ok=True)
    assert lake.databases() == ["shop"]
    assert lake.tables() == []
    told = {r["name"]: r["value"] for r in lake.sql("DESCRIBE DATABASE EXTENDED SHOP").to_pylist()}
    assert (told["database"], told["comment"]) == ("shop", "what is sold")
    with pytest.raises(kt.AlreadyExistsError, match="database shop already exists"):
        lake.sql("CREATE DATABASE SHOP")
    lake.sql("DROP DATABASE shop RESTRICT; DROP SCHEMA IF EXISTS shop")
    assert lake.databases() == []
    with pytest.raises(kt.NotFoundError, match="database shop does not exist"):
        lake.drop_database("shop")


def test_database_with_tables_goes_by_cascade_alone(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match=r"not empty: it contains shop\.t; .*CASCADE"):
        lake.sql("DROP DATABASE shop")
    assert lake.tables("shop") == ["shop.t"]
    lake.sql("DROP DATABASE shop CASCADE")
    assert (lake.databases(), lake.tables()) == (["default"], ["default.t"])


def test_database_keeps_files_that_belong_to_no_table(lake: kt.Lake) -> None:
    stray = Path(lake.uri) / "shop.db" / "note.txt"
    stray.write_text("mine")
    lake.drop_table("shop.t")
    with pytest.raises(kt.ConflictError, match="its folder is not empty"):
        lake.drop_database("shop")
    assert stray.read_text() == "mine"


def test_used_database_is_meant_by_names_without_one(lake: kt.Lake) -> None:
    lake.sql("USE shop; INSERT INTO t VALUES (2, 'two'); CREATE TABLE u (k INT PRIMARY KEY)")
    assert lake.database == "shop"
    assert lake.sql("SHOW CURRENT DATABASE").to_pylist() == [{"database": "shop"}]
    assert lake.sql("SELECT t.v, shop.t.k FROM t ORDER BY k").to_pylist() == [
        {"v": "shop", "k": 1}, {"v": "two", "k": 2},
    ]  # fmt: skip
    assert lake.table("t").name == "shop.t"
    assert [r["table"] for r in lake.sql("SHOW TABLES").to_pylist()] == ["t", "u"]
    assert lake.sql("SELECT v FROM default.t").to_pylist() == [{"v": "default"}]
    lake.use("DEFAULT")
    assert lake.table("t").scan().to_arrow().to_pylist() == [{"k": 1, "v": "default"}]
    assert kt.connect(lake.uri).database == "default"


def test_only_what_is_there_can_be_used(lake: kt.Lake) -> None:
    with pytest.raises(kt.NotFoundError, match=r"database nobody does not exist .*default, shop"):
        lake.sql("USE nobody")
    with pytest.raises(kt.InvalidError, match="not a valid database name"):
        lake.use("a.b")
    with pytest.raises(kt.InvalidError, match="sys"):
        lake.create_database("sys")
    assert lake.database == "default"
