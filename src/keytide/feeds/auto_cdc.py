"""`Lake.auto_cdc` for events in this process: from a source to a commit.

Columns of events have no type yet if they contain only NULL, as deletes often do. The target is
created without these columns, and gets them from the first events that have values. Until then it
stores the places of the deletes, so that late events bring no row back.

Truncation of a table by an event is a separate commit. It replaces all stored rows by the latest
versions, including deletes, at or after its place in the order, and its snapshot records the place.
Later rows stay, and late events before it do not return. It can only be committed directly after
the snapshot it was computed from, so no event comes between.

The place is a property of the latest snapshot. So it is committed atomically with the truncation, a
rollback reverts both, and a branch has both. Every commit of a flow records the place that it used,
and conflicts if another commit has truncated the table meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.catalogs import local_writes
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import extended_for, extended_table
from keytide.catalogs.schema_changes import alter_table
from keytide.commit.change import Author, Progress, current_progress
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.bulk_load import raise_replacement
from keytide.compaction.row_buffer import piled
from keytide.definition.schema_evolution import SetOption, growth
from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)
from keytide.feeds.feed import OMITTED, UNAVAILABLE_COLUMN
from keytide.feeds.feed_writer import FeedWriter
from keytide.feeds.flow import Flow, FlowRequest, flow_target, rows_of_events, split_truncates
from keytide.feeds.omitted_values import omitted_names, with_omitted_column
from keytide.feeds.scd import IGNORED_NULLS, SEQUENCES, LatestRow
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.maintenance.writes import writing
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.predicate.literals import scalar_of_text
from keytide.predicate.predicate import (
    Comparison,
    Predicate,
    conjunction,
    disjunction,
    plain,
    row_filter,
)
from keytide.predicate.value_columns import stored_column
from keytide.read.scan import Scan
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.tasks import TaskRunner
from keytide.types import Field, type_from_arrow
from keytide.write.input_rows import incoming_rows, padded, source_table
from keytide.write.partition_spec import every_partition
from keytide.write.refusals import writable_view
from keytide.write.task import Order, TaskResult, refuse_ties, tie_columns

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
    if not places.num_rows:
        return _apply(table, flow, rows, author)
    truncated = truncate_up_to(table, flow, places)
    return combined_result(truncated, _apply(table, flow, rows, author))


def _apply(table: StoredTable, flow: Flow, rows: pa.Table, author: Author | None) -> WriteResult:
    """Apply rows from `rows_of_events` to an open table."""
    omits = OMITTED in table.schema.by_name
    if UNAVAILABLE_COLUMN in rows.column_names:
        omits |= bool(omitted_names(rows))
    if omits:
        _check_omitted_values(flow, rows)
        names = [*omitted_names(rows), OMITTED]
        table = with_omitted_column(table.pinned(), names, author)
    if omits or flow.reads_first:
        if flow.request.merge_schema:
            needed = partial(growth, columns=rows.schema, table=table.name)
            table = extended_table(table.pinned(), needed, author=author)

        def write(transaction: Transaction) -> None:
            kernel, left = flow.kernel(transaction.view), rows
            if isinstance(kernel, LatestRow):
                left = recorded_truncation(transaction, table).remaining_rows(rows, table.name)
            writer = FeedWriter.on(transaction, kernel).here(transaction)
            transaction.collect(EventTask.of(writer, flow).feed([left], 0))

        return commit_from_state(table, write, author)

    def append(truncation_of: TruncationLookup) -> WriteResult:
        def fitting(transaction: Transaction, given: pa.Table) -> pa.Table:
            return truncation_of(transaction).remaining_rows(given, transaction.view.name)

        to, given = table, rows
        if flow.request.merge_schema:
            to, given = extended_for(table, rows, author)
        return local_writes.append(to, given, author, fitting)

    return retry_after_truncation(table, append)


def _check_omitted_values(flow: Flow, rows: pa.Table) -> None:
    """Raise `UnsupportedError` for flows that cannot fill values which events omit."""
    if flow.reads_first or flow.request.truncates is not None:
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


# -- the writer of events --------------------------------------------------------------------------


@dataclass(frozen=True)
class EventTask:
    """Writes what events from `rows_of_events` change. Can be pickled.

    The output depends on stored rows, so it is committed only if no other commit has changed the
    buckets meanwhile. Otherwise it is computed again.
    """

    writer: FeedWriter
    pads: bool
    """Whether columns that events lack are filled with NULL."""
    own: frozenset[str]
    """The columns of the target that no event has."""

    @classmethod
    def of(cls, writer: FeedWriter, flow: Flow) -> EventTask:
        """The task for the events of a flow."""
        pads = flow.request.merge_schema or flow.request.ignores_nulls
        return cls(writer, pads, frozenset((*flow.ends, IGNORED_NULLS, SEQUENCES, OMITTED)))

    def feed(self, rows: Iterable[pa.Table], number: int) -> TaskResult:
        """Write events in order of arrival.

        REQUIRES: one call gets all events of a bucket, which are held in memory. Raises what
        `WriteTask.feed` raises, and leaves no files behind then.
        """
        pieces = [piece for piece in rows if piece.num_rows]
        if not pieces:
            return TaskResult(())
        events, task = pa.concat_tables(pieces), self.writer.task
        view = task.view
        complete = padded(events, view.schema, view.options) if self.pads else events
        for name in view.schema.names:
            if name in self.own and name not in complete.column_names:
                type_ = view.schema.field(name).type.to_arrow()
                complete = complete.append_column(name, pa.nulls(events.num_rows, type_))
        given = incoming_rows(complete, view.schema, view.options, view.name)
        if task.order is not Order.KNOWN:
            refuse_ties(view, tie_columns(given.frame, view))
        upsert, delete = (pl.lit(kind, pl.Int8) for kind in (RowKind.INSERT, RowKind.DELETE))
        kinds = pl.DataFrame({VALUE_KIND: given.kinds})
        kinds = kinds.select(pl.when(IS_ADD).then(upsert).otherwise(delete).alias(VALUE_KIND))
        written = self.writer.write(given.table, number, kinds.to_series()).written
        return replace(written, rows=events.num_rows)


# -- commits ---------------------------------------------------------------------------------------


T = TypeVar("T")


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


# -- the place of a truncation ---------------------------------------------------------------------


TruncationLookup: TypeAlias = "Callable[[Transaction], Truncation]"

_ROW = scratch("row")
_PROPERTY = "keytide.auto-cdc.truncated"


@dataclass(frozen=True)
class Truncation:
    """A place in the order of events. Without values if there was no truncation. Can be pickled.

    `stored_text` is the property that stores it, None if there is none.
    """

    fields: tuple[Field, ...]
    place: tuple[pa.Scalar, ...] = ()
    stored_text: str | None = None

    @classmethod
    def of(cls, table: StoredTable, newest: Snapshot | None, view: TableView) -> Truncation:
        """The place in a snapshot of a table. Raises `DataError` if it is invalid."""
        fields = tuple(view.schema.field(name) for name in view.options.sequence_field)
        stored_text = _stored_text(table, newest)
        if not stored_text:
            return cls(fields, (), stored_text)
        try:
            place = tuple(
                pa.scalar(bytes.fromhex(text), field.type.to_arrow())
                if _is_bytes(field.type.to_arrow())
                else scalar_of_text(text, field, view.name)
                for text, field in zip(json.loads(stored_text), fields, strict=True)
            )
        except (InvalidError, TypeError, ValueError) as error:
            raise DataError(
                f"table {view.name}: property {_PROPERTY!r} of the latest snapshot is "
                f"{stored_text!r}, which is not a valid sequence of "
                f"{', '.join(f.name for f in fields)}; roll the table back to an earlier snapshot"
            ) from error
        return cls(fields, place, stored_text)

    @property
    def text(self) -> str:
        """The property value for the place."""
        texts = [
            bytes(value.as_py()).hex()
            if _is_bytes(value.type)
            else str(value.cast(pa.string()).as_py())
            for value in self.place
        ]
        return json.dumps(texts) if texts else ""

    def up_to(self, places: pa.Table, table: str) -> Truncation:
        """The latest of this place and the given places, of which there must be at least one.

        Raises `InvalidError` for values that do not have the table's types.
        """
        typed = pa.table(
            {f.name: stored_column(places.column(f.name), f, table) for f in self.fields}
        )
        if self.place:
            own = [pa.repeat(value, 1) for value in self.place]
            typed = pa.concat_tables([typed, pa.table(own, names=typed.column_names)])
        chars = frozenset(f.name for f in self.fields if f.type.root == "CHAR")
        order = MergeOrder((), tuple(typed.column_names), padded=chars)
        sorted_ = order.sort(from_arrow(typed).with_row_index(_ROW), arrival_decides=True)
        last = typed.slice(sorted_[_ROW][-1], 1)
        place = tuple(last.column(f.name)[0] for f in self.fields)
        return Truncation(self.fields, place, self.stored_text)

    @property
    def remaining_filter(self) -> Predicate | None:
        """The condition for rows at the place or after it. None if this is true for all rows."""
        found: Predicate | None = None
        for field, value in reversed(list(zip(self.fields, self.place, strict=False))):
            at = plain(value)
            if found is None:
                found = Comparison(field.name, ">=", at)
            else:
                same = conjunction([Comparison(field.name, "=", at), found])
                assert same is not None
                found = disjunction([Comparison(field.name, ">", at), same])
        return found

    def remaining_rows(self, rows: pa.Table, table: str) -> pa.Table:
        """The rows that it does not remove. They can have other types than the table."""
        predicate = self.remaining_filter
        if predicate is None:
            return rows
        typed = {f.name: stored_column(rows.column(f.name), f, table) for f in self.fields}
        stays = from_arrow(pa.table(typed)).select(row_filter(predicate, self.fields))
        return rows.filter(stays.to_series().to_arrow())

    @property
    def in_microseconds(self) -> Truncation:
        """The same for rows whose times have no nanoseconds, for which it removes the same rows."""
        fields, place = list(self.fields), list(self.place)
        for at, value in enumerate(self.place):
            if pa.types.is_timestamp(value.type) and value.type.unit == "ns":
                micros = -(-value.value // 1000)
                type_ = pa.timestamp("us", value.type.tz)
                fields[at] = Field(fields[at].id, fields[at].name, type_from_arrow(type_))
                place[at] = pa.scalar(micros, pa.int64()).cast(type_)
                if micros * 1000 != value.value:  # no such row is exactly at the place
                    return Truncation(
                        tuple(fields[: at + 1]), tuple(place[: at + 1]), self.stored_text
                    )
        return Truncation(tuple(fields), tuple(place), self.stored_text)

    def progress(self, known: Truncation) -> Progress:
        """The record of a commit that moves on from a known place."""
        return Progress({_PROPERTY: known.stored_text}, {_PROPERTY: self.text})


def recorded_truncation(transaction: Transaction, table: StoredTable) -> Truncation:
    """The place that determines the rows of a transaction, recorded by its commit."""
    known = Truncation.of(table, transaction.state.snapshot, transaction.view)
    # Without rows there is no record.
    transaction.progress = Progress(
        {_PROPERTY: known.stored_text}, {_PROPERTY: known.text}, stands_alone=False
    )
    return known


def retry_after_truncation(table: StoredTable, write: Callable[[TruncationLookup], T]) -> T:
    """The result of `write`, whose transactions call its argument to get the place to use.

    It is called again if the table was truncated meanwhile. Raises what `write` raises.
    """
    went_by: Truncation | None = None

    def going(transaction: Transaction) -> Truncation:
        nonlocal went_by
        went_by = recorded_truncation(transaction, table)
        return went_by

    while True:
        try:
            return write(going)
        except ConflictError:  # noqa: PERF203  # as a rule there is none
            live = table.live
            stored_text = _stored_text(live, live.metadata.latest_snapshot())
            if went_by is None or stored_text == went_by.stored_text:
                raise


def _stored_text(table: StoredTable, newest: Snapshot | None) -> str | None:
    return current_progress(table.metadata, newest, (_PROPERTY,)).get(_PROPERTY)


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_))


# -- truncation by events --------------------------------------------------------------------------


def truncate_up_to(table: StoredTable, flow: Flow, places: pa.Table) -> WriteResult:
    """Remove what precedes the last of some places, if not already done, in one commit.

    The result has no row counts. Memory follows 'read.memory' and 'write-buffer-size'. Raises
    `ConflictError` if other writers commit too often, and what writes raise.
    """

    def made(pinned: PinnedTable) -> WriteResult:
        with writing(pinned, writable_view(pinned)) as transaction:
            known = Truncation.of(pinned, transaction.state.snapshot, transaction.view)
            wanted = known.up_to(places, pinned.name)
            if wanted.text == known.text:
                transaction.abort()
                return WriteResult(None, 0, 0, 0)
            buffer_bytes = transaction.view.options.write_buffer_bytes
            rows = piled(_remaining_versions(transaction, flow, wanted), buffer_bytes)
            transaction.collect(transaction.task_here(transaction.task_anew()).feed(rows, 0))
            raise_replacement(transaction)
            transaction.progress = wanted.progress(known)
            return replace(transaction.relayout(every_partition), rows=0)

    return retry_on_conflict(table, made)


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
    kernel = flow.kernel(transaction.view)
    kinds = pl.when(IS_ADD).then(pl.lit("+I")).otherwise(pl.lit("-D"))
    schema = transaction.view.schema.arrow_schema().append(pa.field(ROW_KIND, pa.string()))
    for task in Scan(state.merging, names, predicate).tasks():
        for frame in task.outcomes(transaction.view.options.read_memory_bytes):
            left = frame.filter(stays)
            if isinstance(kernel, LatestRow):
                place = pa.table([pa.repeat(truncation.place[0], 1)], names=["place"])
                left = kernel.remaining_rows(left, from_arrow(place).to_series())
            yield to_arrow(left.with_columns(kinds.alias(ROW_KIND)), schema)
