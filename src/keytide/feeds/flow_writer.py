"""Writes of flows of change events whose rows depend on stored rows.

- An `EventWriter` can be pickled. Executors use it for the events of their buckets. Its output
  depends on stored rows, so it is committed only if no other commit has changed the buckets
  meanwhile. Otherwise it is computed again.
- Truncation of a table by an event is a separate commit. It replaces all stored rows by the latest
  versions, including deletes, at or after its place in the order, and its snapshot records the
  place. Later rows stay, and late events before it do not return. It can only be committed directly
  after the snapshot it was computed from, so no event comes between.
- A table gets the column `OMITTED` when the first change omits a value. From then on, each batch
  reads the stored rows of its keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.catalogs.local_writes import extended_table
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.bulk_load import raise_replacement
from keytide.compaction.row_buffer import piled
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnNullability,
    SchemaChange,
    growth,
)
from keytide.errors import ConflictError, InvalidError, UnsupportedError
from keytide.feeds.feed import UNAVAILABLE_COLUMN
from keytide.feeds.flow import Flow
from keytide.feeds.omitted_values import OMITTED, OmittedValues, omitted_field
from keytide.feeds.scd import DELETES, History, LatestRow
from keytide.feeds.truncation import Truncation, recorded_truncation
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.format.schema import TableSchema
from keytide.maintenance.writes import writing
from keytide.merge.order import IS_ADD
from keytide.options import TableOptions
from keytide.predicate.condition import predicate_of
from keytide.predicate.predicate import Predicate, columns_of, row_filter
from keytide.read.lookup import newest_versions
from keytide.read.scan import ReadTask, Scan
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.tasks import TaskRunner
from keytide.types import Field, arrow_schema, type_from_arrow
from keytide.write.input_rows import incoming_rows, padded, parsed_kinds
from keytide.write.partition_spec import every_partition
from keytide.write.refusals import writable_view
from keytide.write.task import Order, TaskResult, WriteTask, refuse_ties, tie_columns

# -- the event writer ------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True)
class EventWriter:
    """Writes events into one table. `tasks` read the stored rows of their keys in each bucket."""

    task: WriteTask
    kernel: History | LatestRow | OmittedValues
    tasks: Mapping[BucketId, ReadTask]
    pads: bool = False
    """Whether columns that events lack are filled with NULL."""

    @classmethod
    def on(
        cls, transaction: Transaction, flow: Flow, kernel: OmittedValues | None = None
    ) -> EventWriter:
        """A writer for events on top of the state where a transaction began.

        The `kernel` is that of the flow by default.
        """
        used = kernel or flow.kernel(transaction.view)
        scan = Scan(transaction.state.merging, tuple(used.columns))
        plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
        tasks = {(plan.partition, plan.bucket): task for plan, task in plans}
        pads = flow.request.merge_schema or flow.request.ignores_nulls
        return cls(replace(transaction.task(), stored=None), used, tasks, pads)

    def feed(self, rows: Iterable[pa.Table], number: int) -> TaskResult:
        """Write events from `rows_of_events`, in order of arrival.

        REQUIRES: one call gets all events of a bucket, which are held in memory. Raises what
        `WriteTask.feed` raises, and leaves no files behind then.
        """
        pieces = [piece for piece in rows if piece.num_rows]
        if not pieces:
            return TaskResult(())
        events = pa.concat_tables(pieces)
        view = self.task.view
        complete = padded(events, view.schema, view.options) if self.pads else events
        own = set(self.kernel.columns) - {*self.kernel.given, *complete.column_names}
        for name in sorted(own):  # columns that only target rows have
            type_ = view.schema.field(name).type.to_arrow()
            complete = complete.append_column(name, pa.nulls(events.num_rows, type_))
        given = incoming_rows(complete, view.schema, view.options, view.name)
        if self.task.order is not Order.KNOWN:
            refuse_ties(view, tie_columns(given.frame, view))
        frame, cut = self.task.layout.begin().cut(given.frame, given.table, view)
        schema = arrow_schema(view.schema.select(self.kernel.columns))
        changed = [self._changed(bucket, part) for bucket, part in cut.parts(frame)]
        made = [_with_row_kinds(frame, schema) for frame in changed if frame.height]
        written = self.task.feed([pa.concat_tables(made)] if made else [], number)
        return replace(written, rows=events.num_rows)

    def _changed(self, bucket: BucketId, events: pl.DataFrame) -> pl.DataFrame:
        is_delete = pl.col(VALUE_KIND).is_in([int(RowKind.DELETE), int(RowKind.UPDATE_BEFORE)])
        columns = list(self.kernel.columns)
        task, found = self.tasks.get(bucket), [events.select(*columns, VALUE_KIND).clear()]
        if task is not None:
            asked = events.select(self.kernel.order.key).unique()
            versions = newest_versions(task, asked, columns)
            found += [frame.select(*columns, VALUE_KIND) for frame in versions]
        stored = pl.concat(found)
        return self.kernel.changed(stored, events.with_columns(is_delete.alias(DELETES)))


def _with_row_kinds(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, and `_row_kind` for the value kind."""
    kinds = frame.select(pl.when(IS_ADD).then(pl.lit("+I")).otherwise(pl.lit("-D"))).to_series()
    rows = to_arrow(frame.select(schema.names), schema)
    return rows.append_column(ROW_KIND, kinds.to_arrow().cast(pa.string()))


