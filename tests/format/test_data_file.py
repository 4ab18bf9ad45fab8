"""Data files read in part: row groups stay whole where they fit, filters go down to them."""

from __future__ import annotations

import errno
import gc
import io
import itertools
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.data_file import SEQUENCE_NUMBER, FileReader, parquet
from keytide.format.data_file.reader import _spans

EXAMPLES = [
    # row groups, rows at most -> spans
    ([4, 4, 2], 10, [(0, 10)]),
    ([4, 4, 2], 9, [(0, 8), (8, 2)]),
    ([4, 4, 2], 4, [(0, 4), (4, 4), (8, 2)]),
    ([10, 3], 4, [(0, 4), (4, 4), (8, 2), (10, 3)]),
    ([], 4, []),
]


@pytest.mark.parametrize(("group_rows", "rows_max", "spans"), EXAMPLES)
def test_row_groups_are_cut_only_where_one_is_too_large(
    group_rows: list[int], rows_max: int, spans: list[tuple[int, int]]
) -> None:
    assert _spans(group_rows, rows_max) == spans


@given(group_rows=st.lists(st.integers(1, 9), max_size=9), rows_max=st.integers(1, 20))
def test_spans_cover_every_row_once_in_order(group_rows: list[int], rows_max: int) -> None:
    spans = _spans(group_rows, rows_max)
    rows = [row for start, length in spans for row in range(start, start + (length or 0))]
    assert rows == list(range(sum(group_rows)))
    assert all(length is not None and 0 < length <= rows_max for _, length in spans)
    ends = set(itertools.accumulate(group_rows, initial=0))
    small = max(group_rows, default=0) <= rows_max
    assert not small or {start for start, _ in spans} <= ends


@pytest.mark.parametrize(
    "constant",
    [
        pl.Series([7], dtype=pl.Int64),
        pl.Series([None], dtype=pl.Int8),
        pl.Series([1_700_000_000_123_456_789]).cast(pl.Datetime("ns")),
        pl.Series([datetime(1969, 1, 1, 1, 2, 3, 4)]),
        pl.Series([date(1, 1, 1)]),
        pl.Series([time(23, 59, 59, 999_999)]),
        pl.Series([Decimal("-1.50")], dtype=pl.Decimal(38, 2)),
        pl.Series([float("nan")]),
        pl.Series([-0.0], dtype=pl.Float32),
        pl.Series([b"\x00\xff"]),
        pl.Series(["\x00a"]),
        pl.Series([True]),
        pl.Series([None], dtype=pl.Datetime("us")),
    ],
    ids=lambda series: f"{series.dtype} {series[0]}",
)
def test_filter_is_applied_while_a_file_is_read_whatever_its_constants(
    file_of_pairs: tuple[kt.Table, str], constant: pl.Series
) -> None:
    table, path = file_of_pairs
    schema = table.table_schema
    constants = (("c", constant), (SEQUENCE_NUMBER, pl.Series([3])))
    reader = FileReader(
        table.metadata.store, path, schema, schema.fields, (SEQUENCE_NUMBER,), constants
    )
    where = (pl.col("k") == 40_000) & (pl.col(SEQUENCE_NUMBER) == 3)
    assert "SELECTION" in reader.lazy(where=where).explain()
    (found,) = reader.read(where=where).rows(named=True)
    assert (found["k"], found["v"], found[SEQUENCE_NUMBER]) == (40_000, 20_000.0, 3)
    read = reader.read(where=where)["c"]
    assert read.dtype == constant.dtype
    assert read.to_physical().equals(constant.to_physical(), null_equal=True)


@pytest.fixture(scope="module")
def file_of_pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[kt.Table, str]:
    """A table with a column `c`, and the path of its one file of 50,000 rows."""
    fields = [("k", "INT NOT NULL"), ("v", "DOUBLE"), ("c", "INT")]
    schema = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in fields]
    folder: Path = tmp_path_factory.mktemp("pairs")
    table = kt.connect(folder).create_table("t", schema, primary_key=["k"])
    keys = pl.int_range(50_000, dtype=pl.Int32, eager=True)
    table.write(pl.DataFrame({"k": keys, "v": keys / 2, "c": keys}))
    scan = table.scan()
    return table, scan.view.file_path(scan.live.entries[0])


class FullDisk(io.BytesIO):
    """Takes so many pieces and no more."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def write(self, data: Any, /) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_file_that_cannot_be_written_says_so_once(
    pieces: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = pa.table({"a": np.random.default_rng(0).random(2_000_000)})
    output = FullDisk(pieces)
    with pytest.raises(OSError, match="No space left"):
        parquet.write(output, rows, "zstd", 1, {})
    output.close()
    gc.collect()
    assert capfd.readouterr().err == ""
