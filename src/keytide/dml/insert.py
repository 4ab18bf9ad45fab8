"""INSERT through any connector: the sequence of calls.

Rows are streamed into a sink on the driver, and inserted once all of them have arrived.
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
    """Insert the rows that `feed` passes to its argument. Atomic. Runs on the driver.

    Raises `UnsupportedError` if the connector has no INSERT, and what the connector and `feed`
    raise, with nothing inserted.
    """
    sink = connector.metadata.begin_insert(session, table, columns)
    try:
        feed(sink.store_rows)
        return Changed(sink.finish(), 0)
    except BaseException:
        with suppress(KeytideError):  # the original error is more useful
            sink.abort()
        raise
