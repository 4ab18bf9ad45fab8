"""The writer of feeds: what events change in the rows of their keys, as a kernel computes it.

- A `FeedWriter` can be pickled. Executors use it for the events of their buckets. It looks up the
  latest stored version of each key, counts the effects of messages, and writes what its kernel
  makes of them.
- A `Kernel` is a pure computation over Polars frames. It keeps histories, or the latest value of
  each column (`scd`), or fills in what a source omitted: if the table can store what was omitted,
  see `omitted_values`. Otherwise, the previous version has the values that is known then.
- Decoded changes are adapted to the table first: keys get their stored form, and messages that
  cannot be merged are rejected.
- The counts are for people who monitor a feed. The table itself does not need them, because its
  merge handles late and repeated changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.transaction import Transaction
from keytide.errors import UnsupportedError
from keytide.feeds.feed import (
    MESSAGE_COLUMN,
    OMITTED,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    Decoded,
    check_places,
)
from keytide.feeds.omitted_values import OmittedValues
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.merge.order import IS_ADD, RANK, STORED_RANK, MergeOrder, is_late, order_of, with_ranks
from keytide.read.lookup import newest_versions
from keytide.read.scan import ReadTask, Scan
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.types import arrow_schema
from keytide.write.input_rows import typed_rows
from keytide.write.layout import Layout
from keytide.write.refusals import why_refused
from keytide.write.task import TaskResult, WriteTask
from keytide.write.upsert import UpsertTask

# -- decoded changes in the form of a table --------------------------------------------------------


def adapt_to_table(
    decoded: Decoded, messages: pa.Array | pa.ChunkedArray, view: TableView
) -> Decoded:
    """The batch with its keys in stored form, without messages that the engine could not merge.

    Rows are assigned to buckets, and find their stored versions, by the bytes of their keys, so
    different forms of the same CHAR must be unified first. A message is rejected as a whole.
    `messages` are those that were decoded. Raises `DataError` for changes without a place, as
    `check_places` does.
    """
    columns = [n for n in decoded.rows.column_names if n in (*view.schema.names, ROW_KIND)]
    given_rows = _as_stored(decoded.rows.select(columns), view)
    check_places(decoded)
    given = typed_rows(given_rows, view.schema, view.options, view.name)
    rows = decoded.rows
    for name in view.schema.primary_keys:
        rows = rows.set_column(rows.column_names.index(name), name, given.table[name])
    why = why_refused(given.frame, view, given.refusals)
    if why.null_count() == len(why):
        return decoded._replace(rows=rows)
    ordinals = pl.Series("ordinal", values=rows[ORDINAL_COLUMN])
    refused = pl.DataFrame([ordinals, why.alias("reason")]).drop_nulls("reason")
    refused = refused.unique("ordinal", keep="first", maintain_order=True)
    places = refused["ordinal"].to_arrow()
    rejected = pa.table(
        [messages.cast(pa.binary()).take(places), refused["reason"].to_arrow(), places],
        names=REJECTED_SCHEMA.names,
    ).cast(REJECTED_SCHEMA)
    accepted = ~ordinals.is_in(refused["ordinal"].implode())
    return decoded._replace(
        rows=rows.filter(accepted.to_arrow()),
        rejected=pa.concat_tables([decoded.rejected, rejected]),
    )


def _as_stored(rows: pa.Table, view: TableView) -> pa.Table:
    """The rows with the column `OMITTED`, which the decoder does not know, if the table has it."""
    if OMITTED not in view.schema.by_name or OMITTED in rows.column_names:
        return rows
    type_ = view.schema.field(OMITTED).type.to_arrow()
    return rows.append_column(OMITTED, pa.nulls(rows.num_rows, type_))


# -- kernels ---------------------------------------------------------------------------------------


REASON = scratch("reason")
"""The column that says why an event cannot be applied, NULL for rows to write."""


class Kernel(Protocol):
    """Computes what events change in the rows of their keys. Can be pickled."""

    @property
    def order(self) -> MergeOrder:
        """The order of the events of a key."""
        ...

    def stored_columns(self, events: pl.DataFrame) -> Sequence[str]:
        """The columns of stored rows that are needed to apply events."""
        ...

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """The rows to write to apply events, which are in order of arrival.

        `stored` has all rows of their keys, including deleted ones, with `stored_columns`. All
        frames have `_VALUE_KIND`. Events that cannot be applied are returned with a `REASON`.
        """
        ...


# -- the effect of messages on a table -------------------------------------------------------------


@dataclass(frozen=True)
class ChangeCounts:
    """The effect of the messages of a batch.

    `applied` messages were the latest of their key when they arrived. `late` messages were older
    than earlier arrivals, and change nothing. `duplicate` messages had arrived before.
    """

    applied: int = 0
    late: int = 0
    duplicate: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.applied + other.applied, self.late + other.late, self.duplicate + other.duplicate
        )


_NOTHING_COUNTED = ChangeCounts()


def count_changes(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> ChangeCounts:
    """Count the messages of a batch. Without ordering columns, every message is applied.

    `changes` are in arrival order. A message with several rows counts once, with the best outcome
    of its rows. Several `orders` belong to different producers: a row has a place in the order of
    its producer, and is only compared within it.
    """
    if not orders[0].sequence:
        return ChangeCounts(applied=changes[ORDINAL_COLUMN].n_unique())
    found = []
    for order, of_it in by_producer(changes, stored, orders):
        is_first = pl.struct(*order.key, RANK).is_first_distinct()
        # The source gives each change its place in the order, so equal places mean the same change.
        seen = (pl.col(RANK) == pl.col(STORED_RANK)) | ~is_first
        verdict = pl.when(seen).then(2).when(is_late(order)).then(1).otherwise(0)
        found.append(with_ranks(*of_it, order).select(ORDINAL_COLUMN, verdict.alias("verdict")))
    verdicts = pl.concat(found).group_by(ORDINAL_COLUMN).agg(pl.col("verdict").min())["verdict"]
    applied, late, duplicate = (int((verdicts == value).sum()) for value in range(3))
    return ChangeCounts(applied, late, duplicate)


def by_producer(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> Iterator[tuple[MergeOrder, tuple[pl.DataFrame, pl.DataFrame]]]:
    """Each order with the rows that have a place in it. If there is only one order, all rows do."""
    if len(orders) == 1:
        yield orders[0], (changes, stored)
        return
    for order in orders:
        is_its_own = pl.any_horizontal(pl.col(order.sequence).is_not_null())
        yield order, (changes.filter(is_its_own), stored.filter(is_its_own))


# -- values of the previous version ----------------------------------------------------------------


_AT, _ROW, _SOURCE, _ARRIVED = map(scratch, ("at", "row", "source", "arrived"))

_WITHOUT_EARLIER_VERSION = pl.concat_str(
    pl.lit("the source omitted "),
    pl.col(UNAVAILABLE_COLUMN).list.join(", "),
    pl.lit(" and there is no earlier version of the key to take it from"),
)


@dataclass(frozen=True)
class PreviousValues:
    """Fills omitted values of changes from the previous version, in merge order. Can be pickled.

    `columns` are those of the table, and `filled` those whose values are filled. Several `orders`
    belong to different producers: their rows are processed in order of arrival, and a late row is
    not used to fill later rows.
    """

    order: MergeOrder
    orders: tuple[MergeOrder, ...]
    columns: tuple[str, ...]
    filled: tuple[str, ...]

    def stored_columns(self, events: pl.DataFrame) -> Sequence[str]:
        """All columns, or those of the order if no value is omitted."""
        is_complete = not events[UNAVAILABLE_COLUMN].list.len().max()
        return self.order.columns if is_complete else self.columns

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """See `Kernel`.

        A change is refused if no earlier version is known and it would be the latest of its key. A
        change that loses anyway needs no value.
        """
        left_out = {*events[UNAVAILABLE_COLUMN].explode().to_list()}
        names = [name for name in self.filled if name in left_out]
        if not names:
            return events
        if len(self.orders) == 1:
            return _filled(events, stored, self.orders[0], names)
        numbered = events.with_row_index(_ARRIVED)
        late = pl.concat(
            with_ranks(*of_it, order).filter(is_late(order))[_ARRIVED]
            for order, of_it in by_producer(numbered, stored, self.orders)
        )
        is_on_time = ~pl.col(_ARRIVED).is_in(late.implode())
        on_time, order = numbered.filter(is_on_time), MergeOrder(key=self.order.key)
        found = _filled(on_time, stored, order, names)
        rows = pl.concat([found, numbered.filter(~is_on_time)], how="diagonal")
        return rows.sort(_ARRIVED).drop(_ARRIVED)


def _filled(
    changes: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder, names: Sequence[str]
) -> pl.DataFrame:
    # Stored versions and changes in merge order. Of equal ones, stored versions come first.
    numbered = changes.with_row_index(_ROW).with_columns(pl.col(_ROW).cast(pl.Int64))
    before = stored.with_columns(pl.lit(-1, dtype=pl.Int64).alias(_ROW))
    versions = pl.concat([before, numbered], how="diagonal_relaxed")
    history = order.sort(versions, arrival_decides=True)

    is_unknown = pl.lit(value=False)
    for name in names:
        left_out = pl.col(UNAVAILABLE_COLUMN).list.contains(name).fill_null(value=False)
        source = pl.when(~left_out).then(pl.col(_AT)).forward_fill().over(list(order.key))
        history = history.with_row_index(_AT).with_columns(source.alias(_SOURCE))
        values = history[name].gather(history[_SOURCE].fill_null(0))
        # A delete has no values for a later row.
        dead = history.select(~IS_ADD).to_series()
        unknown = history[_SOURCE].is_null() | dead.gather(history[_SOURCE].fill_null(0))
        flags = history.select(left_out.alias("flag"))["flag"]
        history = history.with_columns(
            pl.when(flags & ~unknown).then(values).otherwise(pl.col(name)).alias(name)
        ).drop(_SOURCE, _AT)
        is_unknown |= pl.lit(flags & unknown)

    is_refused = is_unknown & order.last_of_key()
    history = history.with_columns(pl.when(is_refused).then(_WITHOUT_EARLIER_VERSION).alias(REASON))
    return history.filter(pl.col(_ROW) >= 0).sort(_ROW).select(*changes.columns, REASON)


# -- the writer ------------------------------------------------------------------------------------


_KINDS = {kind.short: int(kind) for kind in RowKind}
_TO_VALUE_KIND = pl.col(ROW_KIND).replace_strict(_KINDS, return_dtype=pl.Int8).alias(VALUE_KIND)
_KIND_TEXTS = pl.Series([kind.short for kind in sorted(RowKind)])
_TO_ROW_KIND = pl.lit(_KIND_TEXTS).gather(pl.col(VALUE_KIND)).alias(ROW_KIND)


@dataclass(frozen=True)
class WrittenChanges:
    """The result for some changes: files to commit, counts, and changes with unknown values.

    `unknown` has the columns of `REJECTED_SCHEMA`.
    """

    written: TaskResult
    counts: ChangeCounts
    unknown: pa.Table


@dataclass(frozen=True)
class FeedWriter:
    """Writes what events change into one table.

    `reads` find the stored rows of their keys in each bucket. In a table with a key index, the
    index does.
    """

    task: WriteTask
    kernel: Kernel
    reads: Mapping[BucketId, ReadTask]
    counted: tuple[MergeOrder, ...] = ()
    """The orders by which messages are late or duplicate, one for each producer."""

    @classmethod
    def on(
        cls,
        transaction: Transaction,
        kernel: Kernel,
        layout: Layout | None = None,
        counted: tuple[MergeOrder, ...] = (),
    ) -> FeedWriter:
        """A writer on top of the state where a transaction began.

        `layout` is for parallel tasks, which place new keys in separate buckets.
        """
        task = replace(transaction.task(), stored=None)
        task = task if layout is None else replace(task, layout=layout)
        if isinstance(task, UpsertTask):
            return cls(task, kernel, {}, counted)
        scan = Scan(transaction.state.merging, transaction.view.order.key)
        plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
        reads = {(plan.partition, plan.bucket): read for plan, read in plans}
        return cls(task, kernel, reads, counted)

    def here(self, transaction: Transaction) -> FeedWriter:
        """The same in this process, with all cores. See `Transaction.task_here`."""
        task = replace(transaction.task_here(self.task), threads=os.cpu_count() or 1)
        return replace(self, task=task)

    def write(
        self, events: pa.Table, number: int = 0, kinds: pl.Series | None = None
    ) -> WrittenChanges:
        """Write what events change, in order of arrival, in the table's types, with `_row_kind`.

        With `kinds` (`_VALUE_KIND`), they have no `_row_kind`. They can have more columns than the
        table, for the kernel, and are part `number` of all events. REQUIRES: one call gets all
        events of a bucket. Files are durable on return, and are not part of the table until their
        entries are committed. Raises what `WriteTask.feed` raises, and leaves no files then.
        """
        view, counts = self.task.view, _NOTHING_COUNTED
        made, refused = [], [REJECTED_SCHEMA.empty_table()]
        whole = _as_stored(events, view)
        rows = from_arrow(whole).with_columns(_TO_VALUE_KIND if kinds is None else kinds)
        # Keys without a bucket may be placed differently when they are written, because nothing is
        # stored for them that would have to be found.
        placing = self.task.layout.begin()
        frame, cut = placing.cut(rows, whole, view)
        for bucket, part in cut.parts(frame):
            stored = self._stored_versions(bucket, part)
            changed = self.kernel.changed(stored, part)
            if self.counted:
                counts += count_changes(part, stored, self.counted)
            if REASON in changed.columns:
                lost = changed.filter(pl.col(REASON).is_not_null())
                lost = lost.select(raw=MESSAGE_COLUMN, reason=REASON, ordinal=ORDINAL_COLUMN)
                refused += [to_arrow(lost, REJECTED_SCHEMA)] if lost.height else []
                changed = changed.filter(pl.col(REASON).is_null())
            if changed.height:
                fields = [field for field in view.schema.fields if field.name in changed.columns]
                schema = pa.schema([*arrow_schema(fields), pa.field(ROW_KIND, pa.string())])
                made.append(to_arrow(changed.with_columns(_TO_ROW_KIND), schema))
        # One run per bucket, because all versions of a key are merged before they are stored.
        written = self.task.feed([pa.concat_tables(made)] if made else [], number)
        return WrittenChanges(written, counts, pa.concat_tables(refused))

    def _stored_versions(self, bucket: BucketId, events: pl.DataFrame) -> pl.DataFrame:
        """The latest stored version of each key of the events, including deletes."""
        columns = self.kernel.stored_columns(events)
        keys = events.select(self.kernel.order.key)
        found = [events.select(*columns, VALUE_KIND).clear()]
        if isinstance(self.task, UpsertTask):
            found += self.task.newest_versions(bucket, keys.unique(), columns)
        elif bucket in self.reads:
            found += newest_versions(self.reads[bucket], keys.unique(), columns)
        return pl.concat(found)


# -- the writer of changes -------------------------------------------------------------------------


def change_writer(transaction: Transaction, layout: Layout | None = None) -> FeedWriter:
    """The writer of changes on top of the state where a transaction began.

    `layout` is as in `FeedWriter.on`. Raises `UnsupportedError` for a table whose keys move between
    partitions.
    """
    view = transaction.view
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: its primary key does not contain the partition columns, and "
            "changes of a feed are looked up only in their own partition; write the rows with "
            "table.write"
        )
    # Changes of a key are in order even if the table does not merge.
    key = view.order.key or view.schema.primary_keys
    order, names = order_of(key, view.schema.fields, view.options), tuple(view.schema.names)
    orders: tuple[MergeOrder, ...] = (order,)
    if view.kind.has_key_index and view.comparison.has_producers:
        orders = tuple(replace(order, sequence=(name,)) for name in order.sequence)
    kernel: Kernel = OmittedValues(order, names)
    if OMITTED not in names:
        kernel = PreviousValues(order, orders, names, _columns_to_fill(view, orders))
    return FeedWriter.on(transaction, kernel, layout, counted=orders)


def _columns_to_fill(view: TableView, orders: Sequence[MergeOrder]) -> tuple[str, ...]:
    """The columns whose omitted values are those of the previous version.

    If a function aggregates the column, an omitted value is NULL, which leaves the column
    unchanged. Filling it in would count the previous value twice in a sum. But a function that
    treats NULL as a value needs the previous value, and a NOT NULL column gets it if repeating
    it has no effect.
    """
    schema, options = view.schema, view.options
    fixed = {*schema.primary_keys, *options.sequence_field}
    folded = [field for field in schema.fields if field.name not in fixed]
    default = DEFAULT_FUNCTION if options.merges_rows else None
    functions = function_names([field.name for field in folded], options, default)
    left = {
        field.name
        for field in folded
        if functions.get(field.name, "last_value") != "last_value"
        and (field.type.nullable or functions[field.name] not in _SAME_AGAIN)
    }
    if len(orders) > 1:  # the sequence fields identify the producer of a row
        left |= {*options.sequence_field}
    return tuple(name for name in schema.names if name not in left)


_SAME_AGAIN = ("last_non_null_value", "first_non_null_value", "max", "min")
"""Functions for which repeating a value has no effect."""
