"""How the columns of a data file are encoded, decided from a sample of their rows.

A wrong guess costs time or space, never a value.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["codecs", "dictionary_columns"]

_SAMPLE_ROWS = 10_000
# Where more values differ, the JVM's readers take several times as long with a dictionary.
_DISTINCT_SHARE_MAX = 0.3
# In smaller files there is little to be gained.
_CODEC_ROWS_MIN = 200_000
_COMPRESSED_SHARE_MAX = 0.9


def dictionary_columns(rows: pa.Table) -> list[str]:
    """The columns that have few values, each of them often."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    limit = max(1, int(sample.num_rows * _DISTINCT_SHARE_MAX))
    return [
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type) and len(pc.unique(column)) <= limit
    ]


def codecs(rows: pa.Table, codec: str, dictionary: Collection[str]) -> dict[str, str]:
    """The codec of each leaf: `codec`, or none where it would spare next to nothing.

    Readers then have nothing to decompress. `dictionary` names the columns that have one.
    """
    with_dictionary = frozenset(dictionary)
    plain = [name for name in rows.column_names if name not in with_dictionary]
    if rows.num_rows < _CODEC_ROWS_MIN or codec == "none":
        plain = []
    vain = {name for name in plain if _is_vain(rows.column(name), codec)}
    return {path: "none" if path in vain else codec for path in _leaf_paths(rows.schema)}


def _is_vain(column: pa.ChunkedArray, codec: str) -> bool:
    if pa.types.is_nested(column.type) or pa.types.is_boolean(column.type):
        return False
    middle = len(column) // 2
    # Sliced: to take rows, Arrow would join the chunks of the whole column first.
    sample = column.slice(middle, _SAMPLE_ROWS)
    values = pa.concat_arrays(sample.chunks).buffers()[-1]
    if values is None or not values.size:
        return False
    compressed = len(pa.compress(values, codec, asbytes=True))
    return compressed > _COMPRESSED_SHARE_MAX * int(values.size)


@lru_cache(maxsize=64)
def _leaf_paths(schema: pa.Schema) -> list[str]:
    if not any(pa.types.is_nested(type_) for type_ in schema.types):
        return list(schema.names)
    footer = io.BytesIO()
    pq.write_metadata(schema, footer)
    stored: Any = pq.ParquetFile(footer).schema
    return [stored.column(i).path for i in range(len(stored))]
