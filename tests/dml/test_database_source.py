"""A table of either database as a source of versions."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from databases import SomeDatabase

import keytide as kt
from keytide.errors import InvalidError
from keytide.predicate.predicate import And, Comparison, In, Like, Predicate
from keytide.sources.appends import open_database_appender
from keytide.sources.database import open_source
from keytide.sources.source import Place
from keytide.store import LocalStore


def test_rows_are_read_in_batches_and_conditions_are_met(database: SomeDatabase) -> None:
    database.run(
        "CREATE TABLE events (k BIGINT, name TEXT, amount DECIMAL(9, 2), at TIMESTAMP)",
        "INSERT INTO events VALUES (1, 'a', 1.5, '2024-01-02 03:04:05'), (1, 'a', 1.5, NULL), "
        "(2, 'b', NULL, NULL), (3, NULL, 7, NULL), (4, 'd', 8, NULL)",
    )
    place = Place(database.place, {"table": "events"}, LocalStore("/nonexistent"))
    pinned = pickle.loads(pickle.dumps(open_source(place).pin()))
    (part,) = pickle.loads(pickle.dumps(pinned.parts()))

    def keys(about_key: Predicate | None) -> list[int]:
        batches = list(part.batches(["name", "k"], about_key, 2))
        assert all(b.schema.names == ["name", "k"] and 0 < b.num_rows <= 2 for b in batches)
        return sorted(row["k"] for batch in batches for row in batch.to_pylist())

    assert keys(None) == [1, 1, 2, 3, 4]
    assert keys(In("k", (2, 4))) == [2, 4]
    assert keys(And((Comparison("k", ">", 1), Like("name", "%d")))) == [4]
    assert repr(part).find("keytide@") < 0


def test_rows_are_appended_all_or_none(database: SomeDatabase) -> None:
    database.run("CREATE TABLE events (k BIGINT PRIMARY KEY, name TEXT, amount DECIMAL(9, 2))")
    place = Place(database.place, {"table": "events"}, LocalStore("/nonexistent"))
    appender = open_database_appender(place)

    def rows(*keys: int) -> pa.Table:
        amount = pa.array([Decimal("1.50")] * len(keys), pa.decimal128(9, 2))
        return pa.table({"k": keys, "name": [f"n{k}" for k in keys], "amount": amount})

    appender.append(rows(1, 2), ["k"])
    with pytest.raises(InvalidError, match="refuses the rows"):
        appender.append(rows(3, 2), ["k"])
    (part,) = open_source(place).pin().parts()
    read = pa.Table.from_batches(part.batches(["k", "name", "amount"], None, 10))
    assert read.sort_by("k").to_pylist() == rows(1, 2).to_pylist()


RIGHT, WRONG = "r1ght-g3heim", "wr0ng-g3heim"


@pytest.fixture
def locked(postgres: SomeDatabase) -> Iterator[str]:
    """The address of a user who needs a password."""
    ((path,),) = postgres.rows("SELECT setting::text FROM pg_settings WHERE name = 'hba_file'")
    rules = Path(path)
    before = rules.read_text()
    rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
    postgres.run(f"CREATE ROLE locked LOGIN PASSWORD '{RIGHT}'", "SELECT pg_reload_conf()")
    yield postgres.place.replace("keytide@", "locked@")
    rules.write_text(before)
    postgres.run("DROP OWNED BY locked", "DROP ROLE locked", "SELECT pg_reload_conf()")


def test_password_of_the_environment_opens_a_table_and_is_told_by_nothing(
    postgres: SomeDatabase, locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run(
        "CREATE TABLE events (k BIGINT, w BIGINT)", "INSERT INTO events VALUES (1, 1), (1, 2)",
        "GRANT USAGE ON SCHEMA public TO locked", "GRANT SELECT ON events TO locked",
    )  # fmt: skip
    lake = kt.connect(str(tmp_path / "lake"))

    def define() -> kt.ExternalTable:
        return lake.create_external_table(
            "e", format="postgresql", location=locked, options={"external.option.table": "events"},
            primary_key=["k"], watermark_key=["w"],
        )  # fmt: skip

    for password in (WRONG, ""):
        monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(kt.DataError, match=r"events in .*password") as raised:
            define()
        assert WRONG not in str(raised.value)
        assert not lake.exists
    monkeypatch.setenv("PGPASSWORD", RIGHT)
    table = define()
    assert table.scan().to_pylist() == [{"k": 1, "w": 2}]
    statements = ("SHOW CREATE TABLE e", "EXPLAIN SELECT * FROM e", "DESCRIBE e")
    told = [str(lake.sql(text).to_pylist()) for text in statements]
    told += [repr(pickle.dumps(each)) for each in (table, table.scan(), table.scan().tasks())]
    told += [repr(path.read_bytes()) for path in tmp_path.rglob("schema-*")]
    assert not any(RIGHT in text for text in told)
    monkeypatch.setenv("PGPASSWORD", WRONG)
    with pytest.raises(kt.DataError, match="password"):
        table.scan().to_pylist()
