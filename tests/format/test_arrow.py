"""Frames come back as the exact Arrow arrays that they stand for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keytide.format.arrow import from_arrow, to_arrow

NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.int32()), [[1, None], None, [], [2], None, [3, 4, 5], []]),
    "list of texts": (pa.list_(pa.string()), [["a", None], None, [], ["b"], None, ["", "c"], []]),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        [[("a", None), ("b", 1)], None, [], [("c", 2)], None, [("", 3)], []],
    ),
    "map in list": (
        pa.list_(pa.map_(pa.string(), pa.int32())),
        [[[("a", 1)], None, []], None, [], [[]], None, [None], []],
    ),
    "list in struct": (
        pa.struct([("x", pa.list_(pa.string()))]),
        [{"x": ["a"]}, None, {"x": None}, {"x": []}, None, {"x": ["", None]}, {"x": []}],
    ),
}


@pytest.mark.parametrize("case", NESTED)
def test_every_slice_of_a_nested_column_survives_the_way_through_a_frame(case: str) -> None:
    kind, values = NESTED[case]
    table = pa.table({"v": pa.array(values, kind)})
    frame = from_arrow(table)
    for start in range(len(values)):
        for stop in range(start, len(values) + 1):
            back = to_arrow(frame[start:stop], table.schema)
            back.validate(full=True)
            assert back["v"].combine_chunks() == pa.array(values[start:stop], kind)


@pytest.mark.parametrize("case", NESTED)
def test_slices_of_a_nested_column_can_be_joined(case: str) -> None:
    kind, values = NESTED[case]
    table = pa.table({"v": pa.array(values, kind)})
    frame = from_arrow(table)
    slices = [to_arrow(frame[n : n + 1], table.schema) for n in range(len(values))]
    joined = pa.concat_tables(slices).combine_chunks()
    assert joined["v"].to_pylist() == pa.array(values, kind).to_pylist()


@pytest.mark.parametrize("case", NESTED)
def test_sliced_arrow_table_survives_the_way_through_a_frame(case: str) -> None:
    kind, values = NESTED[case]
    table = pa.table({"v": pa.array(values, kind)}).slice(1, 4)
    assert to_arrow(from_arrow(table), table.schema)["v"].to_pylist() == table["v"].to_pylist()
