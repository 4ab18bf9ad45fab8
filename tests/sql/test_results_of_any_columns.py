"""Results with columns that not every container has: two of one name, and unions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import keytide as kt

QUERIES = {
    "two of a name": "SELECT * FROM a JOIN b ON a.id = b.id",
    "three of a name": "SELECT 1 AS x, 2 AS x, 3 AS x",
    "a union": "SELECT union_value(num := 2) AS u",
    "unions in a list": "SELECT [union_value(num := 2)] AS u",
    "a union of a name": "SELECT union_value(num := 2) AS u, 1 AS u",
    "plain": "SELECT id, v FROM a",
}
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "Arrow": lambda result: result.to_arrow(),
    "Polars": lambda result: result.to_polars(),
    "pandas": lambda result: result.to_pandas(),
    "dicts": lambda result: result.to_pylist(),
    "a notebook": lambda result: result._repr_html_(),
    "text": repr,
    "the first": lambda result: result.head(1),
    "rows one by one": lambda result: [*result],
}


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    for name in "ab":
        fields = [
            kt.Field(-1, n, kt.parse_sql_type(t)) for n, t in (("id", "INT"), ("v", "STRING"))
        ]
        lake.create_table(name, fields, ["id"]).write([{"id": 1, "v": name}, {"id": 2, "v": None}])
    return lake


@pytest.mark.one_in(14)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("query", QUERIES)
def test_every_column_is_there_or_the_result_is_refused(
    lake: kt.Lake, query: str, container: str
) -> None:
    result = lake.sql(QUERIES[query])
    try:
        found = CONTAINERS[container](result)
    except kt.KeytideError as error:
        said = str(error)
        assert "union" in query
        assert "UNION" in said, said
        return
    width = len(result.schema)
    if container == "a notebook":
        assert found.count("<th ") in (width, 0)
        assert found.count("<th ") == width or "UNION" in found
    elif container in ("dicts", "rows one by one"):
        assert {len(row) for row in found} == {width}
    elif container in ("Arrow", "Polars", "pandas"):
        assert found.shape[1] == width


def test_columns_of_one_name_get_numbers_that_no_column_has(lake: kt.Lake) -> None:
    result = lake.sql("SELECT 1 AS x, 2 AS x_1, 3 AS x, 4 AS x")
    assert result.to_pylist() == [{"x": 1, "x_1": 2, "x_2": 3, "x_3": 4}]
    assert result.to_polars().columns == ["x", "x_1", "x_2", "x_3"]
    assert result.to_arrow().column_names == ["x", "x_1", "x", "x"]


def test_a_notebook_shows_the_first_rows_and_how_many_more(lake: kt.Lake) -> None:
    html = lake.sql("SELECT i AS a, NULL AS a FROM range(25) AS r(i)")._repr_html_()
    assert html.count("<tr>") == 11
    assert "NULL" in html
    assert "15 more rows" in html
