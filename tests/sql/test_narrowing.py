"""What a query gives does not depend on how much less than whole tables it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.sql.grammar import parse_statements
from keytide.sql.local_query import run_locally
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.statements import Query

RESULTS = (
    "*", "k", "v", "v, y", "x", "count(*)", "count(x)", "a.*", "b.x", "* EXCEPT (k)",
    "a.* EXCEPT (v)", "concat(*)", "COLUMNS('k|v')", "max(v) OVER (ORDER BY y)",
)  # fmt: skip
SOURCES = (
    "a", "b", "(a)", "a, b", "a, b AS c", "a JOIN b ON a.k = b.k", "a JOIN b USING (k)",
    "a LEFT JOIN b ON a.k = b.k", "a LEFT JOIN b USING (k)", "a RIGHT JOIN b ON a.k = b.k",
    "a FULL JOIN b ON a.k = b.k", "a FULL JOIN b USING (k)", "a NATURAL JOIN b",
    "b NATURAL LEFT JOIN a", "a SEMI JOIN b ON a.k = b.k", "a ANTI JOIN b ON a.k = b.k",
    "a ASOF JOIN b ON a.k >= b.k", "a ASOF LEFT JOIN b ON a.k >= b.k",
    "(a LEFT JOIN b ON a.k = b.k)", "(b LEFT JOIN a ON a.k = b.k)",
    "b AS c JOIN (a LEFT JOIN b ON a.k = b.k) ON c.k = a.k",
    "b AS c LEFT JOIN (a JOIN b ON a.k = b.k) ON c.k = a.k",
    "b AS c JOIN a LEFT JOIN b ON a.k = b.k ON c.k = a.k", "b AS c, (a LEFT JOIN b ON a.k = b.k)",
    "a AS a (v, k)", "a AS a (y)", "b AS a (v, y)", "b AS a (x, k)", "a AS b (k, x, v)",
    "a PIVOT (sum(v) FOR y IN ('a' AS v, 'b' AS x))", "a PIVOT (sum(v) FOR y IN ('a' AS y))",
    "b UNPIVOT (v FOR y IN (k, x))", "b UNPIVOT (x FOR y IN (k))",
    "(SELECT * FROM a LIMIT 0) AS a", "(SELECT k, x AS v FROM b) AS a", "a, range(2) AS b (x)",
    "a, LATERAL (SELECT x FROM b WHERE b.k = a.k) AS b",
    "a LEFT JOIN LATERAL (SELECT x FROM b WHERE b.k = a.k) AS b ON TRUE",
    "a, UNNEST(ARRAY(1, 2)) AS b (x)",
)  # fmt: skip
CONDITIONS = (
    "TRUE", "k = 1", "k > 2", "v = 20", "v IS NULL", "v > 1", "y = 'a'", "x = 100", "x IS NULL",
    "a.k = 3", "b.k IS NULL", "b.x IS NULL", "b.k = 1", "a.v > 10 AND b.x > 1", "c.k = 1",
)  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> kt.Lake:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    lake.sql(
        """
        CREATE TABLE a (k INT, v INT, y STRING, PRIMARY KEY (k) NOT ENFORCED);
        CREATE TABLE b (k INT, x INT, PRIMARY KEY (k) NOT ENFORCED);
        INSERT INTO a VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'a'), (4, NULL, 'c');
        INSERT INTO b VALUES (1, 100), (3, NULL), (5, 500)
        """
    )
    return lake


def bound(lake: kt.Lake, text: str) -> BoundQuery:
    (query,) = parse_statements(text)
    assert isinstance(query, Query)
    return bind(query, lake.catalog)


def rows(query: BoundQuery) -> list[str] | None:
    """The rows in some order, None where the engine refuses the query."""
    try:
        found = run_locally(query)
    except kt.InvalidError:
        return None
    values = [column.to_pylist() for column in found.columns]
    return sorted(map(repr, zip(*values, strict=True)))


def on_whole_tables(query: BoundQuery) -> BoundQuery:
    whole = (replace(relation, columns=None, terms=()) for relation in query.relations)
    return replace(query, relations=tuple(whole))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(RESULTS), st.sampled_from(SOURCES), st.sampled_from(CONDITIONS))
def test_a_narrowed_read_gives_the_rows_of_whole_tables(
    lake: kt.Lake, result: str, source: str, condition: str
) -> None:
    query = bound(lake, f"SELECT {result} FROM {source} WHERE {condition}")
    assert rows(query) == rows(on_whole_tables(query))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a.k FROM (a LEFT JOIN b ON a.k = b.k) WHERE b.x IS NULL", [2, 3, 4]),
        ("SELECT a.k FROM b c JOIN a LEFT JOIN b USING (k) ON c.k = a.k WHERE b.x IS NULL", [3]),
        ("SELECT a.k FROM a ASOF JOIN b ON a.k >= b.k WHERE b.k = 1", [1, 2]),
        ("SELECT v FROM a AS q (v)", [1, 2, 3, 4]),
        ("SELECT v FROM a AS q (v) WHERE v = 2", [2]),
        ("SELECT aa FROM a PIVOT (sum(v) FOR y IN ('a' AS aa)) WHERE k > 1", [30, None, None]),
        ("SELECT z FROM b UNPIVOT (z FOR n IN (k, x)) WHERE z > 5", [100, 500]),
        ("SELECT * EXCEPT (k) FROM b", [100, 500, None]),
    ],
)
def test_query_that_needs_more_than_it_names_gives_its_rows(
    lake: kt.Lake, text: str, expected: list[int | None]
) -> None:
    assert rows(bound(lake, text)) == sorted(f"({value},)" for value in expected)


def test_a_sample_is_taken_before_conditions(lake: kt.Lake) -> None:
    query = bound(lake, "SELECT count(*) FROM a TABLESAMPLE (1 ROWS) WHERE k = 4")
    assert [relation.terms for relation in query.relations] == [()]
