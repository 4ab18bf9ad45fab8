"""Tables that a metastore lists: found by name, made, renamed and dropped there."""

from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from glue_settings import SETTINGS
from hive_stand_in import Hive, hive_serving
from pymetastore.hive_metastore import ttypes

import keytide as kt
from keytide.catalogs.metastore.registry import Description, Registry, hive_type
from keytide.catalogs.metastore.warehouse import MetastoreWarehouse
from keytide.snapshot.metadata import TableMetadata
from keytide.types import parse_sql_type
from table_rows import by_key, put

Rows = dict[int, int]
Place = tuple[str, dict[str, str]]


def new_table(lake: kt.Lake, name: str) -> kt.Table:
    lake.sql(f"CREATE TABLE {name} (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    return lake.table(name)


def registry(lake: kt.Lake) -> Registry:
    warehouse = lake.catalog.warehouse
    assert isinstance(warehouse, MetastoreWarehouse)
    return warehouse.registry


def folder_of(table: kt.Table) -> Path:
    return Path(table.stored.uri)


@pytest.mark.one_in(14)
def test_databases_are_made_once_listed_and_dropped(lake: kt.Lake, db: str) -> None:
    lake.create_database(db, "what is sold")
    with pytest.raises(kt.AlreadyExistsError, match=db):
        lake.create_database(db)
    assert db in lake.databases()
    assert lake.catalog.warehouse.comment_on(db) == "what is sold"
    new_table(lake, f"{db}.t")
    with pytest.raises(kt.InvalidError, match="is not empty"):
        lake.drop_database(db)
    lake.drop_database(db, cascade=True)
    assert db not in lake.databases()


def test_tables_are_made_written_and_found_by_others(lake: kt.Lake, place: Place, db: str) -> None:
    table = new_table(lake, f"{db}.t")
    put(table, {1: 1, 2: 1})
    put(table, {1: 2})
    with pytest.raises(kt.AlreadyExistsError, match=rf"{db}\.t already exists"):
        new_table(lake, f"{db}.t")
    other = kt.connect(place[0], options=place[1])
    assert other.tables(db) == [f"{db}.t"]
    assert by_key(other.table(f"{db}.t")) == {1: 2, 2: 1}
    assert by_key(kt.open_table(table.uri)) == {1: 2, 2: 1}
    other.sql(f"DELETE FROM {db.upper()}.T WHERE k = 2")
    assert by_key(table) == {1: 2}
    assert table.verify().is_healthy


def test_metastore_is_told_what_paimon_tells_it(lake: kt.Lake, db: str) -> None:
    table = new_table(lake, f"{db}.t")
    found = registry(lake).table(db, "t")
    assert found is not None
    assert found.input_format == "org.apache.paimon.hive.mapred.PaimonInputFormat"
    assert found.parameters["table_type"] == "PAIMON"
    assert found.parameters["storage_handler"] == "org.apache.paimon.hive.PaimonStorageHandler"
    assert str(found.location).endswith(str(folder_of(table)))


def test_table_is_made_with_the_rows_of_a_query_or_not_at_all(lake: kt.Lake, db: str) -> None:
    lake.create_database(db)
    lake.sql(f"CREATE TABLE {db}.u WITH ('primary-key' = 'k') AS SELECT 1 AS k, 2 AS v")
    assert by_key(lake.table(f"{db}.u")) == {1: 2}
    with pytest.raises(kt.KeytideError):
        lake.sql(f"CREATE TABLE {db}.w AS SELECT CAST(x AS INT) AS k FROM (VALUES ('a')) AS t (x)")
    assert lake.tables(db) == [f"{db}.u"]


def test_tables_are_renamed_and_their_names_used_again(lake: kt.Lake, db: str) -> None:
    put(new_table(lake, f"{db}.t"), {1: 1})
    moved = lake.rename_table(f"{db}.t", "u")
    assert isinstance(moved, kt.Table)
    assert by_key(moved) == {1: 1}
    with pytest.raises(kt.NotFoundError, match=rf"table {db}\.t does not exist"):
        lake.table(f"{db}.t")
    again = new_table(lake, f"{db}.t")
    put(again, {2: 2})
    with pytest.raises(kt.AlreadyExistsError, match=rf"{db}\.t"):
        lake.rename_table(f"{db}.u", "t")
    with pytest.raises(kt.NotFoundError, match="create it first"):
        lake.rename_table(f"{db}.u", "nowhere.u")
    assert (by_key(lake.table(f"{db}.u")), by_key(again)) == ({1: 1}, {2: 2})


def test_dropped_tables_take_their_files_along(lake: kt.Lake, db: str) -> None:
    table = new_table(lake, f"{db}.t")
    put(table, {1: 1})
    lake.drop_table(f"{db}.t")
    assert (lake.tables(db), folder_of(table).exists()) == ([], False)
    with pytest.raises(kt.NotFoundError, match=rf"table {db}\.t does not exist"):
        lake.drop_table(f"{db}.t")
    put(new_table(lake, f"{db}.t"), {2: 2})
    assert by_key(lake.table(f"{db}.t")) == {2: 2}


def test_altered_columns_are_told_to_the_metastore(
    lake: kt.Lake, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(lake, f"{db}.t")
    told: list[tuple[str, ...]] = []
    known = registry(lake)
    describe = type(known).describe_table

    def noted(self: Any, database: str, name: str, description: Description) -> None:
        describe(self, database, name, description)
        told.append(tuple(f"{column.name} {column.type}" for column in description.columns))

    monkeypatch.setattr(type(known), "describe_table", noted)
    lake.sql(f"ALTER TABLE {db}.t ADD COLUMN w DECIMAL(9, 2)")
    assert told == [("k int", "v int", "w decimal(9,2)")]
    table.write([{"k": 1, "v": 1, "w": Decimal("2.50")}])
    assert [row["k"] for row in lake.table(f"{db}.t").scan().to_pylist()] == [1]


def test_names_in_upper_case_are_refused(lake: kt.Lake, db: str) -> None:
    with pytest.raises(kt.InvalidError, match="lower case; use 'shop'"):
        lake.create_database("Shop")
    lake.create_database(db)
    with pytest.raises(kt.InvalidError, match="lower case; use 't'"):
        new_table(lake, f"{db}.T")
    assert lake.tables(db) == []


def test_views_are_refused(lake: kt.Lake, db: str) -> None:
    new_table(lake, f"{db}.t")
    with pytest.raises(kt.UnsupportedError, match="cannot create views in a metastore"):
        lake.sql(f"CREATE VIEW {db}.v AS SELECT 1 AS k")


def test_metadata_pickles(lake: kt.Lake, db: str) -> None:
    table = new_table(lake, f"{db}.t")
    put(table, {1: 1})
    copy = pickle.loads(pickle.dumps(table.metadata))
    assert isinstance(copy, TableMetadata)
    assert copy.latest_snapshot_id() == 1


def test_table_that_cannot_be_registered_leaves_no_folder(
    lake: kt.Lake, place: Place, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, database: str, name: str, description: Description) -> bool:
        raise kt.DataError("the metastore is away")

    lake.create_database(db)
    monkeypatch.setattr(type(registry(lake)), "create_table", fail)
    with pytest.raises(kt.DataError, match="is away"):
        new_table(lake, f"{db}.t")
    assert [p for p in Path(place[1]["warehouse"]).rglob("*") if p.is_file()] == []


# -- what others keep in Glue ----------------------------------------------------------------------


def test_tables_of_other_engines_are_left_out_and_refused_by_name(
    glue: Any, glue_endpoint: str, db: str, tmp_path: Path
) -> None:
    options = SETTINGS | {"glue.endpoint": glue_endpoint, "warehouse": str(tmp_path)}
    lake = kt.connect("glue://", options=options)
    lake.create_database(db)
    glue.create_table(
        DatabaseName=db,
        TableInput={
            "Name": "ice",
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {"table_type": "ICEBERG"},
            "StorageDescriptor": {"Location": "s3://bucket/ice"},
        },
    )
    assert lake.tables(db) == []
    with pytest.raises(kt.UnsupportedError, match=r"not a Paimon table but ICEBERG.*s3://"):
        lake.table(f"{db}.ice")
    with pytest.raises(kt.AlreadyExistsError, match=rf"{db}\.ice already exists"):
        new_table(lake, f"{db}.ice")
    with pytest.raises(kt.ConflictError, match="its folder is not empty"):
        lake.drop_database(db, cascade=True)


def test_files_of_external_tables_stay(
    glue: Any, glue_endpoint: str, db: str, tmp_path: Path
) -> None:
    there = new_table(kt.connect(tmp_path / "elsewhere"), "shop.t")
    put(there, {1: 1})
    options = SETTINGS | {"glue.endpoint": glue_endpoint, "warehouse": str(tmp_path)}
    lake = kt.connect("glue://", options=options)
    lake.create_database(db)
    described = Description.of(there.stored.schema, there.uri)
    registry(lake).create_table(db, "t", described)
    known = glue.get_table(DatabaseName=db, Name="t")["Table"]
    told = {name: known[name] for name in ("Name", "Parameters", "StorageDescriptor")}
    glue.update_table(DatabaseName=db, TableInput=told | {"TableType": "EXTERNAL_TABLE"})
    assert by_key(lake.table(f"{db}.t")) == {1: 1}
    moved = lake.rename_table(f"{db}.t", "u")
    assert isinstance(moved, kt.Table)
    lake.drop_table(f"{db}.u")
    assert lake.tables(db) == []
    assert by_key(there) == {1: 1}


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("glue://eu-central-1", "glue:// for the catalog"),
        ("thrift://", "thrift://host:port"),
        ("thrift://h:1/shop", "thrift://host:port"),
        ("thrift://me:s3cr3t@h", "thrift://host:port"),
    ],
)
def test_addresses_that_are_none_are_refused(address: str, words: str) -> None:
    with pytest.raises(kt.InvalidError, match=words) as told:
        kt.connect(address)
    assert "s3cr3t" not in str(told.value)


