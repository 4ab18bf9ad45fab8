"""Rows of groups that look-ups come back to: the same whether they are kept or read anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.data_file import FileReader
from keytide.format.data_file.row_groups import read_few
from keytide.store import LocalStore

ROWS = 40
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.string())])
SPANS = st.tuples(st.integers(0, ROWS - 1), st.integers(1, 3))


def reader_of(path: Path, group_rows: int, kept_bytes: int) -> FileReader:
    values = {"k": pa.array(range(ROWS), pa.int32()), "v": [f"v{n}" for n in range(ROWS)]}
    pq.write_table(pa.table(values), path / "data-0.parquet", row_group_size=group_rows)
    schema = kt.connect(path / "lake").create_table("t", SCHEMA, ["k"]).table_schema
    return FileReader(
        LocalStore(str(path)), "data-0.parquet", schema, schema.fields, kept_bytes_max=kept_bytes
    )


def damage(path: Path) -> None:
    """Other bytes in a file, which nobody who has read it can tell from outside."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(len(data) - 4))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@given(
    asked=st.lists(st.lists(SPANS, min_size=1, max_size=3), min_size=10, max_size=30),
    group_rows=st.integers(1, ROWS),
    kept_bytes=st.sampled_from([0, 1 << 12, 1 << 20]),
    filters=st.booleans(),
)
def test_rows_are_those_of_the_file_however_often_they_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    asked: list[list[tuple[int, int]]],
    group_rows: int,
    kept_bytes: int,
    filters: bool,
) -> None:
    reader = reader_of(tmp_path_factory.mktemp("file"), group_rows, kept_bytes)
    where = pl.col("k") % 2 == 0 if filters else None
    for spans in asked:
        for (start, length), rows in zip(
            spans, read_few([(reader, span) for span in spans], where), strict=True
        ):
            wanted = range(start, min(start + length, ROWS))
            assert rows["k"].to_list() == [k for k in wanted if not filters or k % 2 == 0]
            assert rows["v"].to_list() == [f"v{k}" for k in rows["k"]]


def test_a_group_that_was_asked_for_often_is_not_read_again(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 10, 1 << 20)
    for row in range(8):
        read_few([(reader, (row, 1))])
    damage(tmp_path / "data-0.parquet")
    assert read_few([(reader, (9, 1))])[0].rows() == [(9, "v9")]
    with pytest.raises(kt.DataError):
        read_few([(reader, (10, 1))])  # of another group


def test_readers_of_other_columns_keep_their_own(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, 10, 1 << 20)
    keys = replace(reader, fields=reader.fields[:1])
    for row in range(9):
        read_few([(reader, (row, 1)), (keys, (row, 1))])
    whole, key = read_few([(reader, (5, 2)), (keys, (5, 2))])
    assert (whole.rows(), key.rows()) == ([(5, "v5"), (6, "v6")], [(5,), (6,)])


@pytest.mark.parametrize("kept_bytes", [0, 2 << 10])
def test_no_more_is_kept_than_is_allowed(tmp_path: Path, kept_bytes: int) -> None:
    reader = reader_of(tmp_path, ROWS, kept_bytes)
    for row in range(20):
        read_few([(reader, (row, 1))])
    damage(tmp_path / "data-0.parquet")
    with pytest.raises(kt.DataError):
        read_few([(reader, (1, 1))])
