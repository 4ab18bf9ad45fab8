"""`Lake.auto_cdc` for events in this process: from a source to a commit.

Columns of events have no type yet if they contain only NULL, as deletes often do. The target is
created without these columns, and gets them from the first events that have values. Until then it
stores the places of the deletes, so that late events bring no row back.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pyarrow as pa

from keytide.catalogs import local_writes
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import extended_for, extended_table
from keytide.catalogs.schema_changes import alter_table
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.schema_evolution import SetOption, growth
from keytide.errors import NotFoundError
from keytide.feeds.flow import Flow, FlowRequest, flow_target
from keytide.feeds.flow_writer import (
    combined_result,
    omitted_names,
    rows_of_events,
    split_truncates,
    truncate_up_to,
    write_events,
    write_omitted_values,
)
from keytide.feeds.omitted_values import OMITTED
from keytide.feeds.truncation import TruncationLookup, retry_after_truncation
from keytide.format.schema import TableSchema
from keytide.snapshot.stored_table import StoredTable
from keytide.write.input_rows import source_table

# -- columns without a type ------------------------------------------------------------------------


_UNTYPED = "user.auto-cdc-untyped"


def _typed_events(
    catalog: Catalog,
    request: FlowRequest,
    events: pa.Table,
    untyped: list[str],
    author: Author | None,
) -> pa.Table:
    """The events without `untyped` columns to which the target gives no type either.

    The target gets columns that it lacks only because earlier events had no type for them.
    """
    try:
        table = catalog.table(request.target)
    except NotFoundError:
        return events.drop_columns(untyped)
    awaited = json.loads(table.schema.options.get(_UNTYPED, "[]"))
    typed = events.drop_columns(untyped)
    missing = [n for n in awaited if n in typed.column_names and n not in table.schema.by_name]
    if missing:
        needed = partial(growth, columns=typed.select(missing).schema, table=table.name)
        extended_table(table.pinned(), needed, author=author)
    untyped = [name for name in untyped if name in awaited]
    return events.drop_columns([n for n in untyped if n not in table.live.schema.by_name])


# -- application of events -------------------------------------------------------------------------


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
    fixed = {*request.keys, *request.sequence_by, *(request.except_columns or ())}
    untyped = [f.name for f in events.schema if pa.types.is_null(f.type) and f.name not in fixed]
    events = _typed_events(catalog, request, events, untyped, author)
    flow = Flow.of(request, events.schema)
    events, places = split_truncates(events, flow)
    rows = rows_of_events(events, flow)
    is_new = catalog.find(request.target) is None
    table = flow_target(catalog, flow)
    if is_new and untyped and _UNTYPED not in table.schema.options:
        alter_table(table.metadata, [SetOption(_UNTYPED, json.dumps(untyped))])
    truncated = truncate_up_to(table, flow, places)
    return combined_result(truncated, _apply(table, flow, rows, author))


def _apply(table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None) -> WriteResult:
    """Apply rows from `rows_of_events` to an open table."""
    if OMITTED in table.schema.by_name or omitted_names(rows):
        return write_omitted_values(table, flow, rows, author)
    if flow.reads_first:
        if flow.request.merge_schema:
            needed = partial(growth, columns=rows.schema, table=table.name)
            table = extended_table(table.pinned(), needed, author=author)
        return write_events(table, flow, rows, author)

    def append(truncation_of: TruncationLookup) -> WriteResult:
        def fitting(transaction: Transaction, given: pa.Table) -> pa.Table:
            return truncation_of(transaction).remaining_rows(given, transaction.view.name)

        to, given = table, rows
        if flow.request.merge_schema:
            to, given = extended_for(table, rows, author)
        return local_writes.append(to, given, author, fitting)

    return retry_after_truncation(table, append)
