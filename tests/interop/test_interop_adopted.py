"""Adopted tables read alike everywhere, and everybody goes on writing to them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interop_judges import Judge, assert_reads_alike, write_with
from interop_values import arrow_rows, value_lines

import keytide as kt

KINDS = {
    "buckets": {"bucket": "2", "read.memory": "1 b"},
    "dynamic buckets": {"bucket": "-1"},
    "vectors": {"deletion-vectors.enabled": "true"},
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
def test_interop_adopted_table_reads_alike_before_and_after_more_rows(
    judge: Judge, lake: kt.Lake, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    types = pa.schema([("k", pa.int32()), ("v", pa.string()), ("s", pa.int32()), ("d", pa.bool_())])
    for number, numbers in enumerate([[5, 1, 9], [2, 8], [7, 3]]):
        values = {"k": numbers, "v": [f"a{k}" for k in numbers], "s": [5] * len(numbers),
                  "d": [k == 9 for k in numbers]}  # fmt: skip
        pq.write_table(pa.table(values, schema=types), folder / f"{number}.parquet")
    lake.adopt(
        "db.t", format="parquet", location=folder, primary_key=["k"], watermark_key=["s"],
        tombstone_key="d", options=KINDS[kind],
    )  # fmt: skip
    table = lake.table("db.t")
    assert isinstance(table, kt.Table)
    assert_reads_alike(judge, table)
    assert len(value_lines(table)) == 6
    more = {"k": [1, 2, 9, 4], "v": ["late", "new", "late", "four"], "s": [4, 6, 4, 1],
            "d": [None] * 4}  # fmt: skip
    table.write(arrow_rows(table.schema, more))
    assert_reads_alike(judge, table)
    if kind == "buckets":
        again = {"k": [3, 5], "v": ["late", "j"], "s": [4, 9], "d": [None] * 2}
        write_with(judge, table, arrow_rows(table.schema, again))
        assert_reads_alike(judge, table)
    table.compact(full=True)
    assert len(assert_reads_alike(judge, table)) == 7
