"""Ingestion of change feeds into tables, as a Spark Structured Streaming job.

Each micro-batch is decoded on executors, shuffled so that one task gets all changes of a bucket,
counted, written, and committed once by the driver. For a small batch, the driver does all of it.
The commit contains the stream's id and the batch number, so a batch that Spark repeats changes
nothing. Messages that cannot be applied are written to a dead-letter table first, with the reason
for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.catalogs.catalog import Catalog, NewTable
from keytide.catalogs.local_writes import extended_table
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.feeds.decode import decode
from keytide.feeds.feed import (
    OMITTED,
    UNAVAILABLE_COLUMN,
    BatchReport,
    FeedRequest,
    FeedSpec,
    IngestReport,
)
from keytide.feeds.feed_writer import (
    ChangeCounts,
    FeedWriter,
    WrittenChanges,
    adapt_to_table,
    change_writer,
)
from keytide.feeds.inference import Sample, combined_columns, feed_growth
from keytide.feeds.omitted_values import has_omitted_column, with_omitted_column
from keytide.feeds.target import feed_columns, feed_target
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.bucket import bucket_ids
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.writes import writing
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable, StoredTable
from keytide.spark.capacity import WorkPlace, bytes_of_rows, work_place
from keytide.spark.columns import (
    batch_schema,
    column,
    spark_batches,
    spark_schema,
    tasks_for_rows,
    writers_for_rows,
)
from keytide.spark.dataframe_writes import append
from keytide.spark.error_translation import file_errors, on_driver
from keytide.spark.feed_files import (
    BLOCK,
    BLOCKS_SCHEMA,
    MESSAGE,
    blocks_in_order,
    blocks_of,
    lines_of,
    sample,
)
from keytide.spark.internals import is_connect, refuse_other_servers
from keytide.spark.runner import Executors, SizedRunner
from keytide.store import open_store
from keytide.types import BYTES, STRING, AtomicType, Field, parse_sql_type
from keytide.write.layout import Layout
from keytide.write.refusals import writable_view

# -- schema evolution ------------------------------------------------------------------------------


_FOUND = pa.schema([("name", pa.string()), ("type", pa.string())])


def add_needed_columns(
    table: PinnedTable, messages: DataFrame, spec: FeedSpec, author: Author
) -> PinnedTable:
    """Add the columns that the messages of a batch need. `spec` describes the feed before that.

    Raises what `extended_table` raises.
    """
    brought = combined_columns(_needed_columns(table, messages.select(MESSAGE), spec))
    return extended_table(table, partial(feed_growth, needed=brought), author=author)


def _needed_columns(table: PinnedTable, messages: DataFrame, spec: FeedSpec) -> list[Field]:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = Sample(batch.column(MESSAGE), spec.format).needed_columns(spec)
            columns = [[f.name for f in found], [f.type.sql() for f in found]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, pa.string()) for c in columns], schema=_FOUND
            )

    limit = writable_view(table).options.driver_work_bytes_max
    if work_place(messages.sparkSession, limit, bytes_of_rows(messages)).is_driver:
        with on_driver():
            batches = messages.toArrow().to_batches()
        rows = pa.Table.from_batches(look(batches), _FOUND).to_pylist()
    else:
        found = messages.mapInArrow(look, spark_schema(_FOUND)).distinct().collect()
        rows = sorted((row.asDict() for row in found), key=lambda row: str(row["name"]))
    return [Field(-1, row["name"], parse_sql_type(row["type"])) for row in rows]


# -- dead letters ----------------------------------------------------------------------------------


_COLUMNS = (
    Field(-1, "digest", STRING),
    Field(-1, "reason", STRING),
    Field(-1, "raw", BYTES),
    Field(-1, "batch_id", AtomicType("BIGINT")),
)
_KEY = ["digest"]


class DeadLetters:
    r"""The dead letters of one table, keyed by digest: a message delivered twice is stored once.

    `raw` is BYTES and contains the message unchanged. In a table where it is STRING, a message that
    is not valid UTF-8 is stored as `\x` and its hexadecimal digits.
    """

    def __init__(self, catalog: Catalog, name: str, subject: str) -> None:
        """The dead letters of the table `subject`. The table `name` is created on the first one.

        Raises `InvalidError` when the table exists and has the wrong definition.
        """
        self._catalog = catalog
        self._name = name
        self._subject = subject
        try:
            _check(catalog.table(name))
        except NotFoundError:
            return

    def keep(self, letters: DataFrame, batch_id: int) -> None:
        """Store messages (`raw` as bytes, `reason`) once, however often a batch is repeated.

        The key, a digest of the message, removes duplicates. The batch's own commit identifier is
        not used, because a repeated batch can refuse other messages than the first attempt did.
        Raises what `append` raises.
        """
        table = self._table()
        raw = shown = F.col("raw")
        if table.schema.field("raw").type.with_nullable(True) == STRING:
            text = F.try_validate_utf8(raw.cast("string"))
            shown = F.coalesce(text, F.concat(F.lit("\\x"), F.lower(F.hex(raw))))
        rows = letters.select(
            F.sha2(raw, 256).alias("digest"),
            F.col("reason"),
            shown.alias("raw"),
            F.lit(batch_id).cast("long").alias("batch_id"),
        )
        append(table, rows, Author.fresh())

    def _table(self) -> StoredTable:
        try:
            return self._catalog.table(self._name)
        except NotFoundError:
            comment = f"messages that could not be applied to {self._subject}"
            wanted = NewTable(_COLUMNS, _KEY, comment=comment)
            return self._catalog.create_table(self._name, wanted, exists_ok=True)


def _check(table: StoredTable) -> None:
    found = {f.name: f.type.with_nullable(True) for f in table.schema.fields}
    wanted = {f.name: f.type for f in _COLUMNS}
    if found | {"raw": BYTES} == wanted and found["raw"] in (BYTES, STRING):
        return
    raise InvalidError(
        f"table {table.name} cannot store dead letters: it has the columns "
        f"{', '.join((f'{n} {t.sql()}' for n, t in found.items()))}, expected "
        f"{', '.join((f'{n} {t.sql()}' for n, t in wanted.items()))}; give a new name, and the "
        "table is created"
    )


# -- the job ---------------------------------------------------------------------------------------


_BUCKET, _RAW, _REASON, _SKIPPED = map(scratch, ("bucket", "raw", "reason", "skipped"))


def run_feed(
    request: FeedRequest,
    spark: SparkSession,
    on_batch: Callable[[BatchReport], None] | None = None,
    catalog: Catalog | None = None,
) -> IngestReport:
    """Load the files of a request, as `Lake.ingest` describes.

    Delivery is exactly-once: with the same checkpoint, each file is applied once, and repeating an
    interrupted batch has no effect on what it had already committed. `on_batch` is called on the
    driver. Raises `InvalidError` for a feed or definition with contradictions, `NotFoundError` when
    there is no file, `DataError` for a file that Spark cannot read, such as a truncated one,
    `UnsupportedError` on Spark Connect, and what the batches raise.
    """
    refuse_other_servers(
        spark,
        f"table {request.table}: ingest of files",
        "streams with a Python function",
        "Apply the events with Lake.auto_cdc, or read them from a Kafka topic",
    )
    if is_connect(spark):
        raise UnsupportedError(
            f"table {request.table}: ingest of files is not supported on Spark Connect, whose "
            "server runs the function of each batch in a process of its own; use a classic "
            "session, or apply the events with Lake.auto_cdc"
        )
    catalog = catalog or Catalog(FolderWarehouse(open_store(request.warehouse)))
    target, spec = feed_target(catalog, request, sample(spark, request.source, request.table))
    letters = request.dead_letter or f"{target.name}_dead_letters"
    dead_letters = DeadLetters(catalog, letters, target.name)
    run = _Ingestion(target, spec, dead_letters, on_batch, request.merge_schema)
    checkpoint = request.checkpoint or _default_checkpoint(catalog, target)
    writer = lines_of(spark, request).writeStream.foreachBatch(run.apply)
    writer = writer.option("checkpointLocation", checkpoint)
    if not request.continuous:
        writer = writer.trigger(availableNow=True)
    try:
        with file_errors(request.source, target.name):
            writer.start().awaitTermination()
    finally:
        BACKGROUND.wait(target.uri)
    return IngestReport(target.name, letters, tuple(run.reports))


class _Ingestion:
    """One stream into one table. Its methods run on the driver."""

    def __init__(
        self,
        table: StoredTable,
        spec: FeedSpec,
        dead_letters: DeadLetters,
        on_batch: Callable[[BatchReport], None] | None,
        merges_schema: bool,
    ) -> None:
        self.reports: list[BatchReport] = []
        self._merges_schema = merges_schema
        self._table = table
        self._spec = spec
        self._dead_letters = dead_letters
        self._on_batch = on_batch

    def apply(self, messages: DataFrame, batch_id: int) -> None:
        """Apply one micro-batch. Repeating the call for the same batch has no effect."""
        query = messages.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        author = Author(f"keytide-ingest-{query}", batch_id)
        table = self._table.pinned()
        if self._merges_schema:
            table = add_needed_columns(table, messages, self._spec, author)
            self._spec = replace(self._spec, columns=feed_columns(table.schema.fields))
        view, runner = writable_view(table), SizedRunner(messages.sparkSession)
        with writing(table, view, author, runner) as transaction:
            if transaction.own_commit is not None:
                return
            found = self._applied(transaction, messages)
        if isinstance(found, BatchReport):
            self.reports.append(found)
            if self._on_batch is not None:
                self._on_batch(found)
            return
        # The table had no place to store which values are omitted.
        with_omitted_column(table, found)
        self.apply(messages, batch_id)

    def _applied(self, transaction: Transaction, messages: DataFrame) -> BatchReport | list[str]:
        """Apply a batch. Returns the omitted columns if the table cannot store them yet."""
        started = time.perf_counter()
        spread = _layout(transaction, messages).spread
        limit = transaction.view.options.driver_work_bytes_max
        place = work_place(messages.sparkSession, limit, bytes_of_rows(messages))
        decode = _decoded_here if place.is_driver else _decoded_on_executors
        decoded = decode(messages, self._spec, transaction.view, spread)
        blocks: tuple[int, ...] = ()
        parts: list[WrittenChanges] = []
        rejected = 0

        def write() -> None:
            nonlocal rejected
            parts.clear()
            self._write(transaction, decoded, blocks, place, parts.append)
            # This happens before the commit. If the batch is repeated after a crash, storing them
            # again has no effect.
            rejected = self._keep_rejected(decoded, parts, transaction.author.identifier)

        try:
            lacking = _omitted_names(decoded, transaction.view)
            if lacking:
                transaction.abort()
                return lacking
            blocks = blocks_in_order(decoded)
            write()
            snapshot_id = transaction.commit(write).snapshot_id
            skipped = int(decoded.agg(F.coalesce(F.sum(_SKIPPED), F.lit(0))).collect()[0][0])
        finally:
            decoded.unpersist()
        counts = sum((part.counts for part in parts), ChangeCounts())
        applied = counts.applied - sum(part.unknown.num_rows for part in parts)
        total = applied + counts.late + counts.duplicate + rejected + skipped
        return BatchReport(
            transaction.author.identifier,
            total,
            applied,
            counts.late,
            counts.duplicate,
            rejected,
            skipped,
            time.perf_counter() - started,
            snapshot_id,
        )

    def _write(
        self,
        transaction: Transaction,
        decoded: DataFrame,
        blocks: tuple[int, ...],
        place: WorkPlace,
        keep: Callable[[WrittenChanges], None],
    ) -> None:
        """Write the rows, with all changes of a bucket in one task."""
        rows = decoded.where(F.col(_BUCKET).isNotNull())
        names = map(column, [*self._spec.rows_schema.names, BLOCK])
        layout = _layout(transaction, decoded)
        task = _ChangeTask(change_writer(transaction, layout), self._spec.rows_schema, blocks)

        def take(part: WrittenChanges) -> None:
            transaction.collect(part.written)
            keep(part)

        if place.is_driver:
            with on_driver():
                found = rows.select(*names).toArrow()
            written = task.feed([found] if found.num_rows else [], 0)
            if written is not None:
                take(written)
        else:
            # Shuffle the rows so that all rows of a bucket are in one task.
            keys = [column(name) for name in transaction.view.schema.partition_keys]
            count = tasks_for_rows(rows)
            if not keys:
                count = min(count, layout.spread)
            shuffled = rows.repartition(count, *keys, column(_BUCKET)).select(*names)
            Executors().feed(task, shuffled, take)

    def _keep_rejected(
        self, decoded: DataFrame, written: Sequence[WrittenChanges], batch_id: int
    ) -> int:
        """Store rejected messages before the batch is committed, so that none is lost."""
        names = ["raw", "reason"]
        letters = decoded.where(F.col(_REASON).isNotNull()).select(_RAW, _REASON).toDF(*names)
        unknown = [part.unknown for part in written if part.unknown.num_rows]
        if unknown:
            more = pa.concat_tables(unknown).select(names)
            letters = letters.unionAll(decoded.sparkSession.createDataFrame(more))
        rejected = int(letters.count())
        if rejected:
            self._dead_letters.keep(letters, batch_id)
        return rejected


# -- executors -------------------------------------------------------------------------------------


def _decoded_on_executors(
    messages: DataFrame, spec: FeedSpec, view: TableView, spread: int
) -> DataFrame:
    """Messages as rows with their bucket. A line with a reason is a rejected message.

    The result is cached. The caller must release it.
    """
    schema = _decoded_schema(spec)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _decode(batches, spec, view, spread)

    return messages.mapInArrow(read, spark_schema(schema)).persist()


def _decode(
    batches: Iterable[pa.RecordBatch], spec: FeedSpec, view: TableView, spread: int
) -> Iterator[pa.RecordBatch]:
    schema, ordinal = _decoded_schema(spec), 0
    for batch in batches:
        blocks = _padded(blocks_of(batch), schema)
        for table in (blocks, *_decode_batch(batch, spec, view, spread, ordinal)):
            yield from spark_batches(from_arrow(table), schema)
        ordinal += batch.num_rows


def _decode_batch(
    batch: pa.RecordBatch, spec: FeedSpec, view: TableView, spread: int, ordinal: int
) -> Iterator[pa.Table]:
    messages = batch.column(MESSAGE)
    decoded = adapt_to_table(decode(messages, spec), messages, view)
    rows, rejected, tombstones, control = decoded
    at = rows.column_names.index("_ordinal")
    places = rows.column("_ordinal")
    numbers = pc.add(places, pa.scalar(ordinal, pa.int64()))
    rows = rows.set_column(at, "_ordinal", numbers)
    rows = rows.append_column(BLOCK, batch.column(BLOCK).take(places))
    schema = _decoded_schema(spec)
    columns = [rows.column(f.name).combine_chunks() for f in view.bucket_fields]
    types = [f.type for f in view.bucket_fields]
    buckets = pa.array(bucket_ids(columns, types, spread, view.bucket_function), pa.int32())
    yield _padded(rows.append_column(_BUCKET, buckets), schema)
    letters = {_RAW: rejected.column("raw"), _REASON: rejected.column("reason")}
    yield _padded(pa.table(letters), schema)
    if tombstones + control:
        yield _padded(pa.table({_SKIPPED: pa.array([tombstones + control], pa.int64())}), schema)


def _decoded_schema(spec: FeedSpec) -> pa.Schema:
    extra = [
        pa.field(_BUCKET, pa.int32()),
        pa.field(_RAW, pa.binary()),
        pa.field(_REASON, pa.string()),
        pa.field(_SKIPPED, pa.int64()),
        *BLOCKS_SCHEMA,
    ]
    return pa.schema([*spec.rows_schema, *extra])


def _padded(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table.column(f.name).cast(f.type)
        if f.name in table.column_names
        else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class _ChangeTask:
    """Writes the changes of the buckets that reach one task.

    `blocks` are the pieces of files that the messages come from, in the order of the feed.
    """

    writer: FeedWriter
    schema: pa.Schema
    blocks: tuple[int, ...]

    def feed(self, rows: Iterable[pa.Table], number: int) -> WrittenChanges | None:
        """Write all rows together, in the order of the messages. None if there are no rows.

        Raises what `FeedWriter.write` raises.
        """
        pieces = list(rows)
        if not pieces:
            return None
        table = self._in_order(pa.concat_tables(pieces)).cast(batch_schema(self.schema))
        return self.writer.write(to_arrow(from_arrow(table), self.schema))

    def _in_order(self, rows: pa.Table) -> pa.Table:
        """The rows in the order of the feed, which also numbers the messages."""
        blocks = pa.array(self.blocks, pa.int64())
        places = pc.index_in(rows.column(BLOCK), value_set=blocks).cast(pa.int64())
        at = rows.column_names.index("_ordinal")
        # A piece of a file has fewer than 2^40 messages.
        numbers = pc.add(pc.shift_left(places, 40), rows.column("_ordinal"))
        ordered = rows.set_column(at, "_ordinal", numbers).drop_columns(BLOCK)
        return ordered.sort_by("_ordinal")


# -- driver ----------------------------------------------------------------------------------------


def _decoded_here(messages: DataFrame, spec: FeedSpec, view: TableView, spread: int) -> DataFrame:
    """Like `_decoded_on_executors`, but the messages are collected and decoded in the driver."""
    schema = batch_schema(_decoded_schema(spec))
    with on_driver():
        lines = messages.toArrow().to_batches()
    # Empty batches are removed, because pyspark's createDataFrame loses the rows after one.
    decoded = [batch for batch in _decode(lines, spec, view, spread) if batch.num_rows]
    rows = pa.Table.from_batches(decoded, schema)
    return messages.sparkSession.createDataFrame(rows, spark_schema(schema))


def _layout(transaction: Transaction, rows: DataFrame) -> Layout:
    return transaction.task().layout.for_tasks(writers_for_rows(rows))


def _omitted_names(decoded: DataFrame, view: TableView) -> list[str]:
    """The columns that some changes omit, if the table could store that, but does not yet."""
    if OMITTED in view.schema.by_name or not has_omitted_column(view):
        return []
    names = decoded.select(F.explode(UNAVAILABLE_COLUMN).alias(_REASON)).distinct().collect()
    return sorted(str(row[0]) for row in names)


# -- helpers -----------------------------------------------------------------------------------


def _default_checkpoint(catalog: Catalog, table: StoredTable) -> str:
    folder = catalog.warehouse.folder
    if not folder or table.metadata.store.local_path("schema") is None:
        raise InvalidError(
            f"{catalog.uri}: set a checkpoint folder that Spark can write to; there is no "
            "default for object stores and catalog services"
        )
    return f"{folder}/_checkpoints/{table.name}"
