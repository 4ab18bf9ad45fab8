"""Chooses the encoding of each column in a data file from a sample of its rows.

A wrong choice costs time or space, never correctness.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["BALANCED", "bounded_leaves", "codecs", "densest", "dictionary_columns"]

BALANCED = "balanced"
"""A codec setting: zstd, but a faster codec for columns for which that costs little space."""

_FASTEST_FIRST: tuple[str, ...] = ("none", "lz4", "zstd")
_SAMPLE_ROWS = 10_000
# With a larger fraction of distinct values, JVM readers take several times as long with a
# dictionary.
_DISTINCT_SHARE_MAX = 0.3
# In smaller files, there is little to gain.
_CODEC_ROWS_MIN = 200_000
# The fraction of a column's bytes that a codec must save, compared with a faster one.
_SPARED_MIN = 0.1
# The same for short values, in which every few bytes are a separate match: for them, zstd
# decompresses a third of the bytes per second that it decompresses of long strings.
_SPARED_OF_SHORT_MIN = 0.3
_SHORT_BYTES_MAX = 16
_DECIMAL_DIGITS_MAX = 18


def dictionary_columns(rows: pa.Table) -> list[str]:
    """The columns with few distinct values, each of which occurs often.

    Without bytes, and decimals that do not fit 8 bytes: under a filter, Paimon's Java releases
    before 2.0 lose rows whose values are in such a dictionary.
    """
    sample = rows.slice(0, _SAMPLE_ROWS)
    limit = max(1, int(sample.num_rows * _DISTINCT_SHARE_MAX))
    return [
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if _has_safe_dictionary(column.type) and len(pc.unique(column)) <= limit
    ]


def bounded_leaves(rows: pa.Table) -> list[str]:
    """The leaves whose statistics bound all of their values, for every reader.

    Statistics leave out NaN, and readers for which NaN is the largest value would miss it. Engines
    disagree whether bytes have a sign.
    """
    unbounded = {
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if pa.types.is_binary(column.type)
        or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
    }
    return [path for path in _leaf_paths(rows.schema) if path not in unbounded]


def _has_safe_dictionary(type_: pa.DataType) -> bool:
    is_long = pa.types.is_decimal(type_) and type_.precision > _DECIMAL_DIGITS_MAX
    return not (is_long or pa.types.is_binary(type_) or pa.types.is_nested(type_))


def densest(codec: str) -> str:
    """The codec itself or, for `BALANCED`, the one that saves most."""
    return _FASTEST_FIRST[-1] if codec == BALANCED else codec


def codecs(rows: pa.Table, codec: str, dictionary: Collection[str]) -> dict[str, str]:
    """The codec of each leaf: `codec`, or none if it would save almost nothing.

    Readers then have nothing to decompress. With `BALANCED`, a leaf gets the fastest codec that
    saves nearly as much as zstd. `dictionary` names the columns with a dictionary.
    """
    chosen = dict.fromkeys(_leaf_paths(rows.schema), densest(codec))
    plain = [name for name in rows.column_names if name not in set(dictionary)]
    if rows.num_rows < _CODEC_ROWS_MIN or codec == "none" or not plain:
        return chosen
    sample = rows.select(plain).slice(rows.num_rows // 2, _SAMPLE_ROWS)
    tried = _FASTEST_FIRST[1:] if codec == BALANCED else (densest(codec),)
    leaves = {each: _leaves(sample, each) for each in tried}
    for path, leaf in leaves[tried[-1]].items():
        stored = {"none": leaf.plain} | {each: leaves[each][path].stored for each in tried}
        candidates, share = _candidates(codec, leaf)
        most = stored[candidates[-1]] + share * leaf.plain
        chosen[path] = next(each for each in candidates if stored[each] <= most)
    return chosen


class _Leaf(NamedTuple):
    """The number of values in a leaf, and their bytes, in memory and stored."""

    values: int
    plain: int
    stored: int


def _candidates(codec: str, leaf: _Leaf) -> tuple[tuple[str, ...], float]:
    """The possible codecs for a leaf, and the fraction that the last one must save compared with a
    faster one.
    """
    if codec == BALANCED and leaf.plain <= _SHORT_BYTES_MAX * leaf.values:
        return _FASTEST_FIRST, _SPARED_OF_SHORT_MIN
    return ("none", densest(codec)), _SPARED_MIN


def _leaves(rows: pa.Table, codec: str) -> dict[str, _Leaf]:
    """The leaves of a file with these rows, without dictionaries."""
    file = io.BytesIO()
    pq.write_table(rows, file, compression=codec, use_dictionary=False)
    group: Any = pq.ParquetFile(file).metadata.row_group(0)
    found = [group.column(i) for i in range(group.num_columns)]
    return {
        leaf.path_in_schema: _Leaf(
            leaf.num_values, leaf.total_uncompressed_size, leaf.total_compressed_size
        )
        for leaf in found
    }


@lru_cache(maxsize=64)
def _leaf_paths(schema: pa.Schema) -> list[str]:
    if not any(pa.types.is_nested(type_) for type_ in schema.types):
        return list(schema.names)
    footer = io.BytesIO()
    pq.write_metadata(schema, footer)
    stored: Any = pq.ParquetFile(footer).schema
    return [stored.column(i).path for i in range(len(stored))]
