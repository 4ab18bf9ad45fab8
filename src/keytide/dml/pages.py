"""Checks of the pages from a source and of the pages for a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from keytide.dml.spi import ColumnHandle, ConnectorPageSource, ConnectorTableHandle
from keytide.errors import ConnectorError, InvalidError

__all__ = ["channel_columns", "pages_as_asked", "pages_of", "schema_of"]

_ROWS_MIN = 64 << 10


def schema_of(columns: Sequence[ColumnHandle]) -> pa.Schema:
    """Columns as an Arrow schema."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])


def pages_as_asked(
    source: ConnectorPageSource, columns: Sequence[ColumnHandle], connector: str
) -> Iterator[pa.RecordBatch]:
    """The pages of a source. Raises `ConnectorError` for one with other columns than these."""
    expected = schema_of(columns)
    while (page := source.get_next_page()) is not None:
        if page.schema.names != expected.names or page.schema.types != expected.types:
            raise ConnectorError(
                f"connector {connector}: a page has the columns {page.schema.to_string()}; "
                f"expected {expected.to_string()}"
            )
        yield page


def pages_of(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows as pages. Small chunks are combined, because each page costs the engine a query."""
    chunks = rows.column(0).num_chunks if rows.num_columns else 1
    is_scattered = chunks > 1 and rows.num_rows < chunks * _ROWS_MIN
    yield from (rows.combine_chunks() if is_scattered else rows).to_batches()


def channel_columns(
    table: ConnectorTableHandle,
    updated: Sequence[str],
    page: pa.RecordBatch,
    channels: Sequence[int],
) -> list[pa.Array]:
    """The new values of a page's updated columns, and its row ids.

    Raises `InvalidError` unless there is one channel for each of them, within the page.
    """
    channels = list(channels)
    if len(channels) != len(updated) + 1 or not all(0 <= c < page.num_columns for c in channels):
        raise InvalidError(
            f"{table}: update_rows was called with the channels {channels} for a page of "
            f"{page.num_columns} columns; expected one for each of "
            f"{', '.join((*updated, 'row id'))}"
        )
    return [page.column(channel) for channel in channels]