def write_events(
    table: StoredTable, flow: Flow, events: pa.Table, author: Author | None = None
) -> WriteResult:
    """Apply events from `rows_of_events` to a table in one atomic commit.

    Raises as `Table.write` does.
    """

    def write(transaction: Transaction) -> None:
        writer = EventWriter.on(transaction, flow)
        here = replace(transaction.task_here(writer.task), threads=os.cpu_count() or 1)
        left = events
        if not flow.keeps_history:
            truncation = recorded_truncation(transaction, table)
            left = truncation.remaining_rows(events, table.name)
        transaction.collect(replace(writer, task=here).feed([left], 0))

    return commit_from_state(table, write, author)


def commit_from_state(
    table: StoredTable,
    write: Callable[[Transaction], None],
    author: Author | None = None,
    runner: TaskRunner | None = None,
) -> WriteResult:
    """Commit what `write` adds to a transaction. See `retry_on_conflict`."""

    def made(pinned: PinnedTable) -> WriteResult:
        with writing(pinned, writable_view(pinned), author, runner) as transaction:
            if transaction.own_commit is not None:
                return transaction.previous_result()
            write(transaction)
            return transaction.build_on()

    return retry_on_conflict(table, made)


def retry_on_conflict(table: StoredTable, compute: Callable[[PinnedTable], T]) -> T:
    """The result of `compute` for the current table, computed again if another commit came first.

    At most as often as 'commit.max-retries' says. Raises what `compute` raises.
    """
    pinned, tries = table.pinned(), 0
    while True:
        tries_max = writable_view(pinned).options.commit_retries_max
        try:
            return compute(pinned)
        except ConflictError:
            tries += 1
            if tries > tries_max:
                raise
            pinned = table.live.pinned()


# -- rows of events --------------------------------------------------------------------------------


def split_truncates(events: pa.Table, flow: Flow) -> tuple[pa.Table, pa.Table]:
    """The row events, and the places in the order of the events that truncate the target.

    Raises `InvalidError` if a truncating event has no place, and as `rows_of_events`.
    """
    order = list(flow.request.sequence_by)
    if flow.request.truncates is None:
        return events, events.select(order).slice(0, 0)
    truncates = _matching_rows(events, flow.request.truncates, flow)
    places = events.filter(truncates).select(order)
    if any(column.null_count for column in places.columns):
        raise without_place(flow)
    return events.filter(pc.invert(truncates)), places


def without_place(flow: Flow) -> InvalidError:
    """The error for a truncating event without a place, as nobody can say what precedes it."""
    return InvalidError(
        f"Lake.auto_cdc: an event that truncates {flow.request.target} has NULL in "
        f"{' or '.join(flow.request.sequence_by)}, so its order is unknown; set a value"
    )


def rows_of_events(events: pa.Table, flow: Flow) -> pa.Table:
    """Convert row events to rows of the flow's target, with `_row_kind` and unconverted values.

    Raises `InvalidError` for NULL or another string as a row kind, and `InvalidError` or
    `NotFoundError` for a condition that does not match the source.
    """
    request = flow.request
    if ROW_KIND in events.column_names:
        kinds = parsed_kinds(events[ROW_KIND], ROW_KIND, request.target)
        # Before images contain no additional information.
        events = events.filter(pc.not_equal(kinds, int(RowKind.UPDATE_BEFORE)))
    columns = {name: events.column(name) for name in (*request.keys, *flow.names)}
    if flow.keeps_history:
        by = zip(flow.starts, request.sequence_by, strict=True)
        columns |= {start: events.column(name) for start, name in by}

    if request.deletes is not None:
        matches = _matching_rows(events, request.deletes, flow)
        columns[ROW_KIND] = pc.if_else(matches, "-D", "+I")
    elif ROW_KIND in events.column_names:
        columns[ROW_KIND] = events[ROW_KIND]
    else:
        columns[ROW_KIND] = pa.repeat(pa.scalar("+I"), events.num_rows)
    return pa.table(columns)


