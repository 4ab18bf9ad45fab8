"""UNNEST in FROM, on both engines: what is spread over rows and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import keytide as kt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = """
    id INT, subs ARRAY<ROW<a INT, b STRING>>, one ARRAY<ROW<a INT>>, m MAP<STRING, INT>,
    xs ARRAY<INT>, deep ARRAY<ARRAY<INT>>
"""
ROWS = [
    {
        "id": 1,
        "subs": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, None],
        "one": [{"a": 7}],
        "m": [("k", 1), ("l", None)],
        "xs": [5, None],
        "deep": [[1, 2], [3]],
    },
    {"id": 2, "subs": [], "one": None, "m": [], "xs": None, "deep": None},
]
X, Y, Z = (1, 1, "x"), (1, 2, "y"), (1, None, None)

# What follows FROM, what is selected, and the rows.
QUERIES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "rows": ("id, a, b FROM t, UNNEST(subs) AS u (a, b)", [X, Y, Z]),
    "rows under other names": ("id, p, u.q FROM t CROSS JOIN UNNEST(subs) AS u (p, q)", [X, Y, Z]),
    "names of the fields": ("id, a, u.b FROM t AS o, UNNEST(o.subs) AS u", [X, Y, Z]),
    "no name at all": ("id, a, b FROM t, UNNEST(subs)", [X, Y, Z]),
    "condition": ("id, a, b FROM t, UNNEST(subs) AS u (a, b) WHERE a = 1 AND id = 1", [X]),
    "rows numbered": (
        "id, b, n FROM t, UNNEST(subs) WITH ORDINALITY AS u (a, b, n)",
        [(1, "x", 1), (1, "y", 2), (1, None, 3)],
    ),
    "number without a name": (
        "id, b, ordinality FROM t, UNNEST(subs) WITH ORDINALITY AS u",
        [(1, "x", 1), (1, "y", 2), (1, None, 3)],
    ),
    "left join": (
        "id, a, b FROM t LEFT JOIN UNNEST(subs) AS u (a, b) ON TRUE",
        [X, Y, Z, (2, None, None)],
    ),
    "left join with a condition": (
        "id, a FROM t LEFT JOIN UNNEST(subs) AS u (a, b) ON u.a > t.id",
        [(1, 2), (2, None)],
    ),
    "rows of one field": ("id, a + 1 AS a FROM t, UNNEST(one) AS u (a)", [(1, 8)]),
    "values": ("id, x FROM t, UNNEST(xs) AS u (x)", [(1, 5), (1, None)]),
    "values called like the alias": (
        "id, x FROM t LEFT JOIN UNNEST(xs) AS x ON TRUE",
        [(1, 5), (1, None), (2, None)],
    ),
    "values numbered": (
        "id, x, n FROM t, UNNEST(xs) WITH ORDINALITY AS u (x, n)",
        [(1, 5, 1), (1, None, 2)],
    ),
    "arrays in arrays": ("id, y FROM t, UNNEST(deep) AS u (y)", [(1, [1, 2]), (1, [3])]),
    "one after the other": (
        "id, z FROM t, UNNEST(deep) AS u (y), UNNEST(y) AS w (z)",
        [(1, 1), (1, 2), (1, 3)],
    ),
    "map": ("id, key, value FROM t, UNNEST(m) AS u", [(1, "k", 1), (1, "l", None)]),
    "map numbered, left join": (
        "id, k, v, n FROM t LEFT JOIN UNNEST(m) WITH ORDINALITY AS u (k, v, n) ON TRUE",
        [(1, "k", 1, 1), (1, "l", None, 2), (2, None, None, None)],
    ),
    "constants": ("* FROM UNNEST(ARRAY[1, 2]) AS u (a)", [(1,), (2,)]),
    "constant rows": ("* FROM UNNEST(ARRAY[ROW(1, 'x')]) AS u (a, b)", [(1, "x")]),
    "constant map": ("* FROM UNNEST(MAP['a', 1]) AS u (k, v)", [("a", 1)]),
    "constant rows numbered": (
        "g, n FROM UNNEST(CAST(ARRAY[ROW(1, 'x')] AS ARRAY<ROW<g INT, h STRING>>)) "
        "WITH ORDINALITY AS u (g, h, n)",
        [(1, 1)],
    ),
    "result of a query": (
        "b FROM (SELECT subs AS s FROM t WHERE id = 1) AS q, UNNEST(s) AS u (a, b)",
        [("x",), ("y",), (None,)],
    ),
    "inside of a condition": (
        "id FROM t WHERE id IN (SELECT a FROM t AS o, UNNEST(o.subs) AS u (a, b))",
        [(1,), (2,)],
    ),
    "groups": (
        "id, count(*) AS c, sum(u.a) AS s FROM t, UNNEST(subs) AS u GROUP BY id",
        [(1, 3, 3)],
    ),
}


def filled(lake: kt.Lake) -> kt.Lake:
    lake.sql(f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id) NOT ENFORCED)")
    lake.table("t").write(ROWS)
    return lake


def rows(lake: kt.Lake, query: str) -> list[tuple[Any, ...]]:
    found = lake.sql(f"SELECT {query}").to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> kt.Lake:
    return filled(kt.connect(tmp_path_factory.mktemp("lake")))


@pytest.mark.parametrize("name", QUERIES)
def test_unnest_spreads(name: str, lake: kt.Lake) -> None:
    query, expected = QUERIES[name]
    assert rows(lake, query) == sorted(expected, key=repr)


@pytest.mark.takes_turns
@pytest.mark.spark
def test_unnest_spreads_alike_on_spark(warehouse: str, spark: SparkSession) -> None:
    lake = filled(kt.connect(warehouse, spark=spark))
    found = {name: rows(lake, query) for name, (query, _) in QUERIES.items()}
    assert found == {name: sorted(rows, key=repr) for name, (_, rows) in QUERIES.items()}


def test_names_that_do_not_fit_are_refused(lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match=r"UNNEST returns 2 columns \(a, b\), found 1"):
        lake.sql("SELECT x FROM t, UNNEST(subs) AS u (x)")
    with pytest.raises(kt.InvalidError, match=r"UNNEST returns 1 column, found 2"):
        lake.sql("SELECT x FROM t, UNNEST(xs) AS u (x, y)")
