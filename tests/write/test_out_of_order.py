"""Rows that arrive out of order are counted, for tables that ask for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt

Row = tuple[int, int | None, str]
"""Key, sequence, kind."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ts", pa.int64())])
COUNTED = {"write.count-out-of-order": "true"}


def make(warehouse: Path | str, schema: pa.Schema = SCHEMA, **options: str) -> kt.Table:
    key = [schema.names[0]]
    lake = kt.connect(f"{warehouse}/{len(list(Path(warehouse).iterdir()))}")
    return lake.create_table("t", schema, key, options=options)


def write(table: kt.Table, rows: list[Row]) -> int | None:
    columns = [{"id": key, "ts": ts, "_row_kind": kind} for key, ts, kind in rows]
    return table.write(columns).out_of_order


def expected(batches: list[list[Row]], *, descending: bool = False) -> list[int]:
    """The rows of each batch that are older than the newest of their key before them."""
    newest: dict[int, float] = {}
    counts = []
    for batch in batches:
        count = 0
        for key, ts, _ in batch:
            place = -math.inf if ts is None else -ts if descending else ts
            count += place < newest.get(key, -math.inf)
            newest[key] = max(place, newest.get(key, -math.inf))
        counts.append(count)
    return counts


rows = st.tuples(
    st.integers(0, 4), st.none() | st.integers(0, 5), st.sampled_from(["+I", "+U", "-D"])
)
batches = st.lists(st.lists(rows, min_size=1, max_size=8), min_size=1, max_size=4)


@given(
    batches=batches, buckets=st.integers(1, 3), order=st.sampled_from(["ascending", "descending"])
)
def test_counts_agree_with_a_dict(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Row]], buckets: int, order: str
) -> None:
    options = {"sequence.field": "ts", "sequence.field.sort-order": order, "bucket": str(buckets)}
    table = make(tmp_path_factory.mktemp("lake"), **COUNTED, **options)
    found = [write(table, batch) for batch in batches]
    assert found == expected(batches, descending=order == "descending")


EXAMPLES: list[tuple[str, dict[str, str], list[list[Row]], list[int | None]]] = [
    ("not asked for", {"sequence.field": "ts"}, [[(1, 5, "+I")], [(1, 3, "+I")]], [None, None]),
    ("without sequence", COUNTED, [[(1, 5, "+I")], [(1, 3, "+I")]], [0, 0]),
    (
        "watermark key",
        COUNTED | {"watermark.key": "ts"},
        [[(1, 5, "+I")], [(1, 3, "+I"), (2, 3, "+I")]],
        [0, 1],
    ),
    (
        "older than a delete",
        COUNTED | {"sequence.field": "ts"},
        [[(1, 5, "+I")], [(1, 7, "-D")], [(1, 6, "+I")]],
        [0, 0, 1],
    ),
    (
        "old images announce nothing",
        COUNTED | {"sequence.field": "ts"},
        [[(1, 5, "+I")], [(1, 3, "-U"), (1, 6, "+U")]],
        [0, 0],
    ),
    ("ties", COUNTED | {"sequence.field": "ts"}, [[(1, 5, "+I")], [(1, 5, "+I")]], [0, 0]),
]


@pytest.mark.parametrize(
    ("options", "batches", "counts"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_examples(
    tmp_path: Path, options: dict[str, str], batches: list[list[Row]], counts: list[int | None]
) -> None:
    table = make(tmp_path, **options)
    assert [write(table, batch) for batch in batches] == counts


@pytest.mark.parametrize(
    ("kind", "older", "newer"),
    [(pa.float64(), -0.0, 0.0), (pa.float64(), 1.0, math.nan), (pa.string(), "a", "b")],
)
def test_values_compare_as_in_the_merge(
    tmp_path: Path, kind: pa.DataType, older: Any, newer: Any
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ts", kind)])
    table = make(tmp_path, schema, **COUNTED, **{"sequence.field": "ts"})
    table.write([{"id": 1, "ts": newer}])
    assert table.write([{"id": 1, "ts": older}]).out_of_order == (older != newer)


def test_partitions_are_looked_up_apart(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(n, pa.int64(), nullable=False) for n in ("id", "day", "ts")])
    options = COUNTED | {"sequence.field": "ts"}
    lake = kt.connect(tmp_path)
    table = lake.create_table("t", schema, ["id", "day"], options=options, partition_by=["day"])
    table.write([{"id": 1, "day": 1, "ts": 9}, {"id": 1, "day": 2, "ts": 2}])
    late = table.write([{"id": 1, "day": 1, "ts": 5}, {"id": 1, "day": 2, "ts": 5}])
    assert late.out_of_order == 1


def test_a_repeated_write_counts_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, **COUNTED, **{"sequence.field": "ts"})
    first = table.write([{"id": 1, "ts": 5}], commit_user="job", commit_identifier=1)
    again = table.write([{"id": 1, "ts": 5}], commit_user="job", commit_identifier=1)
    assert (first.out_of_order, again.out_of_order) == (0, None)
