"""Files that say which rows of data files are dead, by their positions."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.format.deletion_vector import Vector

__all__ = ["FILE_PATH_ID", "delete_file"]

FILE_PATH_ID, _POS_ID = 2147483546, 2147483545


def delete_file(vectors: Mapping[str, Vector]) -> tuple[bytes, int]:
    """A file with the dead rows of some data files, which are named by their paths in full.

    Gives its rows too. Rows are in order of the path, then of the position.
    """
    paths = sorted(vectors)
    counts = [len(vectors[path]) for path in paths]
    places = [np.asarray(vectors[path].to_array()).astype(np.int64) for path in paths]
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(paths), dtype=np.int32), counts)), pa.array(paths)
    )
    rows = pa.Table.from_arrays(
        [names.cast(pa.string()), pa.array(np.concatenate(places))], schema=_ROWS
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", column_encoding={"pos": "DELTA_BINARY_PACKED"},
                   use_dictionary=["file_path"])  # fmt: skip
    return sink.getvalue(), rows.num_rows


def _field(name: str, type_: pa.DataType, field_id: int) -> pa.Field:
    told = {b"PARQUET:field_id": str(field_id).encode()}
    return pa.field(name, type_, nullable=False, metadata=told)


_ROWS = pa.schema(
    [_field("file_path", pa.string(), FILE_PATH_ID), _field("pos", pa.int64(), _POS_ID)]
)
