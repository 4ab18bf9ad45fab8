"""`Lake.auto_cdc` on Spark: a DataFrame in one commit, or a stream batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.catalogs.catalog import Catalog
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.errors import InvalidError
from keytide.feeds.auto_cdc import (
    EventTask,
    Truncation,
    TruncationLookup,
    combined_result,
    commit_from_state,
    recorded_truncation,
    retry_after_truncation,
    truncate_up_to,
)
from keytide.feeds.feed_writer import FeedWriter
from keytide.feeds.flow import (
    Flow,
    FlowRequest,
    flow_target,
    refuse_stream_settings,
    source_condition,
    without_place,
)
from keytide.snapshot.stored_table import StoredTable
from keytide.spark.capacity import bytes_of_rows, work_place
from keytide.spark.columns import (
    arrow_schema_of,
    by_bucket,
    column,
    order_by_bucket,
    spark_condition,
    spark_schema,
    writers_for_rows,
)
from keytide.spark.dataframe_writes import add_missing_columns, append, author_in_stream, grow
from keytide.spark.error_translation import check_python, on_driver
from keytide.spark.internals import is_connect, refuse_other_servers, runs_batch_function
from keytide.spark.runner import Executors, SizedRunner
from keytide.types import arrow_schema


@dataclass(frozen=True)
class FlowStream:
    """Settings of the query that a streaming source starts. None means Spark's default."""

    name: str | None = None
    checkpoint: str | None = None
    trigger: Mapping[str, Any] = field(default_factory=dict)


def apply_events(
    catalog: Catalog,
    request: FlowRequest,
    source: DataFrame,
    stream: FlowStream,
    author: Author | None = None,
) -> Any:
    """Apply the events of a DataFrame to the target, as `Lake.auto_cdc` describes.

    Returns a `WriteResult` or, for a streaming DataFrame, the query that was started.
    """
    check_python(source.sparkSession)
    flow = Flow.of(request, arrow_schema_of(source.schema, request.target))
    for condition in (request.deletes, request.truncates):
        _condition(source, condition, flow)  # refused before a table is created
    if source.isStreaming:
        refuse_other_servers(
            source.sparkSession,
            f"table {request.target}: auto_cdc of a stream",
            "streams with a Python function",
            "Call Lake.auto_cdc with the events of each batch",
        )
    apply = _Events(flow_target(catalog, flow), flow)
    if not source.isStreaming:
        refuse_stream_settings(stream.name, stream.checkpoint, stream.trigger or None)
        return apply.write(source, author)
    if author is not None:
        raise InvalidError(
            "Lake.auto_cdc: commit_user and commit_identifier identify one commit, but each "
            "batch of a streaming DataFrame is a separate commit; remove them"
        )
    writer = source.writeStream.foreachBatch(apply)
    if stream.checkpoint is not None:
        writer = writer.option("checkpointLocation", stream.checkpoint)
    if stream.name is not None:
        writer = writer.queryName(stream.name)
    if stream.trigger:
        writer = writer.trigger(**stream.trigger)
    return writer.start()


