"""INSERT into any connector's table: the sequence of calls, settled once.

Rows stream from whoever computes them into a sink of the driver, and are inserted when all of them
are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from keytide.dml.execution import Changed
from keytide.dml.spi import Connector, ConnectorSession, ConnectorTableHandle
from keytide.errors import KeytideError

__all__ = ["insert_rows"]


def insert_rows(
    connector: Connector,
    session: ConnectorSession,
    table: ConnectorTableHandle,
    columns: Sequence[str],
    feed: Callable[[Callable[[pa.RecordBatch], None]], None],
) -> Changed:
    """Insert the rows that `feed` hands to what it is given. One atomic change. Driver only.

    Raises `UnsupportedError` where the connector has no INSERT, and what it and `feed` raise; then
    nothing is inserted.
    """
    sink = connector.metadata.begin_insert(session, table, columns)
    try:
        feed(sink.store_rows)
        return Changed(sink.finish(), 0)
    except BaseException:
        with suppress(KeytideError):  # the error that led here says more
            sink.abort()
        raise
