"""Pages of what files hold."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

__all__ = ["pages_of"]

_ROWS_MIN = 64 << 10


def pages_of(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Some rows as pages, not many small ones: each costs its engine a query."""
    chunks = rows.column(0).num_chunks if rows.num_columns else 1
    is_scattered = chunks > 1 and rows.num_rows < chunks * _ROWS_MIN
    yield from (rows.combine_chunks() if is_scattered else rows).to_batches()
