"""Flows of change events that this process holds: from a source to a commit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from keytide.cdc.flow import Flow, FlowRequest
from keytide.cdc.flow_rows import rows_of_events
from keytide.cdc.flow_target import flow_target
from keytide.cdc.flow_writer import write_events
from keytide.format.schema import TableSchema
from keytide.table import local_writes
from keytide.table.catalog import Catalog
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.definition.growth import growth
from keytide.table.growing import grown, grown_for
from keytide.table.state.stored import StoredTable
from keytide.table.write.input_rows import source_table

__all__ = ["apply_events", "apply_rows"]

_NO_TABLE = TableSchema(0, (), -1, (), ())


def apply_events(
    catalog: Catalog, request: FlowRequest, data: Any, author: Author | None = None
) -> WriteResult:
    """Make events part of the target, in one atomic commit, as `Lake.auto_cdc` says."""
    events = source_table(data, _NO_TABLE, request.target)
    if not events.num_columns:
        return WriteResult(None, 0, 0, 0)  # no rows at all
    flow = Flow.of(request, events.schema)
    rows = rows_of_events(events, flow)
    return apply_rows(flow_target(catalog, flow), flow, rows, author)


def apply_rows(
    table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None = None
) -> WriteResult:
    """The same of rows as `rows_of_events` makes them, into a table that is open."""
    if not flow.reads_first:
        if flow.request.merge_schema:
            table, rows = grown_for(table, rows, author)
        return local_writes.append(table, rows, author)
    if flow.request.merge_schema:
        needed = partial(growth, columns=rows.schema, table=table.name)
        table = grown(table.pinned(), needed, author=author)
    return write_events(table, flow, rows, author)
