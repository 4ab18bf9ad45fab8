"""Truncation of tables by events: later rows stay, and late events before it do not return.

A truncation is a separate commit. It replaces all stored rows by the latest versions, including
deletes, at or after its place in the order, and its snapshot records the place. It can only be
committed directly after the snapshot it was computed from, so no event comes between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pyarrow as pa

from keytide.base.row_kind import ROW_KIND
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.pile import piled
from keytide.compaction.raising import raise_replacement
from keytide.feeds.flow import Flow
from keytide.feeds.flow_writer import made_anew
from keytide.feeds.latest import Latest
from keytide.feeds.truncation import Truncation
from keytide.format.arrow import from_arrow, to_arrow
from keytide.maintenance.upkeep.writing import writing
from keytide.merge.order import IS_ADD
from keytide.predicate.matching import row_filter
from keytide.read.scan import Scan
from keytide.snapshot.pinned import PinnedTable, StoredTable
from keytide.write.partition_spec import every_partition
from keytide.write.refusals import writable_view

__all__ = ["told_with", "truncate_up_to"]


def truncate_up_to(table: StoredTable, flow: Flow, places: pa.Table) -> WriteResult:
    """Remove what precedes the last of some places, if not already done, in one commit.

    The result has no row counts. Memory follows 'read.memory' and 'write-buffer-size'. Raises
    `ConflictError` if other writers commit too often, and what writes raise.
    """
    nothing = WriteResult(None, 0, 0, 0)

    def made(pinned: PinnedTable) -> WriteResult:
        with writing(pinned, writable_view(pinned)) as transaction:
            known = Truncation.of(pinned, transaction.state.snapshot, transaction.view)
            wanted = known.up_to(places, pinned.name)
            if not wanted.is_beyond(known):
                transaction.abort()
                return nothing
            buffer_bytes = transaction.view.options.write_buffer_bytes
            rows = piled(_left(transaction, flow, wanted), buffer_bytes)
            transaction.take(transaction.here(transaction.task_anew()).feed(rows, 0))
            raise_replacement(transaction)
            transaction.progress = wanted.progress(known)
            return replace(transaction.relayout(every_partition), rows=0)

    return made_anew(table, made) if places.num_rows else nothing


def told_with(truncated: WriteResult, written: WriteResult) -> WriteResult:
    """The combined result of a truncation and of the events after it, which may be none."""
    only = truncated.snapshot_id is not None and written.snapshot_id is None
    return replace(truncated, rows=written.rows) if only else written


def _left(transaction: Transaction, flow: Flow, truncation: Truncation) -> Iterator[pa.Table]:
    """The latest versions of keys that survive a truncation, with `_row_kind`."""
    state, names = transaction.state, transaction.view.schema.names
    predicate = truncation.outlived_by
    assert predicate is not None
    stays = row_filter(predicate, truncation.fields)
    kernel = flow.kernel(transaction.view) if flow.reads_first else None
    schema = transaction.view.schema.arrow_schema()
    for task in Scan(state.merging, names, predicate).tasks():
        for frame in task.outcomes(transaction.view.options.read_memory_bytes):
            left = frame.filter(stays)
            if isinstance(kernel, Latest):
                left = kernel.outlived(left, _as_series(truncation.place[0]))
            kinds = left.select(pl.when(IS_ADD).then(pl.lit("+I")).otherwise(pl.lit("-D")))
            rows = to_arrow(left.select(names), schema)
            yield rows.append_column(ROW_KIND, kinds.to_series().to_arrow().cast(pa.string()))


def _as_series(value: pa.Scalar) -> pl.Series:
    return from_arrow(pa.table([pa.repeat(value, 1)], names=["place"])).to_series()