def test_metastores_that_do_not_answer_are_told() -> None:
    with pytest.raises(kt.DataError, match="check the address"):
        kt.connect("thrift://127.0.0.1:9").tables()
    lake = kt.connect("glue://", options=SETTINGS | {"glue.endpoint": "http://127.0.0.1:9"})
    assert "s3cr3t" not in f"{lake!r} {lake.catalog!r}"


class NoSuchFileSystem(Hive):
    """A metastore that has no file system for the place of a database."""

    def create_database(self, database: Any) -> None:
        raise ttypes.MetaException('No FileSystem for scheme "s3"')


def test_refusal_of_a_metastore_is_told_in_its_words(tmp_path: Path) -> None:
    with hive_serving(NoSuchFileSystem()) as address:
        lake = kt.connect(address, options={"warehouse": str(tmp_path / "lake")})
        with pytest.raises(kt.DataError, match='shop: No FileSystem for scheme "s3"'):
            new_table(lake, "shop.t")


def test_place_of_new_databases_has_to_be_told(glue_endpoint: str, db: str) -> None:
    lake = kt.connect("glue://", options=SETTINGS | {"glue.endpoint": glue_endpoint})
    with pytest.raises(kt.InvalidError, match="'warehouse': 's3://bucket/prefix'"):
        lake.create_database(db)


@pytest.mark.parametrize(
    ("sql", "hive"),
    [
        ("STRING", "string"),
        ("CHAR(3)", "char(3)"),
        ("CHAR(300)", "string"),
        ("VARCHAR(70000)", "string"),
        ("BYTES", "binary"),
        ("TIME(3)", "string"),
        ("TIMESTAMP(6)", "timestamp"),
        ("TIMESTAMP_LTZ(3)", "timestamp with local time zone"),
        ("ROW<a INT, b ARRAY<DECIMAL(5, 1)>>", "struct<a:int,b:array<decimal(5,1)>>"),
        ("MAP<STRING, DATE>", "map<string,date>"),
        ("MULTISET<INT>", "map<int,int>"),
    ],
)
def test_types_have_hives_names(sql: str, hive: str) -> None:
    assert hive_type(parse_sql_type(sql)) == hive
