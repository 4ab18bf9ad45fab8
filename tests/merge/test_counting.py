"""The aggregate function `count`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from new_tables import fields_of

VERSIONS = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+U", "-D"]), st.integers(0, 2), st.none() | st.integers(-9, 9)
    )
)


@given(versions=VERSIONS, sizes=st.lists(st.integers(1, 5), min_size=1))
def test_values_are_counted_however_they_are_batched(
    versions: list[tuple[str, int, int | None]],
    sizes: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lake = kt.connect(str(tmp_path_factory.mktemp("lake")))
    lake.sql(
        "CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, n BIGINT) WITH "
        "('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'COUNT')"
    )
    rest, turn = list(versions), 0
    while rest:
        size = sizes[turn % len(sizes)]
        batch, rest, turn = rest[:size], rest[size:], turn + 1
        lake.table("t").write([{"k": k, "n": n, "_row_kind": kind} for kind, k, n in batch])

    found = {row["k"]: row["n"] or 0 for row in lake.sql("SELECT * FROM t").to_pylist()}
    # A lone retract makes no row, as for sums.
    for key in found:
        counts = [
            -1 if kind == "-D" else 1 for kind, k, n in versions if k == key and n is not None
        ]
        assert found[key] == sum(counts)


def test_other_engines_see_a_sum(lake: kt.Lake) -> None:
    table = lake.create_table(
        "t",
        fields_of("k INT, n INT"),
        ["k"],
        options={"merge-engine": "aggregation", "fields.n.aggregate-function": "count"},
    )
    assert table.options["fields.n.aggregate-function"] == "sum"
    table.write([{"k": 1, "n": 50}])
    table.write([{"k": 1, "n": None}])
    table.write([{"k": 1, "n": 7}])
    assert table.get(1) == {"k": 1, "n": 2}


def test_count_of_a_column_that_holds_no_number_is_refused(warehouse: str) -> None:
    with pytest.raises(kt.InvalidError, match="requires an integer column"):
        kt.connect(warehouse).sql(
            "CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, n DOUBLE) WITH "
            "('merge-engine' = 'aggregation', 'fields.n.aggregate-function' = 'count')"
        )
