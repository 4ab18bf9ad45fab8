"""`Lake.auto_cdc` for events in this process: from a source to a commit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from keytide.catalogs import local_writes
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.growing import grown, grown_for
from keytide.commit.author import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.schema_evolution import growth
from keytide.feeds.flow import Flow, FlowRequest, flow_target
from keytide.feeds.flow_writer import rows_of_events, split_truncates, write_events
from keytide.feeds.omitting import omits, write_omitting
from keytide.feeds.truncating import told_with, truncate_up_to
from keytide.feeds.truncation import GoingBy, beside_truncations
from keytide.feeds.untyped import keep_untyped, typed_events, untyped_columns
from keytide.format.schema import TableSchema
from keytide.snapshot.pinned import StoredTable
from keytide.write.input_rows import source_table

__all__ = ["apply_events"]

_NO_TABLE = TableSchema(0, (), -1, (), ())


def apply_events(
    catalog: Catalog, request: FlowRequest, data: Any, author: Author | None = None
) -> WriteResult:
    """Apply events to the target in one atomic commit, as `Lake.auto_cdc` describes.

    A truncation is a separate commit before that.
    """
    events = source_table(data, _NO_TABLE, request.target)
    if not events.num_columns:
        return WriteResult(None, 0, 0, 0)  # no rows at all
    untyped = untyped_columns(events, request)
    events = typed_events(catalog, request, events, author)
    flow = Flow.of(request, events.schema)
    events, places = split_truncates(events, flow)
    rows = rows_of_events(events, flow)
    is_new = catalog.find(request.target) is None
    table = flow_target(catalog, flow)
    if is_new:
        keep_untyped(table, untyped)
    truncated = truncate_up_to(table, flow, places)
    return told_with(truncated, _apply(table, flow, rows, author))


def _apply(table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None) -> WriteResult:
    """Apply rows from `rows_of_events` to an open table."""
    if omits(table, rows):
        return write_omitting(table, flow, rows, author)
    if not flow.reads_first:
        append = partial(_append, table, flow, rows, author)
        return beside_truncations(table, append)
    if flow.request.merge_schema:
        needed = partial(growth, columns=rows.schema, table=table.name)
        table = grown(table.pinned(), needed, author=author)
    return write_events(table, flow, rows, author)


def _append(
    table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None, going_by: GoingBy
) -> WriteResult:
    def fitting(transaction: Transaction, given: pa.Table) -> pa.Table:
        return going_by(transaction).outlived(given, transaction.view.name)

    if flow.request.merge_schema:
        table, rows = grown_for(table, rows, author)
    return local_writes.append(table, rows, author, fitting)
