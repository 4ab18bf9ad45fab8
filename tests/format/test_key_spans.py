"""Where a file has rows of some keys: spans that hold them all, whatever the order of the rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.format.data_file import FileReader, key_spans
from keytide.format.schema import TableSchema
from keytide.store import LocalStore

Key = tuple[str, int]
KEYS = st.tuples(st.sampled_from(["", "a", "ä", "b"]), st.integers(-3, 3))
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int32())])


def reader_of(path: Path, keys: list[Key], group_rows: int, kept_bytes: int) -> FileReader:
    texts, numbers = [p for p, _ in keys], [k for _, k in keys]
    table = pa.table({"p": texts, "k": pa.array(numbers, pa.int32())})
    pq.write_table(table, path / "data-0.parquet", row_group_size=group_rows)
    schema = schema_of(path)
    return FileReader(
        LocalStore(str(path)), "data-0.parquet", schema, schema.fields, kept_bytes_max=kept_bytes
    )


def schema_of(path: Path) -> TableSchema:
    return kt.connect(path / "lake").create_table("t", SCHEMA, ["p", "k"]).table_schema


def spans_of(reader: FileReader, wanted: list[Key]) -> list[tuple[int, int | None]] | None:
    return key_spans(reader, ["p", "k"], sorted(wanted))


@given(
    keys=st.lists(KEYS, min_size=1, max_size=40),
    wanted=st.lists(KEYS, max_size=5, unique=True),
    group_rows=st.integers(1, 20),
    is_sorted=st.booleans(),
    kept_bytes=st.sampled_from([1 << 13, 1 << 20]),
)
def test_spans_hold_every_row_of_the_keys(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[Key],
    wanted: list[Key],
    group_rows: int,
    is_sorted: bool,
    kept_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("file")
    keys = sorted(keys) if is_sorted else keys
    reader = reader_of(path, keys, group_rows, kept_bytes)
    for _ in range(2):  # read, and as it was kept
        spans = spans_of(reader, wanted)
        assert spans is not None
        rows = [row for start, length in spans for row in range(start, start + (length or 0))]
        assert rows == sorted(set(rows))
        matching = {row for row, key in enumerate(keys) if key in wanted}
        assert matching <= set(rows)
        assert not is_sorted or matching == set(rows)


def test_many_keys_of_a_group_are_read_in_one_go(tmp_path: Path) -> None:
    keys = [("a", k) for k in range(100)]
    reader = reader_of(tmp_path, keys, 50, 1 << 20)
    every_other = [("a", k) for k in range(1, 30, 2)]
    assert spans_of(reader, [*every_other, ("a", 70)]) == [(1, 29), (70, 1)]
    assert spans_of(reader, [("a", 3), ("a", 4), ("a", 6)]) == [(3, 2), (6, 1)]


def test_keys_that_are_too_large_to_be_kept_are_not_looked_at(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [("a", k) for k in range(100)], 50, 1 << 10)
    assert spans_of(reader, [("a", 3)]) is None


def test_file_that_takes_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [("a", 1), ("a", 2)], 50, 1 << 20)
    assert spans_of(reader, [("a", 2)]) == [(1, 1)]
    (tmp_path / "data-0.parquet").unlink()
    keys = pa.table({"p": ["a", "b"], "k": pa.array([2, 2], pa.int32())})
    pq.write_table(keys, tmp_path / "data-0.parquet")
    assert spans_of(reader, [("a", 2)]) == [(0, 1)]
