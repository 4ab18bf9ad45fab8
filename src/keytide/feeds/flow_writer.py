"""Writes the events of flows whose rows depend on stored rows.

An `EventWriter` can be pickled. Executors use it for the events of their buckets. Its output
depends on stored rows, so it is committed only if no other commit has changed the buckets
meanwhile. Otherwise it is computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl
import pyarrow as pa

from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.author import Author
from keytide.commit.result import WriteResult
from keytide.commit.transaction import Transaction
from keytide.errors import ConflictError
from keytide.feeds.flow import Flow
from keytide.feeds.history import DELETES, History
from keytide.feeds.latest import Latest
from keytide.feeds.omitted import Omitting
from keytide.feeds.truncation import going_by
from keytide.format.arrow import to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.maintenance.upkeep.writing import writing
from keytide.read.lookup import newest_versions
from keytide.read.scan import Scan
from keytide.read.task import ReadTask
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.stored import PinnedTable, StoredTable
from keytide.tasks.runner import TaskRunner
from keytide.types import arrow_schema
from keytide.write.input_rows import incoming_rows
from keytide.write.padded_rows import padded
from keytide.write.task import WriteTask, Written
from keytide.write.ties import Order, refuse_ties, tie_columns
from keytide.write.writable import writable_view

__all__ = ["EventWriter", "made_anew", "write_events", "write_on_read"]

T = TypeVar("T")


@dataclass(frozen=True)
class EventWriter:
    """Writes events into one table. `tasks` read the stored rows of their keys in each bucket."""

    task: WriteTask
    kernel: History | Latest | Omitting
    tasks: Mapping[BucketId, ReadTask]
    pads: bool = False
    """Whether columns that events lack are filled with NULL."""

    @classmethod
    def on(cls, transaction: Transaction, flow: Flow) -> EventWriter:
        """A writer for events on top of the state where a transaction began."""
        state, view = transaction.state, transaction.view
        kernel = flow.kernel(view)
        scan = Scan(state.merging, tuple(kernel.columns))
        plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
        tasks = {(plan.partition, plan.bucket): task for plan, task in plans}
        pads = flow.request.merge_schema or flow.request.ignores_nulls
        return cls(replace(transaction.task(), stored=None), kernel, tasks, pads)

    def feed(self, rows: Iterable[pa.Table], number: int) -> Written:
        """Write events from `rows_of_events`, in order of arrival.

        REQUIRES: one call gets all events of a bucket, which are held in memory. Raises what
        `WriteTask.feed` raises, and leaves no files behind then.
        """
        pieces = [piece for piece in rows if piece.num_rows]
        if not pieces:
            return Written(())
        events = pa.concat_tables(pieces)
        view = self.task.view
        given = incoming_rows(self._complete(events), view.schema, view.options, view.name)
        if self.task.order is not Order.KNOWN:
            refuse_ties(view, tie_columns(given.frame, view))
        frame, cut = self.task.layout.begin().cut(given.frame, given.table, view)
        changed = [self._changed(bucket, part) for bucket, part in cut.parts(frame)]
        rows = [self._as_rows(frame) for frame in changed if frame.height]
        written = self.task.feed([pa.concat_tables(rows)] if rows else [], number)
        return replace(written, rows=events.num_rows)

    def _complete(self, events: pa.Table) -> pa.Table:
        """Add the columns that only target rows have to the events."""
        schema = self.task.view.schema
        if self.pads:
            events = padded(events, schema, self.task.view.options)
        own = set(self.kernel.columns) - {*self.kernel.given, *events.column_names}
        for name in sorted(own):
            type_ = schema.field(name).type.to_arrow()
            events = events.append_column(name, pa.nulls(events.num_rows, type_))
        return events

    def _changed(self, bucket: BucketId, events: pl.DataFrame) -> pl.DataFrame:
        is_delete = pl.col(VALUE_KIND).is_in([int(RowKind.DELETE), int(RowKind.UPDATE_BEFORE)])
        columns = list(self.kernel.columns)
        task, found = self.tasks.get(bucket), [events.select(*columns, VALUE_KIND).clear()]
        if task is not None:
            asked = events.select(self.kernel.keys).unique()
            versions = newest_versions(task, asked, columns)
            found += [frame.select(*columns, VALUE_KIND) for frame in versions]
        stored = pl.concat(found)
        return self.kernel.changed(stored, events.with_columns(is_delete.alias(DELETES)))

    def _as_rows(self, changed: pl.DataFrame) -> pa.Table:
        view = self.task.view
        rows = to_arrow(changed, arrow_schema(view.schema.select(self.kernel.columns)))
        is_row = changed[VALUE_KIND] == int(RowKind.INSERT)
        kinds = pl.select(pl.when(is_row).then(pl.lit("+I")).otherwise(pl.lit("-D"))).to_series()
        return rows.append_column(ROW_KIND, kinds.to_arrow().cast(pa.string()))


def write_events(
    table: StoredTable, flow: Flow, events: pa.Table, author: Author | None = None
) -> WriteResult:
    """Apply events from `rows_of_events` to a table in one atomic commit.

    Raises as `Table.write` does.
    """

    def outlived(transaction: Transaction, rows: pa.Table) -> pa.Table:
        return going_by(transaction, table).outlived(rows, table.name)

    def write(transaction: Transaction) -> None:
        writer = EventWriter.on(transaction, flow)
        here = replace(transaction.here(writer.task), threads=os.cpu_count() or 1)
        left = events if flow.keeps_history else outlived(transaction, events)
        transaction.take(replace(writer, task=here).feed([left], 0))

    return write_on_read(table, write, author)


def write_on_read(
    table: StoredTable,
    write: Callable[[Transaction], None],
    author: Author | None = None,
    runner: TaskRunner | None = None,
) -> WriteResult:
    """Commit what `write` adds to a transaction. See `made_anew`."""

    def made(pinned: PinnedTable) -> WriteResult:
        with writing(pinned, writable_view(pinned), author, runner) as transaction:
            if transaction.done is not None:
                return transaction.already_done()
            write(transaction)
            return transaction.build_on()

    return made_anew(table, made)


def made_anew(table: StoredTable, made: Callable[[PinnedTable], T]) -> T:
    """The result of `made` for the current table, computed again if another commit came first.

    At most as often as 'commit.max-retries' says. Raises what `made` raises.
    """
    pinned, tries = table.pinned(), 0
    while True:
        tries_max = writable_view(pinned).options.commit_retries_max
        try:
            return made(pinned)
        except ConflictError:
            tries += 1
            if tries > tries_max:
                raise
            pinned = table.live.pinned()
