"""Rows joined by their key, whatever Polars knows of the order in which they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.merge.order import joined

NAN = float("nan")


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("type_", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(
    "keys", [[None, -1.5, 0.0, NAN], [1.5, NAN], [NAN], [float("inf"), NAN], [None], [0.0]]
)
def test_null_and_nan_find_each_other_in_sorted_rows(
    keys: list[Any], type_: Any, how: Literal["inner", "left"]
) -> None:
    left = pl.DataFrame({"k": pl.Series(keys, dtype=type_).sort()})
    right = pl.DataFrame({"k": pl.Series(keys, dtype=type_).sort()}).with_columns(found=True)
    both = joined(left, right, ["k"], how, keeps_order=True)
    assert both["found"].to_list() == [True] * len(keys)
    assert list(map(repr, both["k"])) == list(map(repr, left["k"]))


def test_rows_of_keys_that_are_nan_are_looked_up_with_others(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table(
        "t", pa.schema([("k", pa.float64()), ("v", pa.string())]), ["k"]
    )
    table.write([{"k": NAN, "v": "a"}])
    assert table.get_many([NAN])["v"].to_pylist() == ["a"]
    table.write([{"k": 1.5, "v": "b"}])
    assert table.get_many([1.5, NAN])["v"].to_pylist() == ["b", "a"]
