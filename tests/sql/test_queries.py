"""SELECT on the local engine: names, time travel, and what is read of each table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.predicate.condition import text_of
from keytide.sql.grammar import parse_statements
from keytide.sql.relations import bind
from table_rows import answer

TABLES = """
CREATE TABLE shop.orders (id INT, customer STRING, qty INT, PRIMARY KEY (id) NOT ENFORCED);
INSERT INTO shop.orders VALUES (1, 'ann', 5), (2, 'bob', 7), (3, NULL, 9);
INSERT INTO shop.orders VALUES (2, 'bob', 8);
CREATE TABLE customers (name STRING, `Home Town` STRING, PRIMARY KEY (name) NOT ENFORCED);
INSERT INTO customers VALUES ('ann', 'Oslo'), ('bob', 'Rome'), ('eve', 'Bonn')
"""


def test_every_reader_sees_the_merged_row(lake: kt.Lake) -> None:
    assert answer(lake, "SELECT * FROM shop.orders ORDER BY id") == [
        (1, "ann", 5),
        (2, "bob", 8),
        (3, None, 9),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT count(*) FROM shop.orders", [(3,)]),
        ("SELECT sum(qty) FROM shop.orders", [(22,)]),
        ("SELECT ID, QTY FROM shop.orders WHERE Customer = 'ann'", [(1, 5)]),
        ("SELECT o.qty FROM shop.orders o, shop.orders p WHERE o.id = 1 AND p.id = 2", [(5,)]),
        ("SELECT `home town` FROM customers WHERE name = 'bob'", [("Rome",)]),
        (
            "SELECT c.name, o.qty FROM customers c LEFT JOIN shop.orders o ON o.customer = c.name "
            "WHERE o.qty IS NULL",
            [("eve", None)],
        ),
        (
            "SELECT o.id FROM shop.orders o WHERE o.customer IN (SELECT name FROM customers "
            "WHERE `Home Town` = 'Oslo')",
            [(1,)],
        ),
        (
            "WITH o AS (SELECT id FROM shop.orders WHERE id > 1) "
            "SELECT count(*) AS n FROM o AS a, o AS b",
            [(4,)],
        ),
        ("SELECT 1 AS x UNION ALL SELECT max(id) FROM shop.orders ORDER BY x", [(1,), (3,)]),
        ("SELECT x + 1 FROM (VALUES (1), (2)) AS v(x) ORDER BY x", [(2,), (3,)]),
        ("VALUES (1, 'it''s')", [(1, "it's")]),
        ("SELECT MAP['k', 1]['k'], ARRAY[1, 2][0], X'1F'", [(1, 1, b"\x1f")]),
        ("SELECT CAST('2024-01-02 03:04:05' AS TIMESTAMP(3)) > DATE '2024-01-01'", [(True,)]),
    ],
)
def test_query_gives_its_rows(lake: kt.Lake, text: str, expected: list[tuple[Any, ...]]) -> None:
    assert answer(lake, text) == expected


@pytest.mark.parametrize(
    ("source", "qty"),
    [
        ("shop.orders", 8),
        ("shop.orders VERSION AS OF 1", 7),
        ("shop.orders FOR VERSION AS OF 2", 8),
        ("shop.orders /*+ OPTIONS('scan.snapshot-id' = '1') */", 7),
        ("shop.orders /*+ OPTIONS('scan.version' = '1') */ AS o", 7),
        ("shop.orders /*+ OPTIONS('SCAN.snapshot_id' = '1') */ AS o", 7),
    ],
)
def test_time_travel_reads_an_older_snapshot(lake: kt.Lake, source: str, qty: int) -> None:
    assert answer(lake, f"SELECT qty FROM {source} WHERE id = 2") == [(qty,)]


def test_options_are_those_of_their_own_statement(lake: kt.Lake) -> None:
    then = "SELECT qty FROM shop.orders /*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE id = 2"
    last = "SELECT max(qty) AS qty FROM shop.orders /*+ OPTIONS('scan.snapshot-id' = '1') */"
    now = "SELECT qty FROM shop.orders WHERE id = 2; SELECT max(qty) AS qty FROM shop.orders"
    found = [each.to_pylist() for each in lake.sql_results(f"{now}; {then}; {last}; {now}; {last}")]
    assert [row["qty"] for (row,) in found] == [8, 9, 7, 9, 8, 9, 9]


def test_options_between_statements_are_refused(lake: kt.Lake) -> None:
    text = "SELECT 1; /*+ OPTIONS('scan.snapshot-id' = '1') */ SELECT 2"
    with pytest.raises(kt.InvalidError, match="a hint belongs into a statement"):
        lake.sql(text)


def test_system_table_travels_too(lake: kt.Lake) -> None:
    now = answer(lake, "SELECT count(*) FROM shop.orders$files")
    then = answer(lake, "SELECT count(*) FROM shop.orders$files VERSION AS OF 1")
    assert (then, now) == ([(1,)], [(2,)])


@pytest.mark.parametrize(
    "source",
    [
        "shop.orders /*+ OPTIONS('scan.snapshot-id' = '1', 'scan.tag-name' = 'x') */",
        "shop.orders /*+ OPTIONS('scan.timestamp' = '2024', 'scan.timestamp-millis' = '1') */",
        "shop.orders /*+ OPTIONS('scan.snapshot-id' = '1') */ VERSION AS OF 2",
    ],
)
def test_two_ways_to_name_a_snapshot_are_refused(lake: kt.Lake, source: str) -> None:
    with pytest.raises(kt.InvalidError, match=r"give only one|expected|unexpected"):
        answer(lake, f"SELECT qty FROM {source}")


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ("'incremental-between' = '1,2', 'incremental-between-scan-mode' = 'diff'", ["+U", "-U"]),
        ("'incremental-between' = '1, 2', 'incremental-between-scan-mode' = 'delta'", ["+I"]),
        ("'incremental-between' = '1,2'", ["+I"]),
        ("'incremental-between' = '2,2'", []),
    ],
)
def test_changes_are_read_from_the_audit_log(lake: kt.Lake, options: str, kinds: list[str]) -> None:
    source = f"shop.orders$audit_log /*+ OPTIONS({options}) */"
    assert answer(lake, f"SELECT rowkind FROM {source} WHERE id = 2 ORDER BY 1") == [
        (kind,) for kind in kinds
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("shop.orders /*+ OPTIONS('incremental-between' = '1,2') */", r"orders\$audit_log"),
        ("shop.orders$files /*+ OPTIONS('incremental-between' = '1,2') */", r"orders\$audit_log"),
        ("shop.orders$audit_log /*+ OPTIONS('incremental-between' = '1') */", "is '1'; expected"),
        (
            "shop.orders$audit_log /*+ OPTIONS('incremental-between-scan-mode' = 'diff') */",
            "do not select what to read",
        ),
        (
            "shop.orders$audit_log /*+ OPTIONS('incremental-between' = '1,2') */ VERSION AS OF 1",
            "do not select what to read|expected|unexpected",
        ),
        (
            "shop.orders$audit_log /*+ OPTIONS('incremental-between' = '0,1', "
            "'incremental-between-scan-mode' = 'dif') */",
            "mode is 'dif'",
        ),
    ],
)
def test_changes_that_cannot_be_told_are_refused(lake: kt.Lake, source: str, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        answer(lake, f"SELECT * FROM {source}")


def test_time_travel_by_timestamp_takes_the_snapshot_of_that_time(lake: kt.Lake) -> None:
    first, second = (s.time_millis for s in lake.table("shop.orders").snapshots())
    text = "SELECT qty FROM shop.orders /*+ OPTIONS('scan.timestamp-millis' = '{}') */ WHERE id = 2"
    assert answer(lake, text.format(second)) == [(8,)]
    if first < second:
        assert answer(lake, text.format(second - 1)) == [(7,)]


def test_tables_of_one_query_travel_each_on_their_own(lake: kt.Lake) -> None:
    text = (
        "SELECT a.qty, b.qty FROM shop.orders VERSION AS OF 1 a "
        "JOIN shop.orders b ON a.id = b.id WHERE a.id = 2"
    )
    assert [tuple(r) for r in zip(*lake.sql(text).to_arrow().columns, strict=True)] == [
        (pa.scalar(7, pa.int32()), pa.scalar(8, pa.int32()))
    ]


@pytest.mark.parametrize(
    ("text", "columns", "terms"),
    [
        ("SELECT qty FROM shop.orders WHERE id = 1", ("id", "qty"), ("`id` = 1",)),
        ("SELECT count(*) FROM shop.orders", ("id",), ()),
        ("SELECT * FROM shop.orders", ("id", "customer", "qty"), ()),
        (
            "SELECT id FROM shop.orders WHERE qty > 3 AND upper(customer) = 'A'",
            ("id", "customer", "qty"),
            ("`qty` > 3",),
        ),
        ("SELECT id FROM (SELECT * FROM shop.orders) WHERE qty > 3", ("id", "customer", "qty"), ()),
        (
            "SELECT o.id FROM shop.orders o LEFT JOIN customers c ON true WHERE o.qty > 3",
            ("id", "qty"),
            ("`qty` > 3",),
        ),
        (
            "SELECT o.id FROM customers c LEFT JOIN shop.orders o ON true WHERE o.qty IS NULL",
            ("id", "qty"),
            (),
        ),
    ],
)
def test_only_what_a_query_needs_is_read(
    lake: kt.Lake, text: str, columns: tuple[str, ...], terms: tuple[str, ...]
) -> None:
    [query] = parse_statements(text)
    [relation] = [
        r
        for r in bind(query, lake.catalog).relations
        if r.table.name == "shop.orders"  # type: ignore[arg-type]  # it is a query
    ]
    read_by = tuple(text_of(term, relation.fields) for term in relation.terms)
    assert (relation.columns, read_by) == (columns, terms)


def test_explain_shows_pruning_and_reads_nothing(lake: kt.Lake) -> None:
    plan = "\n".join(
        line for (line,) in answer(lake, "EXPLAIN SELECT qty FROM shop.orders WHERE id = 1")
    )
    assert "key range" in plan
    assert "columns: id, qty" in plan
    assert "read by: `id` = 1" in plan


def test_system_table_joins_like_any_other(lake: kt.Lake) -> None:
    text = "SELECT s.commit_kind FROM shop.orders$snapshots s WHERE s.snapshot_id = 1"
    assert answer(lake, text) == [("APPEND",)]
    assert answer(lake, "SELECT count(*) FROM `customers$files`") == [(1,)]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("SELECT * FRM customers", kt.InvalidError, "line 1, column 14"),
        (
            "SELECT nam FROM customers",
            kt.InvalidError,
            "line 1, column 8: the query cannot be executed",
        ),
        (
            "SELECT *\nFROM nobody",
            kt.NotFoundError,
            "line 2, column 6: table default.nobody does not exist",
        ),
        ("SELECT * FROM customers$nothing", kt.NotFoundError, "snapshots"),
        ("SELECT * FROM customers VERSION AS OF 9", kt.NotFoundError, "snapshot 9"),
        (
            "SELECT * FROM customers /*+ OPTIONS('scan.bogus' = '1') */",
            kt.InvalidError,
            "scan.snapshot-id",
        ),
        ("SELEKT 1", kt.InvalidError, "expected a statement"),
        ("SELECT 1; SELECT (", kt.InvalidError, "line 1, column"),
        ("MERGE INTO customers USING x", kt.InvalidError, "cannot be parsed"),
        ("", kt.InvalidError, "no statement"),
        ("CALL sys.nothing(1)", kt.NotFoundError, "sys.why"),
        (
            "CALL sys.why('customers', a => 1)",
            kt.InvalidError,
            "no argument 'a'; arguments: table, key",
        ),
        ("SELECT 1 FOR UPDATE", kt.InvalidError, "not supported in duckdb\n"),
    ],
)
def test_wrong_query_is_refused_with_its_place(
    lake: kt.Lake, text: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        lake.sql(text)


WORDS = re.findall(
    r"\S+",
    """
    SELECT a , sum ( b ) OVER ( ORDER BY c ) AS d FROM t JOIN u USING ( e ) WHERE f IN ( 1 , 2 ) ;
    EXPLAIN SELECT * FROM t VERSION AS OF 3 ; UPDATE t SET a = CAST ( 1 AS INT ) ;
    INSERT INTO t PARTITION ( p = 1 ) ( a ) VALUES ( 1 + 1 , 'x' ) ; DELETE FROM t WHERE NOT a
    """,
)


@pytest.mark.parametrize("instead", ["", "SELECT", ")", ",", "1"])
def test_errors_speak_of_sql_and_not_of_the_parser(instead: str) -> None:
    def message(text: str) -> str:
        try:
            parse_statements(text)
        except kt.InvalidError as error:
            return str(error).splitlines()[0]
        return ""

    texts = (" ".join([*WORDS[:i], instead, *WORDS[i + 1 :]]) for i in range(len(WORDS)))
    messages = [message(text) for text in texts]
    assert any(messages)
    assert not [m for m in messages if re.search("<class|<Token|sqlglot|keyword: '|'  ", m)]


def test_nothing_runs_when_a_later_statement_does_not_parse(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError):
        lake.sql("INSERT INTO customers VALUES ('zoe', 'Riga'); SELECT FROM WHERE")
    assert answer(lake, "SELECT count(*) FROM customers WHERE name = 'zoe'") == [(0,)]


def test_a_torn_file_is_named_by_the_query_that_meets_it(lake: kt.Lake, warehouse: str) -> None:
    [file, *_] = Path(warehouse).rglob("customers/**/*.parquet")
    file.write_bytes(b"torn")
    with pytest.raises(kt.DataError, match=file.name):
        lake.sql("SELECT * FROM customers")


def test_result_takes_every_shape(lake: kt.Lake) -> None:
    result = lake.sql("SELECT id FROM shop.orders WHERE id < 3 ORDER BY id")
    assert result.row_count == 2
    assert result.to_arrow().column("id").to_pylist() == [1, 2]
    assert result.to_polars()["id"].to_list() == [1, 2]
    assert result.to_pandas()["id"].tolist() == [1, 2]
    assert result.to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(kt.UnsupportedError, match="spark"):
        result.to_spark()
