"""Tables whose rows store which values their source omitted.

A table gets the column `OMITTED` when the first change omits a value. From then on, each batch
reads the stored rows of its keys.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from keytide.catalogs.growing import grown
from keytide.commit.author import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnNullability,
    SchemaChange,
    growth,
)
from keytide.errors import InvalidError, UnsupportedError
from keytide.feeds.feed import UNAVAILABLE_COLUMN
from keytide.feeds.flow import Flow
from keytide.feeds.flow_writer import EventWriter, write_on_read
from keytide.feeds.omitted import OMITTED, Omitting, omitted_field
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.read.scan import Scan
from keytide.snapshot.pinned import PinnedTable, StoredTable
from keytide.snapshot.state import TableView

__all__ = ["names_omitted", "omits", "stores_omitted", "storing_omitted", "write_omitting"]


def names_omitted(rows: pa.Table) -> list[str]:
    """The columns that some decoded changes omit."""
    if UNAVAILABLE_COLUMN not in rows.column_names:
        return []
    lists = rows[UNAVAILABLE_COLUMN]
    if not pa.types.is_list(lists.type) or not pa.types.is_string(lists.type.value_type):
        return []
    return sorted(name for name in pc.unique(pc.list_flatten(lists)).to_pylist() if name)


def storing_omitted(
    pinned: PinnedTable, names: Collection[str], author: Author | None = None
) -> PinnedTable:
    """The table with the column `OMITTED`, in which the named columns can be NULL.

    A value of a NOT NULL column is unknown until its version arrives. Raises what `grown` raises.
    """
    return grown(pinned, partial(_storing, names=names), author=author) if names else pinned


def stores_omitted(view: TableView) -> bool:
    """Whether a table can store which values of its rows were omitted.

    It must keep the latest row of each key. Other engines merge values in their own ways.
    """
    options = view.options
    keeps_latest = options.merge_engine == TableOptions.parse({}).merge_engine
    return keeps_latest and not view.kind.has_key_index


def omits(table: StoredTable, events: pa.Table) -> bool:
    """Whether events, or stored rows of their target, omit values."""
    return OMITTED in table.schema.by_name or bool(names_omitted(events))


def write_omitting(
    table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None
) -> WriteResult:
    """Apply rows from `rows_of_events` that omit values, in one atomic commit.

    Raises `UnsupportedError` for flows that cannot fill them, and what `write_on_read` raises.
    """
    request = flow.request
    if flow.reads_first or request.truncates is not None:
        raise UnsupportedError(
            "Lake.auto_cdc: events omit values, which is supported only for SCD type 1 without "
            "ignore_null_updates and apply_as_truncates; use Lake.ingest, or let the source send "
            "all values"
        )
    if UNAVAILABLE_COLUMN not in rows.column_names:
        raise InvalidError(
            f"Lake.auto_cdc: events omit values, and column {UNAVAILABLE_COLUMN!r} says which; do "
            "not leave it out of the target"
        )
    pinned = storing_omitted(table.pinned(), [*names_omitted(rows), OMITTED], author)
    if request.merge_schema:
        needed = partial(growth, columns=rows.schema, table=table.name)
        pinned = grown(pinned, needed, author=author)

    def write(transaction: Transaction) -> None:
        view = transaction.view
        kernel = Omitting(view.order, tuple(view.schema.names))
        scan = Scan(transaction.state.merging, kernel.columns)
        plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
        tasks = {(plan.partition, plan.bucket): task for plan, task in plans}
        task = transaction.here(replace(transaction.task(), stored=None))
        writer = EventWriter(task, kernel, tasks, request.merge_schema)
        transaction.take(writer.feed([rows], 0))

    return write_on_read(table, write, author)


def _storing(schema: TableSchema, names: Collection[str]) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    if OMITTED not in schema.by_name:
        sequence = TableOptions.parse(schema.options).sequence_field
        field = omitted_field(schema, sequence)
        changes.append(AddColumn((field.name,), field.type))
    for name in names:
        field_ = schema.by_name.get(name)
        if field_ is not None and not field_.type.nullable and name not in schema.primary_keys:
            changes.append(ChangeColumnNullability((name,), nullable=True))
    return changes