def _matching_rows(events: pa.Table, condition: Any, flow: Flow) -> pa.Array:
    """Which events match a condition. NULL is no match."""
    predicate, fields = source_condition(condition, flow)
    columns = {f.name: events.column(f.name).cast(f.type.to_arrow()) for f in fields}
    frame = from_arrow(pa.table(columns) if columns else events.select([]))
    return frame.select(row_filter(predicate, fields).fill_null(False)).to_series().to_arrow()


def source_condition(condition: Any, flow: Flow) -> tuple[Predicate, list[Field]]:
    """A condition for deletes or truncates, and the columns of the source that it uses."""
    known = []
    for column in flow.source:
        try:
            known.append(Field(-1, column.name, type_from_arrow(column.type)))
        except InvalidError:  # noqa: PERF203  # only a condition about it needs a type
            continue
    predicate = predicate_of(condition, known, flow.request.target)
    asked = columns_of(predicate)
    return predicate, [field for field in known if field.name in asked]


# -- truncation by events --------------------------------------------------------------------------


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
            if wanted.text == known.text:
                transaction.abort()
                return nothing
            buffer_bytes = transaction.view.options.write_buffer_bytes
            rows = piled(_remaining_versions(transaction, flow, wanted), buffer_bytes)
            transaction.collect(transaction.task_here(transaction.task_anew()).feed(rows, 0))
            raise_replacement(transaction)
            transaction.progress = wanted.progress(known)
            return replace(transaction.relayout(every_partition), rows=0)

    return retry_on_conflict(table, made) if places.num_rows else nothing


def combined_result(truncated: WriteResult, written: WriteResult) -> WriteResult:
    """The combined result of a truncation and of the events after it, which may be none."""
    only = truncated.snapshot_id is not None and written.snapshot_id is None
    return replace(truncated, rows=written.rows) if only else written


def _remaining_versions(
    transaction: Transaction, flow: Flow, truncation: Truncation
) -> Iterator[pa.Table]:
    """The latest versions of keys that survive a truncation, with `_row_kind`."""
    state, names = transaction.state, transaction.view.schema.names
    predicate = truncation.remaining_filter
    assert predicate is not None
    stays = row_filter(predicate, truncation.fields)
    kernel = flow.kernel(transaction.view) if flow.reads_first else None
    schema = transaction.view.schema.arrow_schema()
    for task in Scan(state.merging, names, predicate).tasks():
        for frame in task.outcomes(transaction.view.options.read_memory_bytes):
            left = frame.filter(stays)
            if isinstance(kernel, LatestRow):
                place = pa.table([pa.repeat(truncation.place[0], 1)], names=["place"])
                left = kernel.remaining_rows(left, from_arrow(place).to_series())
            yield _with_row_kinds(left, schema)


# -- tables with omitted values --------------------------------------------------------------------


def omitted_names(rows: pa.Table) -> list[str]:
    """The columns that some decoded changes omit."""
    if UNAVAILABLE_COLUMN not in rows.column_names:
        return []
    lists = rows[UNAVAILABLE_COLUMN]
    if not pa.types.is_list(lists.type) or not pa.types.is_string(lists.type.value_type):
        return []
    return sorted(name for name in pc.unique(pc.list_flatten(lists)).to_pylist() if name)


def with_omitted_column(
    pinned: PinnedTable, names: Collection[str], author: Author | None = None
) -> PinnedTable:
    """The table with the column `OMITTED`, in which the named columns can be NULL.

    A value of a NOT NULL column is unknown until its version arrives. Raises what `extended_table`
    raises.
    """
    if not names:
        return pinned
    return extended_table(pinned, partial(_storing, names=names), author=author)


def has_omitted_column(view: TableView) -> bool:
    """Whether a table can store which values of its rows were omitted.

    It must keep the latest row of each key. Other engines merge values in their own ways.
    """
    options = view.options
    keeps_latest = options.merge_engine == TableOptions.parse({}).merge_engine
    return keeps_latest and not view.kind.has_key_index


def write_omitted_values(
    table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None
) -> WriteResult:
    """Apply rows from `rows_of_events` that omit values, in one atomic commit.

    Raises `UnsupportedError` for flows that cannot fill them, and what `commit_from_state` raises.
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
    pinned = with_omitted_column(table.pinned(), [*omitted_names(rows), OMITTED], author)
    if request.merge_schema:
        needed = partial(growth, columns=rows.schema, table=table.name)
        pinned = extended_table(pinned, needed, author=author)

    def write(transaction: Transaction) -> None:
        view = transaction.view
        kernel = OmittedValues(view.order, tuple(view.schema.names))
        writer = EventWriter.on(transaction, flow, kernel)
        here = transaction.task_here(writer.task)
        transaction.collect(replace(writer, task=here).feed([rows], 0))

    return commit_from_state(table, write, author)


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
