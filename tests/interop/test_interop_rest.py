"""Keytide keeps tables in Java Paimon's REST catalog, and Java reads them there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from java_catalog import JavaCatalog, rest_archives, serving
from java_judge import JavaGateway

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from table_rows import by_key, put

Rows = dict[int, int]
KEYED = "CREATE TABLE shop.t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '1')"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGateway]:
    found = JavaGateway(rest_archives(), tmp_path_factory.mktemp("rest"))
    yield found
    found.close()


@pytest.fixture
def catalog(gateway: JavaGateway, tmp_path: Path) -> Iterator[JavaCatalog]:
    with serving(gateway, tmp_path) as found:
        yield found


@pytest.fixture
def lake(catalog: JavaCatalog) -> kt.Lake:
    return catalog.connect()


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    lake.sql(KEYED)
    return lake.table("shop.t")


def arrow(given: Rows) -> pa.Table:
    kind = pa.schema([pa.field("k", pa.int32()), pa.field("v", pa.int32())])
    return pa.table({"k": [*given], "v": [*given.values()]}, schema=kind)


def test_both_write_in_turn_and_read_the_same(catalog: JavaCatalog, table: kt.Table) -> None:
    java, rng, oracle = catalog.client, random.Random(7), dict[int, int]()
    for step in range(12):
        given = {rng.randrange(20): step * 100 + number for number in range(3)}
        match rng.choice(["keytide", "java", "delete", "compact", "java compacts"]):
            case "keytide":
                put(table, given)
                oracle |= given
            case "java":
                java.write("shop.t", arrow(given))
                oracle |= given
            case "delete":
                table.delete("k < 5")
                oracle = {k: v for k, v in oracle.items() if k >= 5}
            case "compact":
                table.compact(full=True)
            case "java compacts":
                java.compact("shop.t")
        assert by_key(table.scan().to_arrow()) == oracle
        assert by_key(java.read("shop.t")) == oracle
    assert table.verify().is_healthy


def test_altered_table_is_read_by_java(
    catalog: JavaCatalog, lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    for change in (
        "ADD COLUMN s STRING COMMENT 'of s' AFTER k",
        "RENAME COLUMN v TO w",
        "ALTER COLUMN w TYPE BIGINT",
        "SET ('snapshot.num-retained.max' = '70')",
        "ADD COLUMN gone INT",
        "DROP COLUMN gone",
    ):
        lake.sql(f"ALTER TABLE shop.t {change}")
    lake.sql("INSERT INTO shop.t VALUES (2, 'two', 3000000000)")
    found = catalog.client.read("shop.t").to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == [
        {"k": 1, "s": None, "w": 1},
        {"k": 2, "s": "two", "w": 3000000000},
    ]


def test_tags_branches_and_rollback(catalog: JavaCatalog, table: kt.Table) -> None:
    java = catalog.client
    put(table, {1: 1})
    table.create_tag("one")
    put(table, {1: 2})
    assert by_key(java.read("shop.t", tag="one")) == {1: 1}
    table.rollback_to("one")
    assert by_key(java.read("shop.t")) == {1: 1}
    trial = table.create_branch("trial", tag="one")
    put(trial, {7: 7})
    assert by_key(java.read("shop.t", branch="trial")) == {1: 1, 7: 7}
    java.write("shop.t", arrow({8: 8}), branch="trial")
    assert by_key(trial.scan().to_arrow()) == {1: 1, 7: 7, 8: 8}
    table.fast_forward("trial")
    assert by_key(java.read("shop.t")) == {1: 1, 7: 7, 8: 8}
    put(table, {9: 9})
    assert by_key(java.read("shop.t")) == {1: 1, 7: 7, 8: 8, 9: 9}
    table.delete_branch("trial")
    table.delete_tag("one")
    assert (list(table.branches()), list(table.tags())) == ([], [])


def test_tables_are_created_listed_and_dropped(
    catalog: JavaCatalog, lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    lake.sql("CREATE TABLE shop.u WITH ('primary-key' = 'k') AS SELECT k, v * 10 AS v FROM shop.t")
    assert by_key(catalog.client.read("shop.u")) == {1: 10}
    assert lake.tables() == ["shop.t", "shop.u"]
    with pytest.raises(kt.AlreadyExistsError):
        lake.sql("CREATE TABLE shop.u (k INT)")
    lake.drop_table("shop.u")
    assert lake.tables() == ["shop.t"]


def test_writers_of_both_who_race_lose_nothing(catalog: JavaCatalog, table: kt.Table) -> None:
    # Java's writes compact, and one fails where another writer compacted the same files.
    table.alter(SetOption("write-only", "true"))
    java, failed = catalog.client, list[BaseException]()

    def race(writer: int) -> None:
        try:
            own = catalog.connect().table("shop.t")
            for number in range(6):
                put(own, {writer * 100 + number: number})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=race, args=(writer,)) for writer in (1, 2)]
    for each in threads:
        each.start()
    for number in range(6):
        java.write("shop.t", arrow({300 + number: number}))
    for each in threads:
        each.join()
    assert failed == []
    assert by_key(table.scan().to_arrow()) == {w * 100 + n: n for w in (1, 2, 3) for n in range(6)}


def test_wrong_token_is_refused(catalog: JavaCatalog) -> None:
    options = {"warehouse": "lake", "token.provider": "bear", "token": "guessed"}
    with pytest.raises(kt.DataError, match="401") as told:
        kt.connect(catalog.address, options=options).tables()
    assert "guessed" not in str(told.value)
