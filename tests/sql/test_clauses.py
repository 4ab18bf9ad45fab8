"""Every clause that the parser finds is acted on or refused, and what is refused does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlglot import exp

import keytide as kt
from keytide.sql.cursor import Cursor, parse_tree, tokenize
from keytide.sql.dml_grammar import delete_from, update_from
from keytide.sql.engine_text import engine_text
from keytide.sql.grammar import parse_statements
from keytide.sql.statements import Call
from table_rows import answer

TABLES = """
CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED);
INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, 30)
"""


def rows(lake: kt.Lake, text: str = "SELECT * FROM t ORDER BY id") -> list[tuple[Any, ...]]:
    return answer(lake, text)


# -- the parser's grammar, clause by clause --------------------------------------------------------

DELETE, UPDATE = "DELETE FROM t AS x WHERE id = 1", "UPDATE t AS x SET n = 1 WHERE id = 1"
ACTED_ON = {
    exp.Delete: {"this", "where"},
    exp.Update: {"this", "where", "expressions"},
    exp.Table: {"this", "db", "catalog", "alias"},
    exp.TableAlias: {"this"},
}


@pytest.mark.parametrize(
    ("text", "kind", "clause"),
    [
        (text, kind, clause)
        for text in (DELETE, UPDATE)
        for kind, acted_on in ACTED_ON.items()
        for clause in sorted(kind.arg_types.keys() - acted_on)
        if kind is parse_tree(text, tokenize(text), 0).find(kind).__class__
    ],
)
def test_every_clause_of_delete_and_update_but_those_acted_on_is_refused(
    text: str, kind: type[exp.Expr], clause: str
) -> None:
    cursor = Cursor(text, tokenize(text))
    tree = parse_tree(text, tokenize(text), 0)
    tree.find(kind).set(clause, exp.column("probe"))
    read = delete_from if text is DELETE else update_from
    with pytest.raises(kt.InvalidError, match=r"^line 1, column \d+: .*does not support"):
        read(tree, cursor)


QUERY = """
WITH c AS (SELECT 1 AS a)
SELECT DISTINCT a, sum(a) OVER (PARTITION BY a ORDER BY a ROWS 1 PRECEDING)
FROM t AS x(a) JOIN LATERAL (SELECT a FROM c TABLESAMPLE (5 ROWS)) AS u ON true
CROSS JOIN UNNEST(x) AS y(z) WHERE EXISTS (SELECT 1 UNION ALL VALUES (1)) GROUP BY ROLLUP(a)
HAVING a > 1 ORDER BY a LIMIT 1 OFFSET 2
"""
SAMPLES: tuple[Any, ...] = (True, "PROBE", exp.column("probe"), [exp.column("probe")])


def parts() -> Iterator[exp.Expr]:
    """One part of each kind that a query is built of, functions and operators left out."""
    kinds: dict[type[exp.Expr], exp.Expr] = {}
    for node in parse_tree(QUERY, tokenize(QUERY), 0).walk():
        if not isinstance(node, exp.Func | exp.Binary | exp.Literal | exp.Identifier | exp.Column):
            kinds.setdefault(type(node), node)
    yield from kinds.values()


@pytest.mark.one_in(14)
@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
@pytest.mark.parametrize("part", list(parts()), ids=lambda part: type(part).__name__)
def test_every_clause_of_a_query_reaches_the_engine_or_is_refused(
    part: exp.Expr, dialect: str
) -> None:
    for clause in sorted(part.arg_types):
        if (type(part), clause) in NOTES:
            continue
        for sample in SAMPLES:
            bare, given = part.copy(), part.copy()
            bare.set(clause, None)
            given.set(clause, sample if not isinstance(sample, exp.Expr) else sample.copy())
            try:
                without = engine_text(bare, dialect)
            except kt.InvalidError:
                break  # it cannot be left out
            with suppress(ValueError):  # refused, as InvalidError or as a sample that fits nowhere
                assert engine_text(given, dialect) != without, clause


NOTES = {(exp.Lateral, "view"), (exp.Union, "distinct"), (exp.Select, "kind")}
"""What makes no difference by itself."""


# -- statements ------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t LIMIT 1",
        "DELETE FROM t ORDER BY id LIMIT 1",
        "DELETE FROM t USING t AS u WHERE t.id = u.id",
        "DELETE FROM t WHERE id = 1 RETURNING id",
        "DELETE FROM t VERSION AS OF 1",
        "DELETE FROM t /*+ OPTIONS('scan.snapshot-id' = '1') */",
        "DELETE FROM t\n/*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE id = 1",
        "DELETE FROM t AS x /*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE id = 1",
        "DELETE FROM t AS x(a, b, c)",
        "DELETE FROM t TABLESAMPLE (1 ROWS)",
        "DELETE FROM t PIVOT (sum(n) FOR v IN ('a'))",
        "DELETE FROM t, t AS u",
        "DELETE t FROM t",
        "DELETE FROM range(3)",
        "WITH x AS (SELECT 1 AS id) DELETE FROM t",
        "UPDATE t",
        "UPDATE t SET n",
        "UPDATE t SET n = 1, N = 2",
        "UPDATE t SET (n, v) = (1, 'x')",
        "UPDATE t SET u.n = 1",
        "UPDATE t SET n = 1 FROM t AS u",
        "UPDATE t SET n = 1 ORDER BY id LIMIT 1",
        "UPDATE t SET n = 1 RETURNING n",
        "UPDATE t JOIN t AS u ON true SET n = 1",
        "UPDATE t VERSION AS OF 1 SET n = 1",
        "INSERT INTO t VALUES (4, 'd', 40) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (4, 'd', 40) RETURNING id",
        "INSERT INTO t SELECT * FROM t RETURNING id",
        "INSERT INTO t BY NAME SELECT 4 AS id",
        "INSERT INTO t IF EXISTS VALUES (4, 'd', 40)",
        "INSERT INTO t AS x VALUES (4, 'd', 40)",
        "INSERT INTO t DEFAULT VALUES",
        "INSERT INTO t /*+ OPTIONS('a' = 'b') */ VALUES (4, 'd', 40)",
        "INSERT OR REPLACE INTO t VALUES (4, 'd', 40)",
        "INSERT INTO t REPLACE WHERE id = 1 VALUES (4, 'd', 40)",
        "INSERT INTO t SELECT * FROM t FOR UPDATE",
        "TRUNCATE TABLE t PARTITION (id)",
        "DROP TABLE t PURGE",
        "ALTER TABLE t SET ('bucket' = '2', 'bucket' = '3')",
        "ALTER TABLE t ADD COLUMN z INT COMMENT 'a' COMMENT 'b'",
        "INSERT INTO t PARTITION (id = 1, ID = 2) VALUES ('a', 1)",
        "CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED) WITH ('bucket' = '2', 'bucket' = '3')",
        "CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED) COMMENT 'a' COMMENT 'b'",
        "CREATE TABLE u (k INT COMMENT 'a' COMMENT 'b', PRIMARY KEY (k) NOT ENFORCED)",
    ],
)
def test_statement_with_a_clause_that_is_not_carried_out_changes_nothing(
    lake: kt.Lake, text: str
) -> None:
    before = rows(lake), lake.table("t").table_schema
    with pytest.raises(kt.InvalidError, match="line "):
        lake.sql(text)
    assert (rows(lake), lake.table("t").table_schema) == before


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * INTO u FROM t",
        "SELECT * FROM t FOR UPDATE",
        "SELECT * FROM t FOR SHARE",
        "SELECT * FROM t SORT BY id",
        "SELECT * FROM t DISTRIBUTE BY id",
        "SELECT * FROM t LATERAL VIEW OUTER explode(array(id)) x AS y",
        "SELECT * FROM t WITH (NOLOCK)",
        "SELECT /*+ BROADCAST(t) */ * FROM t",
        "SELECT /*+ OPTIONS('scan.snapshot-id' = '1') */ * FROM t",
        "SELECT /*+ OPTIONS[('scan.snapshot-id' = '1') */ * FROM t",
        "SELECT * FROM (SELECT * FROM t) /*+ OPTIONS('scan.snapshot-id' = '1') */",
        "WITH w AS (SELECT 1) SELECT * FROM w /*+ OPTIONS('scan.snapshot-id' = '1') */",
        "WITH w AS (SELECT 1) SELECT * FROM w VERSION AS OF 1",
        "SELECT sha2(v, 512) FROM t",
        "SELECT months_between(DATE '2024-01-01', DATE '2023-01-01', false)",
        "SELECT MATCH_RECOGNIZE FROM t MATCH_RECOGNIZE (PATTERN (a))",
        "SHOW TABLES IN default LIKE 't' LIMIT 1",
    ],
)
def test_query_with_a_clause_that_the_engine_would_not_see_is_refused(
    lake: kt.Lake, text: str
) -> None:
    with pytest.raises(kt.InvalidError, match="line "):
        lake.sql(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM t TABLESAMPLE (100 PERCENT) ORDER BY id LIMIT 1", [(1, "a", 10)]),
        ("SELECT id FROM t QUALIFY row_number() OVER (ORDER BY id DESC) = 1", [(3,)]),
        ("SELECT id FROM t ORDER BY id FETCH FIRST 1 ROWS ONLY", [(1,)]),
        ("SELECT id FROM t LEFT SEMI JOIN t AS u ON t.id = u.id + 2", [(3,)]),
        (
            "SELECT sum(id) OVER w AS s FROM t WINDOW w AS (ORDER BY id) ORDER BY s",
            [(1,), (3,), (6,)],
        ),
        ("SELECT x.y FROM t LATERAL VIEW explode(array(id)) x AS y WHERE id = 1", [(1,)]),
        ("VALUES ((SELECT max(id) FROM t))", [(3,)]),
        ("SELECT (SELECT max(id) FROM t) AS m, sha2('a', 256) IS NULL", [(3, False)]),
        ("SELECT id FROM t\n/*+ OPTIONS('scan.snapshot-id' = '1') */ WHERE id = 1", [(1,)]),
        ("SELECT id FROM t -- /*+ NOTHING */\nWHERE id = 1", [(1,)]),
    ],
)
def test_clause_that_the_engine_knows_is_acted_on(
    lake: kt.Lake, text: str, expected: list[tuple[Any, ...]]
) -> None:
    assert rows(lake, text) == expected


def test_a_subquery_keeps_the_name_given_to_it(lake: kt.Lake) -> None:
    assert lake.sql("SELECT (SELECT max(id) FROM t) AS m").to_pylist() == [{"m": 3}]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("UPDATE t SET n = (SELECT max(n) FROM t)", [30, 30, 30]),
        ("UPDATE t SET n = (SELECT sum(u.n) FROM t AS u WHERE u.id <= t.id)", [10, 30, 60]),
        ("UPDATE t AS x SET x.n = n + (SELECT count(*) FROM t) WHERE id IN (2)", [10, 23, 30]),
        ("UPDATE t SET n = (SELECT n FROM t VERSION AS OF 1 WHERE id = 1)", [10, 10, 10]),
    ],
)  # fmt: skip
def test_update_sets_what_a_query_gives(lake: kt.Lake, text: str, n: list[int]) -> None:
    lake.sql(text)
    assert [row[2] for row in rows(lake)] == n


@pytest.mark.parametrize("value", [None, 5, b"SELECT 1", ["SELECT 1"]])
def test_text_of_another_type_is_refused(lake: kt.Lake, value: Any) -> None:
    with pytest.raises(kt.InvalidError, match="a string"):
        lake.sql(value)


@pytest.mark.parametrize(
    "text", ["", " ", ";", "-- nothing", "\0", "SELECT '\0", "/*", "'", "\ufeff"]
)
def test_text_without_a_statement_is_refused(lake: kt.Lake, text: str) -> None:
    with pytest.raises(kt.InvalidError):
        lake.sql(text)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(1 + " * 5000 + "1" + ")" * 5000,
        "SELECT " + "abs(" * 2000 + "1" + ")" * 2000,
        "SELECT * FROM " + "(SELECT * FROM " * 500 + "t" + ")" * 500,
        "SELECT " + "CASE WHEN true THEN " * 1000 + "1" + " END" * 1000,
        "SELECT * FROM t WHERE " + "NOT " * 5000 + "true",
        "DELETE FROM t WHERE " + "NOT (" * 2000 + "true" + ")" * 2000,
        "UPDATE t SET n = " + "-(" * 2000 + "1" + ")" * 2000,
        "INSERT INTO t (id) VALUES (" + "(1 + " * 3000 + "1" + ")" * 3000 + ")",
        "CREATE TABLE u (id " + "ARRAY<" * 1000 + "INT" + ">" * 1000 + ")",
        "CALL sys.why(" + "-" * 5000 + "1)",
    ],
    ids=lambda text: text[:20],
)
def test_text_nested_too_deeply_is_refused(lake: kt.Lake, text: str) -> None:
    with pytest.raises(kt.KeytideError):
        lake.sql(text)
    assert len(rows(lake)) == 3


def test_a_condition_of_optimize_ends_before_zorder_whatever_it_compares() -> None:
    text = "OPTIMIZE t WHERE n < 3 AND (v > 'a') ZORDER BY (n)"
    (call,) = parse_statements(text)
    assert isinstance(call, Call)
    assert call.named["where"] == "n < 3 AND (v > 'a')"
    assert call.named["order_by"] == "n"
