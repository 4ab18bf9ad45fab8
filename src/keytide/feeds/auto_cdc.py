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
from keytide.commit.author import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.schema_evolution import SetOption, growth
from keytide.errors import NotFoundError
from keytide.feeds.flow import Flow, FlowRequest, flow_target
from keytide.feeds.flow_writer import (
    combined_result,
    has_omitted_values,
    rows_of_events,
    split_truncates,
    truncate_up_to,
    write_events,
    write_omitted_values,
)
from keytide.feeds.truncation import TruncationLookup, retry_after_truncation
from keytide.format.schema import TableSchema
from keytide.snapshot.stored_table import StoredTable
from keytide.write.input_rows import source_table

# -- columns without a type ------------------------------------------------------------------------


_UNTYPED = "user.auto-cdc-untyped"


def typed_events(
    catalog: Catalog, request: FlowRequest, events: pa.Table, author: Author | None
) -> pa.Table:
    """The events without columns that neither they nor the target give a type.

    The target gets columns that it lacks only because earlier events had no type for them.
    """
    table = _existing(catalog, request.target)
    awaited = [] if table is None else json.loads(table.schema.options.get(_UNTYPED, "[]"))
    untyped = untyped_columns(events, request)
    if table is not None:
        _grow(table, events.drop_columns(untyped), awaited, author)
        untyped = [name for name in untyped if name in awaited]
        untyped = [name for name in untyped if name not in table.live.schema.by_name]
    return events.drop_columns(untyped)


def keep_untyped(table: StoredTable, names: list[str]) -> None:
    """Remember columns that a new target lacks."""
    if names and _UNTYPED not in table.schema.options:
        alter_table(table.metadata, [SetOption(_UNTYPED, json.dumps(names))])


def untyped_columns(events: pa.Table, request: FlowRequest) -> list[str]:
    """The columns of the target that contain only NULL and have no type."""
    fixed = {*request.keys, *request.sequence_by, *(request.except_columns or ())}
    return [f.name for f in events.schema if pa.types.is_null(f.type) and f.name not in fixed]


def _grow(table: StoredTable, events: pa.Table, awaited: list[str], author: Author | None) -> None:
    missing = [n for n in awaited if n in events.column_names and n not in table.schema.by_name]
    if missing:
        columns = events.select(missing).schema
        extended_table(
            table.pinned(), partial(growth, columns=columns, table=table.name), author=author
        )


def _existing(catalog: Catalog, name: str) -> StoredTable | None:
    try:
        return catalog.table(name)
    except NotFoundError:
        return None


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
    return combined_result(truncated, _apply(table, flow, rows, author))


def _apply(table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None) -> WriteResult:
    """Apply rows from `rows_of_events` to an open table."""
    if has_omitted_values(table, rows):
        return write_omitted_values(table, flow, rows, author)
    if not flow.reads_first:
        append = partial(_append, table, flow, rows, author)
        return retry_after_truncation(table, append)
    if flow.request.merge_schema:
        needed = partial(growth, columns=rows.schema, table=table.name)
        table = extended_table(table.pinned(), needed, author=author)
    return write_events(table, flow, rows, author)


def _append(
    table: StoredTable,
    flow: Flow,
    rows: pa.Table,
    author: Author | None,
    truncation_of: TruncationLookup,
) -> WriteResult:
    def fitting(transaction: Transaction, given: pa.Table) -> pa.Table:
        return truncation_of(transaction).remaining_rows(given, transaction.view.name)

    if flow.request.merge_schema:
        table, rows = extended_for(table, rows, author)
    return local_writes.append(table, rows, author, fitting)
