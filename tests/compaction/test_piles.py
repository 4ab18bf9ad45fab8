"""Rows piled up into files: how many are held, and how often they are written again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import keytide as kt
from keytide.compaction.row_buffer import each_pile

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
PIECE_ROWS = 1000
FILE_ROWS = 5000
"""About so many rows of the schema, with their numbers and kinds, are piled up for a file."""


def test_of_what_is_piled_up_one_file_is_held_at_a_time() -> None:
    pool, held = pa.default_memory_pool(), list[int]()
    before = pool.bytes_allocated()

    def pieces() -> Iterator[pa.Table]:
        for _ in range(40):
            held.append(pool.bytes_allocated() - before)
            yield pa.table({"k": pa.concat_arrays([pa.array(np.zeros(1 << 16))])})

    piece_bytes, file_bytes = 8 << 16, 80 << 16
    written = sum(each_pile(pieces(), file_bytes, lambda rows: rows.num_rows))
    assert written == 40 << 16
    assert max(held) <= file_bytes + 2 * piece_bytes


def loaded(folder: Path, pieces: int) -> tuple[kt.Table, float]:
    """A table whose keys came in order, and how often compactions wrote each row on average."""
    options = {"target-file-size": f"{FILE_ROWS * 25 // 2} b", "compaction.background": "false"}
    table = kt.connect(folder).create_table("t", SCHEMA, ["k"], options=options)
    rows_of: dict[str, int] = {}
    for start in range(0, pieces * PIECE_ROWS, PIECE_ROWS):
        keys = np.arange(start, start + PIECE_ROWS)
        table.write(pa.table([keys, keys], schema=SCHEMA))
        files = [entry.file for entry in table.scan().live.entries]
        rows_of |= {file.file_name: file.row_count for file in files if file.level}
    return table, sum(rows_of.values()) / (pieces * PIECE_ROWS)


@pytest.mark.takes_turns
@pytest.mark.parametrize("pieces", [30, 90])
def test_rows_in_the_order_of_keys_are_written_again_as_often_however_many(
    tmp_path: Path, pieces: int
) -> None:
    table, times = loaded(tmp_path, pieces)
    assert times < 2
    assert table.scan().count() == pieces * PIECE_ROWS
    assert len(table.scan().live.entries) < 2 * pieces * PIECE_ROWS / FILE_ROWS + 5


@pytest.mark.soak
def test_memory_of_a_load_is_level(tmp_path: Path) -> None:
    """Of its own, of a process that loads what makes one file and what makes four."""
    script = Path(__file__).parents[2] / "benchmarks/growth.py"
    few, many = (held_mb(script, tmp_path / str(rows), rows) for rows in (10_000_000, 40_000_000))
    assert many < few * 1.6


def held_mb(script: Path, folder: Path, rows: int) -> float:
    command = [sys.executable, str(script), "--rows", str(rows), "--step", "load", "--directory",
               str(folder)]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(told.splitlines()[-1])["load, anon MB"])
