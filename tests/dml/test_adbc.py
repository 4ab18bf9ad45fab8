"""Tables of SQLite and PostgreSQL: rows are read, changed and counted as a dict says."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from databases import SomeDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.dml.adbc import adbc_connector
from keytide.dml.attachments import PagesScan
from keytide.dml.database_changes import Insertion
from keytide.dml.engine import DeleteRows, SplitResult, UpdateRows, change_rows
from keytide.dml.spi import Connector, ConnectorSession
from keytide.format.arrow import from_arrow
from keytide.predicate.condition import predicate_of
from keytide.predicate.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    conjunction,
    conjuncts,
    row_filter,
)
from keytide.sql.local_engine import LocalEngine
from keytide.sql.local_row_changes import LocalRowHost
from keytide.types import type_from_arrow
from table_rows import answer

Row = tuple[Any, ...]


@pytest.fixture
def lake(warehouse: str, database: SomeDatabase) -> kt.Lake:
    database.run(
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR(20), qty INTEGER)",
        "INSERT INTO items VALUES (1, 'ann', 5), (2, 'bob', NULL), (3, NULL, 9), (4, 'Zoe', 5)",
    )
    lake = kt.connect(warehouse)
    lake.attach("db", adbc_connector(database.kind, database.place))
    return lake


ITEMS = {1: ("ann", 5), 2: ("bob", None), 3: (None, 9), 4: ("Zoe", 5)}
"""The rows of `items`, by id."""


def items(database: SomeDatabase) -> dict[int, Row]:
    return {key: (name, qty) for key, name, qty in database.rows("SELECT * FROM items")}


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("TRUE", [1, 2, 3, 4]),
        ("id > 2", [3, 4]),
        ("qty = 5", [1, 4]),
        ("qty <> 5", [3]),
        ("NOT (qty = 5)", [3]),
        ("qty IS NULL", [2]),
        ("qty IN (9, 5) AND name IS NOT NULL", [1, 4]),
        ("qty NOT IN (9)", [1, 4]),
        ("name = 'ann' OR qty = 9", [1, 3]),
        ("name > 'a'", [1, 2]),
        ("name < 'a'", [4]),
        ("name = 'ANN'", []),
        ("name LIKE '%o%'", [2, 4]),
        ("qty + 0 = 9", [3]),
        ("id BETWEEN 2 AND 3 AND name <> 'x'", [2]),
    ],
)
def test_condition_finds_what_it_finds_in_any_table(
    lake: kt.Lake, where: str, ids: list[int]
) -> None:
    assert answer(lake, f"SELECT id FROM db.items WHERE {where} ORDER BY id") == [(i,) for i in ids]


OPERATORS = ["=", "!=", "<", "<=", ">", ">="]
GOODS: dict[str, list[Any]] = {
    "id": [1, 3],
    "name": ["ann", "Ann ", "", "it's"],
    "qty": [5, -1, 9],
    "price": [Decimal("1.50"), Decimal(2), Decimal("1.505")],
    "sold": [dt.date(2024, 1, 1), dt.date(1, 1, 1)],
}
"""What columns of `goods` are compared with."""
a_term = st.sampled_from(list(GOODS)).flatmap(
    lambda name: st.one_of(
        st.builds(
            Comparison, st.just(name), st.sampled_from(OPERATORS), st.sampled_from(GOODS[name])
        ),
        st.builds(In, st.just(name), st.lists(st.sampled_from(GOODS[name]), max_size=3).map(tuple)),
        st.just(IsNull(name)),
        st.just(Like("name", "%n_")),
    )
)
a_tree = st.recursive(
    a_term,
    lambda inner: (
        st.builds(And, st.tuples(inner, inner))
        | st.builds(Or, st.tuples(inner, inner))
        | st.builds(Not, inner)
    ),
    max_leaves=5,
)


@pytest.mark.takes_turns
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(a_tree, min_size=20, max_size=20))
def test_predicate_keeps_in_a_database_what_it_keeps_here(
    database: SomeDatabase, trees: list[Predicate]
) -> None:
    database.run(
        "DROP TABLE IF EXISTS goods",
        "CREATE TABLE goods (id INTEGER PRIMARY KEY, name VARCHAR(20), qty INTEGER, "
        "price DECIMAL(10, 2), sold DATE)",
        "INSERT INTO goods VALUES (1, 'ann', 5, 1.5, '2024-01-01'), (2, 'Ann ', NULL, 2, NULL), "
        "(3, NULL, 9, NULL, '1969-12-31'), (4, '', -1, 1.51, '0001-01-01')",
    )
    connector, session = adbc_connector(database.kind, database.place), ConnectorSession()
    handle = connector.metadata.get_table_handle(session, "goods")
    columns = connector.metadata.get_table_schema(session, handle).columns
    fields = [kt.Field(-1, c.name, type_from_arrow(c.type)) for c in columns]

    def ids(scan: PagesScan, left: Predicate | None) -> list[int]:
        rows = from_arrow(pa.Table.from_batches(scan.to_batches(), scan.schema))
        kept = rows if left is None else rows.filter(row_filter(left, fields))
        return sorted(kept["id"].to_list())

    whole = PagesScan(connector, session, handle, columns)
    for tree in trees:
        predicate = predicate_of(tree, fields, "goods")
        scan = replace(whole, terms=conjuncts(predicate))
        _, left = scan.narrowed()
        assert ids(scan, conjunction(left)) == ids(whole, predicate), predicate


def test_explain_tells_what_the_database_takes(lake: kt.Lake) -> None:
    text = "EXPLAIN SELECT name FROM db.items WHERE qty > 3 AND name LIKE 'a%' AND id <> 7"
    plan = [row["plan"] for row in lake.sql(text).to_pylist()]
    assert plan[-1] == "applied by the connector: `qty` > 3 AND `id` != 7"


def test_names_are_found_in_any_case(lake: kt.Lake) -> None:
    assert answer(lake, "SELECT Name FROM DB.ITEMS WHERE ID = 1") == [("ann",)]


def test_strange_names_are_quoted(lake: kt.Lake, database: SomeDatabase) -> None:
    database.run('CREATE TABLE "a "" b" ("the key" INTEGER PRIMARY KEY, "select" TEXT)')
    database.run("INSERT INTO \"a \"\" b\" VALUES (1, 'x'), (2, 'y')")
    lake.sql("UPDATE db.`a \" b` SET `select` = 'z' WHERE `the key` = 2 AND `select` LIKE 'y'")
    assert database.rows('SELECT * FROM "a "" b" ORDER BY 1') == [(1, "x"), (2, "z")]


def test_schema_may_stand_before_a_table_of_postgres(
    warehouse: str, postgres: SomeDatabase
) -> None:
    postgres.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (a INT PRIMARY KEY)",
        "INSERT INTO shop.t VALUES (7)",
        'CREATE TABLE "T" (a INT PRIMARY KEY)',
        "CREATE TABLE t (a INT PRIMARY KEY)",
        "INSERT INTO t VALUES (8)",
    )
    lake = kt.connect(warehouse)
    lake.attach("pg", postgres.place)
    assert answer(lake, "SELECT * FROM pg.shop.t") == [(7,)]
    assert answer(lake, "SELECT * FROM pg.t") == [(8,)]
    assert answer(lake, "SELECT * FROM pg.T") == []
    with pytest.raises(kt.NotFoundError, match=r"public.T, public.t, shop.t"):
        lake.sql("SELECT * FROM pg.nothing")


# -- types -----------------------------------------------------------------------------------------

WHEN = dt.datetime(2026, 1, 31, 12, 30, 0, 123456)
VALUES: dict[str, Any] = {
    "i": -5,
    "b": True,
    "d": Decimal("-12.50"),
    "f": 0.1,
    "s": "it's",
    "x": b"\x00\xff",
    "da": dt.date(1969, 12, 31),
    "ts": WHEN,
}
TYPES = {
    "sqlite": "INTEGER BOOLEAN DECIMAL(10,2) REAL TEXT BLOB DATE TIMESTAMP",
    "postgres": "BIGINT BOOLEAN NUMERIC(10,2) FLOAT8 TEXT BYTEA DATE TIMESTAMP",
}


@pytest.fixture
def typed(lake: kt.Lake, database: SomeDatabase) -> kt.Lake:
    columns = ", ".join(
        f"{n} {t}" for n, t in zip(VALUES, TYPES[database.kind].split(), strict=True)
    )
    database.run(
        f"CREATE TABLE typed (k INTEGER PRIMARY KEY, {columns})", "INSERT INTO typed (k) VALUES (1)"
    )
    return lake


LITERALS = (
    "i = -5, b = TRUE, d = -12.5, f = 0.1, s = 'it''s', x = X'00FF', da = DATE '1969-12-31', "
    "ts = TIMESTAMP '2026-01-31 12:30:00.123456'"
)


def test_values_of_all_types_come_back(typed: kt.Lake) -> None:
    assert answer(typed, "SELECT * FROM db.typed") == [(1, *[None] * len(VALUES))]
    typed.sql(f"UPDATE db.typed SET {LITERALS}")
    assert typed.sql("SELECT * FROM db.typed").to_pylist() == [{"k": 1, **VALUES}]
    typed.sql(f"UPDATE db.typed SET {', '.join(f'{n} = NULL' for n in VALUES)} WHERE k = 1")
    assert answer(typed, "SELECT * FROM db.typed") == [(1, *[None] * len(VALUES))]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("assignment", LITERALS.replace("'', ", "''; ").split(", "))
def test_condition_on_a_value_of_any_type_finds_it(typed: kt.Lake, assignment: str) -> None:
    typed.sql(f"UPDATE db.typed SET {LITERALS}")
    assert answer(typed, f"SELECT k FROM db.typed WHERE {assignment}") == [(1,)]
    assert answer(typed, f"SELECT k FROM db.typed WHERE NOT ({assignment})") == []


def test_types_that_arrow_lacks_are_texts_in_postgres(
    warehouse: str, postgres: SomeDatabase
) -> None:
    postgres.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE t (u UUID PRIMARY KEY, n NUMERIC, j JSONB, m mood, a INT[], t TIME, "
        "c CHAR(3))",
        "INSERT INTO t VALUES ('0e37df36-f698-11e6-8dd4-cb9ced3df976', 1.50, '{\"a\": 1}', 'sad', "
        "'{1,2}', '10:00:00.5', 'x')",
    )
    lake = kt.connect(warehouse)
    lake.attach("pg", postgres.place)
    (found,) = answer(lake, "SELECT u, n, j, m, a, t FROM pg.t WHERE c LIKE 'x%'")
    assert found[1:] == ("1.50", '{"a": 1}', "sad", "{1,2}", "10:00:00.5")
    lake.sql("UPDATE pg.t SET n = '2.345', m = 'glad', a = '{3}', t = '11:00', c = 'yy'")
    changed = postgres.rows("SELECT n::text, m::text, a::text, t::text, c::text FROM t")
    assert changed == [("2.345", "glad", "{3}", "11:00:00", "yy")]
    with pytest.raises(kt.InvalidError, match="invalid input value for enum"):
        lake.sql("UPDATE pg.t SET m = 'angry'")


def test_value_that_is_none_of_its_declared_type_is_told_of(
    warehouse: str, sqlite: SomeDatabase
) -> None:
    sqlite.run(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, d DATE, n DECIMAL(5,2))",
        "INSERT INTO t VALUES (1, 'soon', 'much')",
    )
    lake = kt.connect(warehouse)
    lake.attach("db", sqlite.place)
    for column in ("d", "n"):
        with pytest.raises(kt.DataError, match=f"column '{column}' is declared"):
            lake.sql(f"SELECT {column} FROM db.t")
    assert lake.sql("DELETE FROM db.t WHERE k = 1").row_count == 1


# -- changing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "qty = 5",
        "qty + 0 = 5",
        "name LIKE '%nn' OR name LIKE 'Z%'",
        "id = 1 OR (id > 1 AND qty + 0 = 5)",
    ],
)
def test_delete_with_and_without_reading(lake: kt.Lake, database: SomeDatabase, where: str) -> None:
    assert lake.sql(f"DELETE FROM db.items WHERE {where}").row_count == 2
    assert items(database) == {key: ITEMS[key] for key in (2, 3)}


def test_delete_of_all_rows(lake: kt.Lake, database: SomeDatabase) -> None:
    assert lake.sql("DELETE FROM db.items").row_count == 4
    assert items(database) == {}


def test_update_sets_some_columns_and_counts(lake: kt.Lake, database: SomeDatabase) -> None:
    text = "UPDATE db.items SET qty = qty + 1, name = NULL WHERE id IN (1, 2)"
    assert lake.sql(text).row_count == 2
    assert items(database) == {**ITEMS, 1: (None, 6), 2: (None, None)}


@pytest.mark.parametrize(
    ("new", "moves"),
    [
        ("5 - id", lambda key: 5 - key),
        ("id + 1", lambda key: key + 1),
        ("id + 100", lambda key: key + 100),
    ],
)
def test_rows_change_places(lake: kt.Lake, database: SomeDatabase, new: str, moves: Any) -> None:
    assert lake.sql(f"UPDATE db.items SET id = {new}").row_count == 4
    assert items(database) == {moves(key): row for key, row in ITEMS.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UPDATE db.items SET id = 1", "refuses the rows"),
        ("UPDATE db.items SET id = 2 WHERE id = 1", "refuses the rows"),
        ("UPDATE db.one SET name = NULL", "name|NULL"),
    ],
)
def test_what_the_database_refuses_changes_nothing(
    lake: kt.Lake, database: SomeDatabase, text: str, message: str
) -> None:
    database.run("CREATE TABLE one (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    database.run("INSERT INTO one VALUES (1, 'x')")
    with pytest.raises(kt.InvalidError, match=message) as raised:
        lake.sql(text)
    assert "keytide_stage" not in str(raised.value)
    assert items(database) == ITEMS


def test_keys_that_others_refer_to_do_not_change_places(
    lake: kt.Lake, database: SomeDatabase
) -> None:
    database.run(
        "CREATE TABLE part (item INTEGER REFERENCES items (id) ON DELETE CASCADE)",
        "INSERT INTO part VALUES (1)",
    )
    with pytest.raises(kt.InvalidError, match="foreign key"):
        lake.sql("UPDATE db.items SET id = 5 - id")
    assert database.rows("SELECT count(*) FROM part") == [(1,)]
    assert items(database) == ITEMS


def test_merge_inserts_updates_and_deletes(lake: kt.Lake, database: SomeDatabase) -> None:
    text = """
        MERGE INTO db.items AS t
        USING (VALUES (1, 'A', 50), (2, 'B', 60), (9, 'new', NULL)) AS s (id, name, q)
        ON t.id = s.id
        WHEN MATCHED AND s.id = 2 THEN DELETE
        WHEN MATCHED THEN UPDATE SET qty = s.q
        WHEN NOT MATCHED THEN INSERT (id, name, qty) VALUES (s.id, s.name, s.q)
        WHEN NOT MATCHED BY SOURCE AND t.id = 4 THEN UPDATE SET name = 'gone', qty = 0"""
    assert lake.sql(text).row_count == 4
    assert items(database) == {1: ("ann", 50), 3: (None, 9), 4: ("gone", 0), 9: ("new", None)}


def test_several_key_columns(lake: kt.Lake, database: SomeDatabase) -> None:
    database.run("CREATE TABLE pairs (a TEXT NOT NULL, v INTEGER, b INTEGER, PRIMARY KEY (b, a))")
    database.run("INSERT INTO pairs VALUES ('x', 1, 1), ('y', 2, 1), ('x', 3, 2)")
    assert lake.sql("UPDATE db.pairs SET v = v * 10 WHERE a LIKE 'x'").row_count == 2
    assert lake.sql("DELETE FROM db.pairs WHERE v % 20 = 10").row_count == 2
    assert database.rows("SELECT * FROM pairs") == [("y", 2, 1)]


def test_keys_are_matched_as_they_are_stored(warehouse: str, sqlite: SomeDatabase) -> None:
    sqlite.run(
        "CREATE TABLE t (at TIMESTAMP, d DECIMAL(5,2), b BOOLEAN, v TEXT, PRIMARY KEY (at, d, b))",
        "INSERT INTO t VALUES ('2026-01-01T00:00', 1.5, 2, 'x')",
        "INSERT INTO t VALUES ('2026-01-01 10:00:00.5', 2, 0, 'y')",
    )
    lake = kt.connect(warehouse)
    lake.attach("db", sqlite.place)
    assert lake.sql("UPDATE db.t SET v = concat(v, v)").row_count == 2
    assert sqlite.rows("SELECT v FROM t ORDER BY v") == [("xx",), ("yy",)]
    assert lake.sql("DELETE FROM db.t WHERE hour(at) = 10").row_count == 1
    assert sqlite.rows("SELECT v FROM t") == [("xx",)]


@pytest.mark.takes_turns
def test_table_of_very_many_columns_whose_first_values_are_null(
    warehouse: str, sqlite: SomeDatabase
) -> None:
    columns = ", ".join(f"c{number} TEXT" for number in range(1200))
    numbers = "WITH RECURSIVE x (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 1200)"
    sqlite.run(
        f"CREATE TABLE t (k INTEGER PRIMARY KEY, {columns})",
        f"{numbers} INSERT INTO t (k, c7) SELECT n, CASE WHEN n > 1100 THEN 'x' END FROM x",
    )
    lake = kt.connect(warehouse)
    lake.attach("db", sqlite.place)
    assert answer(lake, "SELECT count(c7), max(c7) FROM db.t") == [(100, "x")]
    assert lake.sql("UPDATE db.t SET c1199 = 'y' WHERE c7 LIKE 'x' AND k % 2 = 0").row_count == 50


def test_table_without_a_primary_key_is_read_only(lake: kt.Lake, database: SomeDatabase) -> None:
    database.run("CREATE TABLE loose (a INTEGER)", "INSERT INTO loose VALUES (1)")
    assert answer(lake, "SELECT a FROM db.loose") == [(1,)]
    for text in ("DELETE FROM db.loose", "UPDATE db.loose SET a = 2"):
        with pytest.raises(kt.UnsupportedError, match="no primary key"):
            lake.sql(text)
    assert database.rows("SELECT a FROM loose") == [(1,)]


DEFAULTS = {
    "sqlite": "id INTEGER PRIMARY KEY, a INTEGER DEFAULT 7, s TEXT DEFAULT 'it''s', "
    "n INTEGER DEFAULT NULL, c TEXT NOT NULL DEFAULT (upper('now'))",
    "postgres": "id SERIAL PRIMARY KEY, a INT DEFAULT 7, s VARCHAR(9) DEFAULT 'it''s', "
    "n INT DEFAULT NULL, c TEXT NOT NULL DEFAULT upper('now')",
}


def test_columns_that_a_merge_leaves_out_have_their_defaults(
    lake: kt.Lake, database: SomeDatabase
) -> None:
    database.run(f"CREATE TABLE made ({DEFAULTS[database.kind]})")
    lake.sql(
        "MERGE INTO db.made AS t USING (VALUES (1), (2)) AS s (x) ON t.id = s.x + 100 "
        "WHEN NOT MATCHED AND s.x = 1 THEN INSERT (n) VALUES (s.x)"
        "WHEN NOT MATCHED THEN INSERT (a) VALUES (s.x)"
    )
    found = database.rows("SELECT a, s, n, c FROM made ORDER BY a")
    assert found == [(2, "it's", None, "NOW"), (7, "it's", 1, "NOW")]
    assert database.rows("SELECT count(id), count(DISTINCT id) FROM made") == [(2, 2)]


# -- inserting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("INSERT INTO db.items VALUES (7, 'eve', 1), (8, NULL, NULL)",
         {7: ("eve", 1), 8: (None, None)}),
        ("INSERT INTO DB.Items (QTY, id) VALUES (3, 7)", {7: (None, 3)}),
        ("INSERT INTO db.items SELECT id + 10, name, qty FROM db.items WHERE qty = 5",
         {11: ("ann", 5), 14: ("Zoe", 5)}),
        ("INSERT INTO db.items (id) SELECT sum(id) FROM db.items", {10: (None, None)}),
        ("INSERT INTO db.items SELECT k, s, NULL FROM t ORDER BY k LIMIT 1", {20: ("x", None)}),
        ("INSERT INTO db.items SELECT k, s, q FROM t JOIN db.items ON q = qty", {21: ("y", 9)}),
        ("INSERT INTO db.items SELECT * FROM db.items WHERE id > 100", {}),
    ],
)  # fmt: skip
def test_rows_are_inserted_from_values_and_queries(
    lake: kt.Lake, database: SomeDatabase, text: str, added: dict[int, Row]
) -> None:
    lake.sql("CREATE TABLE t (k INT PRIMARY KEY, s STRING, q INT)")
    lake.sql("INSERT INTO t VALUES (20, 'x', 0), (21, 'y', 9)")
    assert lake.sql(text).row_count == len(added)
    assert items(database) == ITEMS | added


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO db.items VALUES ('x', 'y', 1)", r"'id' is .*, but the query returns string"),
        ("INSERT INTO db.items VALUES (7, 'y', DATE '2026-01-31')", "'qty' is .*CAST"),
        (
            "INSERT INTO db.items VALUES (7, 'y')",
            "returns 2 columns, but the statement names 3: id, n",
        ),
        ("INSERT INTO db.items SELECT id, name FROM db.items WHERE id > 100", "returns 2 columns"),
        ("INSERT INTO db.items (id, ID) VALUES (7, 8)", "names a column twice"),
        ("INSERT INTO db.items VALUES (7, 'y', 1), (1, 'ann', 1)", "refuses the rows"),
        ("INSERT INTO db.items VALUES (7, 'y', 1), (7, 'z', 1)", "refuses the rows"),
        ("INSERT INTO db.one VALUES (1, 'x'), (2, NULL)", "name"),
        ("INSERT INTO db.one (id) VALUES (2)", "name"),
        ("INSERT INTO db.items SELECT CAST(s AS INT), s, 1 FROM t", "'x'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_inserted(
    lake: kt.Lake, database: SomeDatabase, text: str, message: str
) -> None:
    database.run("CREATE TABLE one (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    lake.sql("CREATE TABLE t (k INT PRIMARY KEY, s STRING)")
    lake.sql("INSERT INTO t VALUES (1, '11'), (2, '12'), (3, 'x')")
    with pytest.raises(kt.InvalidError, match=message) as raised:
        lake.sql(text)
    assert "keytide_stage" not in str(raised.value)
    assert items(database) == ITEMS
    assert database.rows("SELECT * FROM one") == []


def test_what_an_attached_table_does_not_know_is_refused(
    lake: kt.Lake, database: SomeDatabase
) -> None:
    for text in ("OVERWRITE db.items VALUES (7, 'x', 1)", "INTO db.items PARTITION (id = 7) VALUES"
                 " ('x', 1)"):  # fmt: skip
        with pytest.raises(kt.UnsupportedError, match="supports neither OVERWRITE nor PARTITION"):
            lake.sql(f"INSERT {text}")
    with pytest.raises(kt.NotFoundError, match="no column 'other'"):
        lake.sql("INSERT INTO db.items (other) VALUES (7)")
    with pytest.raises(kt.NotFoundError, match="items"):
        lake.sql("INSERT INTO db.nothing VALUES (7)")
    assert items(database) == ITEMS


def test_values_of_all_types_are_inserted(typed: kt.Lake, database: SomeDatabase) -> None:
    typed.sql(f"UPDATE db.typed SET {LITERALS}")
    typed.sql("INSERT INTO db.typed SELECT k + 1, i, b, d, f, s, x, da, ts FROM db.typed")
    typed.sql("CREATE TABLE t AS SELECT * FROM db.typed WHERE k = 2")
    typed.sql("INSERT INTO db.typed SELECT k + 1, i, b, d, f, s, x, da, ts FROM t")
    found = typed.sql("SELECT * FROM db.typed ORDER BY k").to_pylist()
    assert found == [{"k": key, **VALUES} for key in (1, 2, 3)]
    with pytest.raises(kt.InvalidError, match="'d' is DECIMAL"):
        typed.sql("INSERT INTO db.typed (k, d) VALUES (9, 1.005)")


def test_columns_that_are_left_out_have_the_defaults_of_the_database(
    lake: kt.Lake, database: SomeDatabase
) -> None:
    database.run(f"CREATE TABLE made ({DEFAULTS[database.kind]})")
    lake.sql("INSERT INTO db.made (n) VALUES (1), (2)")
    assert database.rows("SELECT id, a, s, n, c FROM made ORDER BY n") == [
        (1, 7, "it's", 1, "NOW"), (2, 7, "it's", 2, "NOW"),
    ]  # fmt: skip


def test_table_without_a_key_takes_rows(lake: kt.Lake, database: SomeDatabase) -> None:
    database.run("CREATE TABLE loose (a INTEGER)")
    lake.sql("INSERT INTO db.loose VALUES (1), (1); INSERT INTO db.loose SELECT a FROM db.loose")
    assert database.rows("SELECT a FROM loose") == [(1,)] * 4


def test_rows_stream_and_those_before_an_error_are_gone_too(
    lake: kt.Lake, database: SomeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keytide.sql.local_query._PAGE_ROWS", 2048)
    store_rows, stored = Insertion.store_rows, itertools.count()

    def fails_late(insertion: Insertion, page: Any) -> None:
        if next(stored) == 5:
            raise kt.DataError("the source is gone")
        store_rows(insertion, page)

    monkeypatch.setattr(Insertion, "store_rows", fails_late)
    lake.sql("CREATE TABLE t (k INT)")
    lake.table("t").write(pa.table({"k": range(100, 20_000)}))
    with pytest.raises(kt.DataError, match="the source is gone"):
        lake.sql("INSERT INTO db.items (id) SELECT k FROM t")
    assert items(database) == ITEMS
    assert lake.sql("INSERT INTO db.items (id) SELECT k FROM t").row_count == 19_900
    assert len(items(database)) == 19_904


def test_connection_that_breaks_before_the_commit_leaves_nothing(
    lake: kt.Lake, database: SomeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise OSError("the line is cut")

    monkeypatch.setattr("keytide.dml.database_changes.commit", broken)
    with pytest.raises(kt.DataError, match="the line is cut"):
        lake.sql("INSERT INTO db.items VALUES (7, 'x', 1)")
    assert items(database) == ITEMS


STATEMENTS = [
    ("DELETE FROM db.items WHERE {}", lambda row, key: None),
    ("UPDATE db.items SET qty = id + 1, name = 'x' WHERE {}", lambda row, key: (key, "x", key + 1)),
    ("UPDATE db.items SET name = NULL WHERE {}", lambda row, key: (key, None, row[1])),
    ("UPDATE db.items SET id = 11 - id WHERE {}", lambda row, key: (11 - key, *row)),
]
CONDITIONS = [
    ("id % 3 = {}", lambda row, key, n: key % 3 == n),
    ("id > {}", lambda row, key, n: key > n),
    ("qty = {}", lambda row, key, n: row[1] == n),
    ("name IS NULL AND id <> {}", lambda row, key, n: row[0] is None and key != n),
    ("TRUE", lambda row, key, n: True),
]
STEP = st.tuples(st.sampled_from(STATEMENTS), st.sampled_from(CONDITIONS), st.integers(0, 9))


@pytest.mark.takes_turns
@settings(max_examples=5)
@given(steps=st.lists(STEP, min_size=1, max_size=6))
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_statements_do_what_they_do_to_a_dict(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: Any, steps: list[Any]
) -> None:
    database: SomeDatabase = request.getfixturevalue(kind)
    database.run(
        "DROP TABLE IF EXISTS items",
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR(20), qty INTEGER)",
        *(f"INSERT INTO items VALUES ({n}, 'r', NULLIF({n} % 4, 0))" for n in range(1, 11)),
    )
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    lake.attach("db", database.place)
    known: dict[int, Row] = {n: ("r", n % 4 or None) for n in range(1, 11)}
    for (text, changed), (where, holds), number in steps:
        met = {key for key, row in known.items() if holds(row, key, number)}
        rest = {key: row for key, row in known.items() if key not in met}
        made = [changed(known[key], key) for key in met]
        after = rest | {row[0]: row[1:] for row in made if row is not None}
        statement = text.format(where.format(number))
        if len(after) < len(rest) + sum(row is not None for row in made):
            with pytest.raises(kt.InvalidError, match="refuses the rows"):
                lake.sql(statement)
            continue
        assert lake.sql(statement).row_count == len(met)
        known = after
        assert items(database) == known


# -- other transactions ----------------------------------------------------------------------------


class Meanwhile:
    """A host that finds rows by id, changes them, and lets something happen before the end."""

    def __init__(self, wanted: set[int], happens: Any) -> None:
        self.wanted, self.happens = wanted, happens

    def change(self, scanned: Any, change: Any, take: Any) -> None:
        for split in scanned.splits:
            source = scanned.pages.create_page_source(
                scanned.session, scanned.table, split, scanned.columns
            )
            while (page := source.get_next_page()) is not None:
                found = [i for i, v in enumerate(page.column("id").to_pylist()) if v in self.wanted]
                change.apply(source, page.take(found).select(["qty", "$row_id"]))
            take(SplitResult(len(self.wanted), source.finish()))
            source.close()
        self.happens()


@pytest.mark.parametrize("change", [DeleteRows(), UpdateRows(("qty",))])
@pytest.mark.parametrize(
    ("meanwhile", "is_conflict"),
    [
        ("UPDATE items SET name = 'other' WHERE id = 1", True),
        ("UPDATE items SET qty = NULL WHERE id = 3", True),
        ("DELETE FROM items WHERE id = 1", True),
        ("UPDATE items SET name = 'other' WHERE id = 2", False),
        ("INSERT INTO items VALUES (10, 'new', 1)", False),
    ],
)
def test_no_change_of_another_transaction_is_lost(
    database: SomeDatabase, lake: kt.Lake, change: Any, meanwhile: str, is_conflict: bool
) -> None:
    connector: Connector = lake.catalog.attached["db"]
    session = ConnectorSession()
    handle = connector.metadata.get_table_handle(session, "items")
    columns = connector.metadata.get_table_schema(session, handle).columns
    host = Meanwhile({1, 3}, lambda: database.run(meanwhile))
    if not is_conflict:
        changed = change_rows(connector, session, handle, change, columns, (), host)
        assert changed.rows == 2
        return
    with pytest.raises(kt.ConflictError, match="only 1 of 2 rows to change are unchanged"):
        change_rows(connector, session, handle, change, columns, (), host)
    expected = dict(ITEMS)
    if "DELETE" in meanwhile:
        del expected[1]
    elif "name" in meanwhile:
        expected[1] = ("other", 5)
    else:
        expected[3] = (None, None)
    assert items(database) == expected


def test_statements_at_once_lose_no_update(lake: kt.Lake, database: SomeDatabase) -> None:
    def add(_: int) -> int:
        return int(lake.sql("UPDATE db.items SET qty = qty + 1 WHERE id = 1").row_count)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, range(8))) == [1] * 8
    assert items(database)[1] == ("ann", 13)


COUNT_UP = (
    "MERGE INTO db.items AS t USING (VALUES (9)) AS s (x) ON t.id = s.x "
    "WHEN MATCHED THEN UPDATE SET qty = t.qty + 1 "
    "WHEN NOT MATCHED THEN INSERT (id, qty) VALUES (s.x, 1)"
)


class LateHost:
    """Lets another statement come first, once, and then merges."""

    def __init__(self, host: Any, happens: Any) -> None:
        self.host, self.happens = host, happens

    def merge(self, scanned: Any, sinks: Any, take: Any) -> None:
        self.host.merge(scanned, sinks, take)
        self.happens()


def test_merges_that_insert_the_same_row_come_one_after_the_other(
    lake: kt.Lake, database: SomeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = iter(["INSERT INTO items VALUES (9, NULL, 41)"])
    make = LocalEngine.merge_host

    def late(engine: Any, query: Any, memory_bytes: int) -> Any:
        host = make(engine, query, memory_bytes)
        return LateHost(host, lambda: database.run(*(next(others, "SELECT 1"),)))

    monkeypatch.setattr(LocalEngine, "merge_host", late)
    assert lake.sql(COUNT_UP).row_count == 1
    assert items(database)[9] == (None, 42)


def test_merge_that_inserts_a_key_that_is_there_is_refused(
    lake: kt.Lake, database: SomeDatabase
) -> None:
    with pytest.raises(kt.InvalidError, match="refuses the rows"):
        lake.sql(COUNT_UP.replace("(s.x, 1)", "(1, 1)"))
    assert items(database) == ITEMS


def test_database_that_stays_locked_is_a_conflict(
    sqlite: SomeDatabase, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keytide.dml.database_dialects._PATIENCE_MS", 10)
    monkeypatch.setattr("keytide.dml.row_statements._ATTACHED_TRIES", 1)
    sqlite.run("CREATE TABLE t (a INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lake = kt.connect(warehouse)
    lake.attach("db", sqlite.place)
    with closing(sqlite.connect(sqlite.place)) as other, other.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        for text in ("DELETE FROM db.t", "UPDATE db.t SET a = a + 1"):
            with pytest.raises(kt.ConflictError, match="another transaction blocks this one"):
                lake.sql(text)
    assert sqlite.rows("SELECT a FROM t") == [(1,)]


@pytest.fixture
def strict(lake: kt.Lake, database: SomeDatabase) -> kt.Lake:
    """The lake with the same database as `strict`, whose statements are serializable."""
    lake.attach("strict", database.place, isolation="serializable")
    return lake


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("text", "count", "after"),
    [
        ("UPDATE strict.items SET qty = 6 WHERE qty + 0 = 5", 2, {1: ("ann", 6), 4: ("Zoe", 6)}),
        ("UPDATE strict.items SET id = 5 - id", 4, {5 - key: row for key, row in ITEMS.items()}),
        ("DELETE FROM strict.items WHERE qty = 5", 2, {1: None, 4: None}),
        ("DELETE FROM strict.items WHERE name LIKE '%o%'", 2, {2: None, 4: None}),
        ("INSERT INTO strict.items SELECT max(id) + 1, 'new', NULL FROM strict.items", 1,
         {5: ("new", None)}),
        ("MERGE INTO strict.items t USING strict.items s ON t.id = s.id + 1 WHEN MATCHED THEN "
         "UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id + 1)", 4,
         {2: ("ann", None), 3: ("bob", 9), 4: (None, 5), 5: (None, None)}),
        ("UPDATE strict.items SET qty = 0 WHERE id > 100", 0, {}),
    ],
)  # fmt: skip
def test_serializable_statements_do_what_others_do(
    strict: kt.Lake, database: SomeDatabase, text: str, count: int, after: dict[int, Any]
) -> None:
    assert strict.sql(text).row_count == count
    assert items(database) == {k: row for k, row in {**ITEMS, **after}.items() if row is not None}
    assert strict.sql("UPDATE db.items SET qty = 1 WHERE id > 0").row_count > 0  # nothing is locked


class Between:
    """Has something happen once, when a statement has read and not yet written."""

    def __init__(self, happens: Any) -> None:
        self.happens = iter([happens])

    def __call__(self, *_: Any) -> None:
        next(self.happens, lambda: None)()


def test_serializable_statement_that_read_what_another_changed_starts_again(
    lake: kt.Lake, postgres: SomeDatabase, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With `snapshot` both would say that nothing is taken: each reads what the other one writes.
    postgres.run("CREATE TABLE rooms (id INT PRIMARY KEY, taken INT)")
    postgres.run("INSERT INTO rooms VALUES (1, 0), (2, 0)")
    first, second = kt.connect(warehouse), kt.connect(warehouse)
    for each in (first, second):
        each.attach("pg", postgres.place, isolation="serializable")
    take = "UPDATE pg.rooms SET taken = (SELECT 1 - max(taken) FROM pg.rooms) WHERE id = {}"
    between = Between(lambda: second.sql(take.format(2)))
    monkeypatch.setattr(LocalRowHost, "change", happening_after(LocalRowHost.change, between))
    assert first.sql(take.format(1)).row_count == 1
    assert sorted(postgres.rows("SELECT id, taken FROM rooms")) == [(1, 0), (2, 1)]


def happening_after(change: Any, between: Between) -> Any:
    def changed(*arguments: Any) -> None:
        change(*arguments)
        between()

    return changed


def test_serializable_statement_of_sqlite_keeps_writers_out_while_it_reads(
    warehouse: str, sqlite: SomeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER)", "INSERT INTO t VALUES (1, 1)")
    lake = kt.connect(warehouse)
    lake.attach("db", sqlite.place, isolation="serializable")
    refused: list[Exception] = []

    def write() -> None:
        try:
            sqlite.run("UPDATE t SET b = 7")
        except Exception as error:
            refused.append(error)

    monkeypatch.setattr(
        LocalRowHost, "change", happening_after(LocalRowHost.change, Between(write))
    )
    assert lake.sql("UPDATE db.t SET b = b + 1").row_count == 1
    assert ["locked" in str(error) for error in refused] == [True]
    assert sqlite.rows("SELECT b FROM t") == [(2,)]


@pytest.mark.takes_turns
@pytest.mark.spark
def test_tasks_of_spark_read_at_the_moment_of_a_serializable_statement(
    lake: kt.Lake, database: SomeDatabase, warehouse: str, spark: Any
) -> None:
    on_spark = kt.connect(warehouse, spark=spark)
    on_spark.attach("strict", database.place, isolation="serializable")
    text = "UPDATE strict.items SET qty = (SELECT max(qty) FROM strict.items) WHERE qty + 0 = 5"
    assert on_spark.sql(text).row_count == 2
    assert items(database) == {**ITEMS, 1: ("ann", 9), 4: ("Zoe", 9)}


def test_serializable_statement_that_fails_holds_nothing(
    strict: kt.Lake, database: SomeDatabase
) -> None:
    for text in (
        "UPDATE strict.items SET id = 1",
        "DELETE FROM strict.items WHERE nothing = 1",
        "INSERT INTO strict.items VALUES (1, 'x', 1)",
        "DELETE FROM strict.none",
    ):
        with pytest.raises((kt.InvalidError, kt.NotFoundError)):
            strict.sql(text)
    assert items(database) == ITEMS
    connector: Connector = strict.catalog.attached["strict"]
    assert connector.metadata.transactions._open_transactions == {}  # type: ignore[attr-defined]
    assert strict.sql("UPDATE db.items SET qty = 1").row_count == 4


# -- connecting ------------------------------------------------------------------------------------


def test_scan_pickles_and_shows_no_password(database: SomeDatabase, lake: kt.Lake) -> None:
    connector = lake.catalog.attached["db"]
    session = ConnectorSession()
    handle = connector.metadata.get_table_handle(session, "items")
    columns = connector.metadata.get_table_schema(session, handle).columns
    scan = PagesScan(connector, session, handle, columns)
    again = pickle.loads(pickle.dumps(scan))
    assert sum(batch.num_rows for batch in again.to_batches()) == 4
    assert database.place not in repr(scan) or database.kind == "sqlite"


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("sqlite:///no/such.db", kt.NotFoundError, "the file .* does not exist"),
        ("/no/such.db", kt.NotFoundError, "the file /no/such.db does not exist"),
        ("mysql://u:secret@host/db", kt.InvalidError, "unknown kind of database URI"),
        ("postgresql://u:secret@127.0.0.1:1/db", kt.DataError, "127.0.0.1:1/db"),
        ("postgresql://u:secret@127.0.0.1:port/db", kt.InvalidError, "URI is invalid"),
        ("postgresql://u@127.0.0.1:1/db?password=secret&x", kt.InvalidError, "URI is invalid"),
        ("postgresql://u@127.0.0.1:1/db?password=secret", kt.DataError, "127.0.0.1:1/db"),
    ],
)
def test_place_that_leads_nowhere(
    warehouse: str, place: str, error: type[kt.KeytideError], message: str
) -> None:
    lake = kt.connect(warehouse)
    with pytest.raises(error, match=message) as raised:
        lake.attach("db", place)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert lake.attached == []


@pytest.mark.spark
def test_spark_reads_and_changes_a_database(
    warehouse: str, sqlite: SomeDatabase, spark: Any
) -> None:
    sqlite.run(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)",
    )
    lake = kt.connect(warehouse, spark=spark)
    lake.attach("db", sqlite.place)
    assert lake.sql("SELECT max(b) AS m FROM db.t WHERE a > 0").to_pylist() == [{"m": "y"}]
    assert lake.sql("UPDATE db.t SET b = concat(b, a) WHERE a % 2 = 1").row_count == 2
    assert lake.sql("DELETE FROM db.t WHERE a + 0 = 2").row_count == 1
    assert sqlite.rows("SELECT * FROM t") == [(1, "x1"), (3, None)]
