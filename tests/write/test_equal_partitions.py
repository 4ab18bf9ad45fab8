"""Equal values are one partition: NaN and NaN, both zeros, CHARs that differ in blanks."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt

ODD = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("value", ODD, ids=str)
def test_partition_of_any_float_is_overwritten_by_its_own_rows(
    tmp_path: Path, kind: pa.DataType, value: float
) -> None:
    value = pa.scalar(value, kind).as_py()
    schema = pa.schema([("p", kind), ("k", pa.int64())])
    table = kt.connect(tmp_path).create_table("t", schema, ["p", "k"], ["p"])
    table.write([{"p": value, "k": 1}, {"p": 7.0, "k": 1}])
    table.overwrite(pa.table({"p": [value], "k": [2]}, schema), {"p": value})
    found = sorted((repr(row["p"]), row["k"]) for row in table.scan().to_pylist())
    assert found == sorted([(repr(value or 0.0), 2), ("7.0", 1)])


@pytest.mark.parametrize("value", [5e-324, 1.5, math.nan, None], ids=str)
def test_row_of_another_partition_is_refused_by_its_value(
    tmp_path: Path, value: float | None
) -> None:
    schema = pa.schema([("p", pa.float64()), ("k", pa.int64())])
    table = kt.connect(tmp_path).create_table("t", schema, [], ["p"])
    rows = pa.table({"p": [0.0, value], "k": [1, 2]}, schema)
    with pytest.raises(kt.InvalidError, match=f"1 of 2 rows .* found {value!r}"):
        table.overwrite(rows, {"p": 0.0})


@pytest.mark.parametrize("key", [[], ["p", "k"]], ids=["appended", "keyed"])
def test_both_zeros_are_one_partition(tmp_path: Path, key: list[str]) -> None:
    schema = pa.schema([("p", pa.float64()), ("k", pa.int64())])
    table = kt.connect(tmp_path).create_table("t", schema, key, ["p"])
    table.write([{"p": -0.0, "k": 1}])
    table.write([{"p": 0.0, "k": 2}])
    table.overwrite([{"p": -0.0, "k": 3}], {"p": -0.0})
    assert [repr(row["p"]) for row in table.scan().to_pylist()] == ["0.0"]


@pytest.mark.parametrize(
    "key", ["", ", PRIMARY KEY (p, k) NOT ENFORCED"], ids=["appended", "keyed"]
)
def test_chars_that_differ_in_trailing_blanks_are_one_partition(tmp_path: Path, key: str) -> None:
    lake = kt.connect(tmp_path)
    lake.sql(f"CREATE TABLE t (p CHAR(3) NOT NULL, k INT NOT NULL{key}) PARTITIONED BY (p)")
    table = lake.table("t")
    for number, value in enumerate(["a", "a  "]):
        table.write([{"p": value, "k": number}])
    table.overwrite([{"p": "a ", "k": 3}], {"p": "a "})
    assert [row["k"] for row in table.scan().to_pylist()] == [3]
