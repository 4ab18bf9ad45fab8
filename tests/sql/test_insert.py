"""INSERT: columns, conversions, partitions, and all or nothing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from table_rows import rows

TABLES = """
CREATE TABLE t (id INT, price DOUBLE, qty SMALLINT, at TIMESTAMP(3), d DATE,
  n DECIMAL(5, 2), tags ARRAY<STRING>, m MAP<STRING, INT>, r ROW<x INT, y STRING>, b BYTES,
  z TIMESTAMP_LTZ(3), ok BOOLEAN, PRIMARY KEY (id) NOT ENFORCED)
"""


def test_literals_become_the_types_of_their_columns(lake: kt.Lake) -> None:
    lake.sql(
        """
        INSERT INTO t VALUES (1, 25.2, 3, '2026-01-02 03:04:05.678', '2026-01-02', 7,
          ARRAY['a', NULL], MAP['k', 1], ROW(4, 'y'), X'00FF', '2026-01-02 03:04:05', true)
        """
    )
    assert lake.sql("SELECT * FROM t").to_pylist() == [
        {
            "id": 1,
            "price": 25.2,
            "qty": 3,
            "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678_000),
            "d": dt.date(2026, 1, 2),
            "n": Decimal("7.00"),
            "tags": ["a", None],
            "m": [("k", 1)],
            "r": {"x": 4, "y": "y"},
            "b": b"\x00\xff",
            "z": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc),
            "ok": True,
        }
    ]


def test_columns_left_out_are_null_or_their_default(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE u (k INT, a INT DEFAULT 5, b STRING, PRIMARY KEY (k) NOT ENFORCED)")
    assert lake.sql("INSERT INTO u (B, k) VALUES ('x', 1), (NULL, 2)").row_count == 2
    assert lake.sql("SELECT * FROM u ORDER BY k").to_pylist() == [
        {"k": 1, "a": 5, "b": "x"},
        {"k": 2, "a": 5, "b": None},
    ]


def test_query_of_other_tables_is_inserted(lake: kt.Lake) -> None:
    lake.sql("INSERT INTO t (id, qty) VALUES (1, 2), (2, 3)")
    lake.sql("INSERT INTO t (id, qty, tags) SELECT id + 10, qty * 2, array('n') FROM t")
    found = lake.sql("SELECT id, qty FROM t ORDER BY id").to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, 2), (2, 3), (11, 4), (12, 6)]


def test_row_kinds_come_from_their_column(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE u (k INT, kind STRING, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('rowkind.field' = 'kind'); "
        "INSERT INTO u VALUES (1, '+I'), (2, '+I'); INSERT INTO u VALUES (1, '-D')"
    )
    assert lake.sql("SELECT k FROM u").to_pylist() == [{"k": 2}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("(1, 'x')", "qty"),
        ("(1, 40000)", "qty"),
        ("(1, 1.5)", "qty"),
        ("(1, true)", "qty"),
        ("(NULL, 1)", "id"),
        ("(1, 2, 3)", "3 columns"),
        ("(1)", "1 column,"),
        ("(1, 2), (2, 'x')", "cannot be executed"),
        ("(1, CAST('x' AS INT))", "cannot be executed"),
    ],
)
def test_value_that_does_not_fit_writes_nothing(lake: kt.Lake, values: str, message: str) -> None:
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(f"INSERT INTO t (id, qty) VALUES {values}")
    assert message in str(caught.value)
    assert lake.table("t").snapshots() == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("d", "'2026-13-01'"), ("at", "'yesterday'"), ("n", "12345.67"), ("n", "1.005"),
     ("b", "'text'"), ("m", "MAP['k', 'v']"), ("r", "ROW(1)"), ("tags", "'a'"), ("ok", "1")],
)  # fmt: skip
def test_kind_of_value_that_a_column_does_not_take_is_named(
    lake: kt.Lake, column: str, value: str
) -> None:
    with pytest.raises(kt.InvalidError, match=f"column '{column}'"):
        lake.sql(f"INSERT INTO t (id, {column}) VALUES (1, {value})")
    assert lake.table("t").snapshots() == []


@pytest.mark.parametrize("columns", ["(id, nobody)", "(id, qty, qty)", "(id, ID)"])
def test_wrong_list_of_columns_is_refused(lake: kt.Lake, columns: str) -> None:
    values = ", ".join("1" * (columns.count(",") + 1))
    with pytest.raises(kt.KeytideError, match="column"):
        lake.sql(f"INSERT INTO t {columns} VALUES ({values})")


# -- INSERT OVERWRITE and partitions --------------------------------------------------------------


@pytest.fixture
def days(lake: kt.Lake) -> kt.Lake:
    lake.sql(
        """
        CREATE TABLE p (dt STRING, id INT, v INT, PRIMARY KEY (dt, id) NOT ENFORCED)
        PARTITIONED BY (dt);
        INSERT INTO p VALUES ('a', 1, 1), ('a', 2, 2), ('b', 1, 1)
        """
    )
    return lake


def p_rows(lake: kt.Lake) -> list[tuple[Any, ...]]:
    return rows(lake.sql("SELECT * FROM p"))


def test_partition_clause_gives_the_partition_columns(days: kt.Lake) -> None:
    days.sql("INSERT INTO p PARTITION (dt = 'c') VALUES (7, 8)")
    assert p_rows(days) == [("a", 1, 1), ("a", 2, 2), ("b", 1, 1), ("c", 7, 8)]


def test_overwrite_replaces_the_partitions_it_writes(days: kt.Lake) -> None:
    days.sql("INSERT OVERWRITE p VALUES ('a', 9, 9)")
    assert p_rows(days) == [("a", 9, 9), ("b", 1, 1)]


def test_overwrite_of_a_named_partition_replaces_it_even_by_nothing(days: kt.Lake) -> None:
    days.sql("INSERT OVERWRITE p PARTITION (dt = 'b') SELECT id, v FROM p WHERE v > 100")
    assert p_rows(days) == [("a", 1, 1), ("a", 2, 2)]


@pytest.mark.parametrize(
    "value",
    ["(SELECT 'c')", "(SELECT max(dt) FROM p)", "dt", "explode(ARRAY('c', 'd'))", "",
     "(SELECT content FROM read_text('a'))", "reflect('a', 'b')"],
)  # fmt: skip
def test_partition_clause_with_another_than_one_constant_is_refused(
    days: kt.Lake, value: str
) -> None:
    with pytest.raises(kt.InvalidError):
        days.sql(f"INSERT INTO p PARTITION (dt = {value}) VALUES (7, 8)")
    assert p_rows(days) == [("a", 1, 1), ("a", 2, 2), ("b", 1, 1)]


def test_partition_clause_with_another_column_is_refused(days: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match="not a partition column"):
        days.sql("INSERT INTO p PARTITION (v = 1) VALUES ('a', 2)")


@pytest.mark.one_in(14)
@pytest.mark.parametrize("zone", ["", "_LTZ"])
@pytest.mark.parametrize("precision", [0, 2, 3, 5, 6, 7, 9])
def test_text_is_a_time_whose_finer_fractions_are_cut(
    lake: kt.Lake, precision: int, zone: str
) -> None:
    lake.sql(f"CREATE TABLE w (k INT PRIMARY KEY NOT ENFORCED, t TIMESTAMP{zone}({precision}))")
    fractions = ["", "9", "987", "987654", "9876543", "987654321", "987654321987"]
    texts = [f"2024-02-29 01:02:03{'.' * bool(each)}{each}" for each in fractions]
    rows = ", ".join(f"({k}, '{text}')" for k, text in enumerate(texts))
    wanted = [1_709_168_523_000_000_000 + int(f[:precision].ljust(9, "0")) for f in fractions]

    def found() -> list[int]:
        times = lake.table("w").scan().to_arrow().sort_by("k").column("t")
        return times.cast(pa.timestamp("ns", times.type.tz)).cast(pa.int64()).to_pylist()

    lake.sql(f"INSERT INTO w VALUES {rows}")
    assert found() == wanted
    lake.sql(f"INSERT INTO w SELECT k, t FROM (VALUES {rows}) AS v (k, t)")
    assert found() == wanted
    lake.sql(f"INSERT INTO w SELECT k, CAST(t AS TIMESTAMP) FROM (VALUES {rows}) AS v (k, t)")
    assert found() == [at // 1000 * 1000 for at in wanted]
    cases = " ".join(f"WHEN {k} THEN '{text}'" for k, text in enumerate(texts))
    lake.sql(f"UPDATE w SET t = CASE k {cases} END")
    assert found() == wanted