@dataclass(frozen=True)
class _Events:
    """The function for `foreachBatch`.

    It can be pickled, because Spark Connect runs it elsewhere.
    """

    table: StoredTable
    flow: Flow

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Apply a micro-batch. Repeating it has no effect."""
        author = None
        if is_connect(batch) and runs_batch_function():
            author = Author.fresh("auto-cdc-")  # not known for which query it runs
        self.write(batch, author)

    def write(self, events: DataFrame, author: Author | None) -> WriteResult:
        """Write events in one atomic commit, after a commit that truncates if any event does."""
        events, places = _split_truncates(events, self.flow)
        rows = _rows(events, self.flow)
        if not places.num_rows:
            return self._apply(rows, author)
        truncated = truncate_up_to(self.table, self.flow, places)
        return combined_result(truncated, self._apply(rows, author))

    def _apply(self, rows: DataFrame, author: Author | None) -> WriteResult:
        if self.flow.reads_first:
            author = author or author_in_stream(rows, self.table.uri)
            if self.flow.request.merge_schema:
                grow(self.table.pinned(), rows.schema, author)
            write = partial(self._write, rows)
            return commit_from_state(self.table, write, author, SizedRunner(rows.sparkSession))

        def append_rest(truncation_of: TruncationLookup) -> WriteResult:
            def fitting(transaction: Transaction, given: DataFrame) -> DataFrame:
                return _remaining_rows(given, truncation_of(transaction))

            table, given = self.table, rows
            if self.flow.request.merge_schema:
                table, given = add_missing_columns(table, rows, author)
            return append(table, given, author, fitting)

        return retry_after_truncation(self.table, append_rest)

    def _write(self, rows: DataFrame, transaction: Transaction) -> None:
        writer = FeedWriter.on(transaction, self.flow.kernel(transaction.view))
        limit = transaction.view.options.driver_work_bytes_max
        events = rows
        if not self.flow.keeps_history:
            events = _remaining_rows(rows, recorded_truncation(transaction, self.table))
        if work_place(rows.sparkSession, limit, bytes_of_rows(rows)).is_driver:
            with on_driver():
                held = events.toArrow()
            task = EventTask.of(writer.here(transaction), self.flow)
            transaction.collect(task.feed([held], 0))
        else:
            layout = writer.task.layout.for_tasks(writers_for_rows(rows))
            order = order_by_bucket(events)
            placed = replace(writer.task, layout=layout, order=order)
            task = EventTask.of(replace(writer, task=placed), self.flow)
            shuffled = by_bucket(events, transaction.view, layout.spread)
            Executors().feed(task, shuffled, transaction.collect)


def _split_truncates(events: DataFrame, flow: Flow) -> tuple[DataFrame, pa.Table]:
    """Separate truncations as for events in Arrow, but return only the last place in the order.

    Runs a job if any event truncates.
    """
    truncates = _condition(events, flow.request.truncates, flow)
    order = list(flow.request.sequence_by)
    if truncates is None:
        return events, arrow_schema_of(events.schema, flow.request.target).empty_table()
    found = events.where(truncates).select(*map(column, order))
    # An event without a place is sorted first, because it is refused.
    places_first = [column(name).isNotNull() for name in order]
    last = found.orderBy(*places_first, *(column(name).desc() for name in order)).limit(1)
    with on_driver():
        places = last.toArrow()
    if any(each.null_count for each in places.columns):
        raise without_place(flow)
    return events.where(~F.coalesce(truncates, F.lit(False))), places


def _remaining_rows(rows: DataFrame, truncation: Truncation) -> DataFrame:
    """The rows that a truncation does not remove."""
    predicate = truncation.in_microseconds.remaining_filter
    if predicate is None:
        return rows
    fields = truncation.in_microseconds.fields
    return rows.where(spark_condition(predicate, fields, spark_schema(arrow_schema(fields))))


def _rows(events: DataFrame, flow: Flow) -> DataFrame:
    """The events as rows of the flow's target, as `rows_of_events` creates them for Arrow."""
    given = column(ROW_KIND) if ROW_KIND in events.columns else F.lit("+I")
    # NULL is kept, so that the tasks refuse it.
    events = events.where(F.coalesce(F.upper(given) != "-U", F.lit(True)))
    by = zip(flow.starts, flow.request.sequence_by, strict=True) if flow.keeps_history else ()
    deletes = _condition(events, flow.request.deletes, flow)
    if deletes is None:
        kind = given
    else:
        is_kind = F.coalesce(F.upper(given).isin([kind.short for kind in RowKind]), F.lit(False))
        kind = F.when(~is_kind, given).when(deletes, F.lit("-D")).otherwise(F.lit("+I"))
    return events.select(
        *map(column, (*flow.request.keys, *flow.names)),
        *(column(name).alias(start) for start, name in by),
        kind.alias(ROW_KIND),
    )


def _condition(events: DataFrame, given: Any, flow: Flow) -> Column | None:
    """A condition for deletes or truncates, in the types of the source."""
    if given is None or isinstance(given, Column) or type(given).__name__ == "Column":
        return given
    return spark_condition(*source_condition(given, flow), events.schema)
