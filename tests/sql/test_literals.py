"""VALUES of plain literals: the same rows as an engine's, from the tokens alone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.sql.cursor import parse_tree, tokenize
from keytide.sql.definition_grammar import literal_rows
from keytide.sql.local_query import run_locally
from keytide.sql.relations import BoundQuery

CELLS = (
    st.sampled_from(["NULL", "true", "FALSE", "1e3", "1 + 1", "DATE '2024-01-01'", "-(1)", "- 7"])
    | st.integers(-(2**64), 2**64).map(str)
    | st.integers(-5, 5).map(str)
    | st.decimals(-(10**6), 10**6, places=3, allow_nan=False).map(lambda d: f"{d:f}")
    | st.text("a'\\\" (),-;\n", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'")
)


@given(columns=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=3), rows=st.integers(1, 3))
def test_literals_are_what_the_engine_makes_of_them(
    columns: list[tuple[str, str]], rows: int
) -> None:
    row = ", ".join(f"({', '.join(cells[i % 2] for cells in columns)})" for i in range(rows))
    text = f"VALUES {row}"
    found = literal_rows(tokenize(text)[1:])
    if found is None:
        return
    engine = run_locally(BoundQuery(parse_tree(text, tokenize(text), 0)))
    assert found.to_pylist() == engine.to_pylist()
    for mine, other in zip(found.columns, engine.columns, strict=True):
        # A column takes any decimal that fits, however many digits its type has.
        both = pa.types.is_decimal(mine.type) and pa.types.is_decimal(other.type)
        assert mine.null_count == len(mine) or both or mine.type == other.type


@pytest.mark.parametrize(
    "text",
    [
        "(1, 2), (3)",
        "(1), 2",
        "(1),",
        "()",
        "(1 2)",
        "(1), (x)",
        "(1) LIMIT 1",
        "((1))",
        "(1, `null`)",
        "(1, 'a'), ('b', 2)",
    ],
)
def test_what_is_not_plain_is_left_to_the_engine(text: str) -> None:
    assert literal_rows(tokenize(text)) is None


def test_many_rows_of_literals_are_inserted(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE t (k INT, v STRING, x DOUBLE, PRIMARY KEY (k) NOT ENFORCED)")
    values = ", ".join(f"({i}, 'name {i}', -{i}.5)" for i in range(5_000))
    assert lake.sql(f"INSERT INTO t VALUES {values}").row_count == 5_000
    assert lake.sql("SELECT v, x FROM t WHERE k = 777").to_pylist() == [
        {"v": "name 777", "x": -777.5}
    ]
