"""What a data file spends on its columns."""

from __future__ import annotations

import io
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.format.parquet_encoding import BALANCED, bounded_leaves, codecs, dictionary_columns

ROWS = 200_000
CHANCE = np.random.default_rng(0)
NOISE = CHANCE.integers(-(2**63), 2**63 - 1, ROWS)
WORDS = pa.array([f"word {n}" for n in range(20)]).take(pa.array(NOISE % 20))
COLUMNS = pa.table(
    {
        "key": np.arange(ROWS),
        "noise": NOISE,
        "few": NOISE % 20,
        "word": WORDS,
        "flag": NOISE % 2 == 0,
        "nothing": pa.nulls(ROWS, pa.int64()),
        "list": pa.ListArray.from_arrays(np.arange(ROWS + 1), np.arange(ROWS)),
        "pair": pa.StructArray.from_arrays([pa.array(NOISE), WORDS], ["left", "right"]),
    }
)


def test_columns_of_few_values_have_a_dictionary() -> None:
    assert dictionary_columns(COLUMNS) == ["few", "word", "flag", "nothing"]


def test_only_what_does_not_compress_is_left_uncompressed() -> None:
    found = codecs(COLUMNS, "zstd", dictionary_columns(COLUMNS))
    assert found == {
        "key": "zstd",
        "noise": "none",
        "few": "zstd",
        "word": "zstd",
        "flag": "zstd",
        "nothing": "zstd",
        "list.list.element": "zstd",
        "pair.left": "none",
        "pair.right": "zstd",
    }


def test_codecs_name_every_leaf_that_a_file_has() -> None:
    file = io.BytesIO()
    pq.write_table(COLUMNS, file, compression=codecs(COLUMNS, "zstd", ()))
    metadata = pq.ParquetFile(file).metadata.row_group(0)
    stored = [metadata.column(i) for i in range(metadata.num_columns)]
    assert {c.path_in_schema for c in stored if c.compression == "UNCOMPRESSED"} == {
        "flag",
        "noise",
        "nothing",
        "pair.left",
    }


def test_small_files_are_compressed_without_a_look() -> None:
    few = COLUMNS.select(["key", "noise"]).slice(0, 1_000)
    assert codecs(few, "lz4", ()) == {"key": "lz4", "noise": "lz4"}


def test_none_is_none() -> None:
    assert set(codecs(COLUMNS, "none", ()).values()) == {"none"}


def test_balance_gives_up_space_for_speed_where_values_are_short() -> None:
    numbers = NOISE % 100_000
    rows = pa.table(
        {
            "sorted": np.arange(ROWS),
            "three bytes of eight": NOISE % (1 << 41),
            "short": [str(number) for number in numbers],
            "long": [f"a sentence about {number}, with a good many words" for number in numbers],
        }
    )
    assert codecs(rows, BALANCED, ()) == {
        "sorted": "zstd",
        "three bytes of eight": "none",
        "short": "lz4",
        "long": "zstd",
    }
    assert set(codecs(rows, "zstd", ()).values()) == {"zstd"}


def test_bytes_and_decimals_of_more_than_8_bytes_have_no_dictionary() -> None:
    rows = {
        f"d{digits}": pa.array([Decimal(1)] * 100, pa.decimal128(digits, 0)) for digits in (18, 19)
    }
    assert dictionary_columns(pa.table({**rows, "b": [b"x"] * 100})) == ["d18"]


def test_columns_with_nan_or_bytes_have_no_bounds_in_their_file() -> None:
    rows = {
        "nan": pa.array([float("nan"), 1.0]),
        "b": [b"", None],
        "x": pa.array([1.0, None]),
        "l": [[1.0], [2.0]],
    }
    assert bounded_leaves(pa.table(rows)) == ["x", "l.list.element"]
