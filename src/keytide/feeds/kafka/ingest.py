"""Ingestion of topics without Spark, by batch and for one or several tables.

A batch is read, decoded, written and committed together with the offsets that it reached, where the
next batch begins. Messages that cannot be applied are written to a dead-letter table first. The
request is checked before any broker is contacted.

Several tables are loaded with one feed for each table, in parallel in this process. Each table is
loaded as in a run of its own, with its offsets in its own snapshots. A table that fails does not
stop the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import side_by_side
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import extended_table
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.commit.change import Author
from keytide.errors import DataError, InvalidError, KeytideError, NotFoundError
from keytide.feeds.dead_letters import TOPIC_LETTER_COLUMNS, TopicDeadLetters
from keytide.feeds.decode import decode
from keytide.feeds.feed import (
    ORDINAL_COLUMN,
    BatchReport,
    Decoded,
    FeedRequest,
    FeedSpec,
    IngestReport,
)
from keytide.feeds.feed_writer import WrittenChanges, adapt_to_table, change_writer
from keytide.feeds.formats import envelope_of
from keytide.feeds.inference import Sample, feed_growth
from keytide.feeds.kafka.client import BATCH_BYTES_MAX, MESSAGES_SCHEMA, Client, Consumer, Topic
from keytide.feeds.kafka.offsets import Offsets, TopicOffsets, progress_of, stored_offsets
from keytide.feeds.kafka.start import IfLost, Start, check_topics, checked_if_lost, start_offsets
from keytide.feeds.kafka.topics import (
    KafkaAddress,
    key_columns,
    resolve_patterns,
    rows_with_keys,
    topics_by_table,
)
from keytide.feeds.omitted_values import (
    has_omitted_column,
    omitted_names,
    with_omitted_column,
)
from keytide.feeds.target import feed_columns, feed_target
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.writes import writing
from keytide.options import TableOptions
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store import open_store
from keytide.write.refusals import writable_view

# -- one batch of messages -------------------------------------------------------------------------


# The minimum number of messages that a thread decodes.
_PIECE_MESSAGES_MIN = 5_000


def changes_of(messages: pa.ChunkedArray, spec: FeedSpec, view: TableView) -> Decoded:
    """The changes in messages, decoded on all cores, in order."""
    cores = os.cpu_count() or 1
    size = max(_PIECE_MESSAGES_MIN, -(-len(messages) // cores))
    starts = range(0, len(messages), size)
    calls = [partial(decode, messages.slice(at, size), spec) for at in starts]

    # Combine pieces that start at the given messages, numbered as one batch.
    pieces = side_by_side(calls, cores)
    placed = list(zip(pieces, starts, strict=True))
    joined = Decoded(
        pa.concat_tables(_behind(piece.rows, ORDINAL_COLUMN, at) for piece, at in placed),
        pa.concat_tables(_behind(piece.rejected, "ordinal", at) for piece, at in placed),
        sum(piece.tombstones for piece in pieces),
        sum(piece.control for piece in pieces),
    )
    return adapt_to_table(joined, messages, view)


def letters_of(messages: pa.Table, decoded: Decoded, written: WrittenChanges) -> pa.Table:
    """The messages that cannot be applied, with their positions and the reasons."""
    refused = pa.concat_tables([decoded.rejected, written.unknown]).sort_by("ordinal")
    found = messages.take(refused["ordinal"])
    columns = [*(found[name] for name in ("topic", "partition", "offset")), refused["reason"]]
    names = [field.name for field in TOPIC_LETTER_COLUMNS]
    return pa.Table.from_arrays([*columns, found["key"], found["message"]], names)


def report_of(
    number: int, decoded: Decoded, written: WrittenChanges, started: float, snapshot_id: int | None
) -> BatchReport:
    """The report of a batch that began at a time of `time.perf_counter`."""
    counts, unknown = written.counts, written.unknown.num_rows
    rejected, skipped = decoded.rejected.num_rows + unknown, decoded.tombstones + decoded.control
    applied = counts.applied - unknown
    total = applied + counts.late + counts.duplicate + rejected + skipped
    seconds = time.perf_counter() - started
    return BatchReport(
        number, total, applied, counts.late, counts.duplicate, rejected, skipped, seconds,
        snapshot_id,
    )  # fmt: skip


def _behind(rows: pa.Table, name: str, count: int) -> pa.Table:
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.schema.field(name), pc.add(rows[name], count))


# -- the request -----------------------------------------------------------------------------------


BATCH_MESSAGES_MAX = 100_000
"""Default for the maximum number of messages in a batch."""


@dataclass(frozen=True)
class KafkaRequest:
    """The feed, and where it begins in which topics.

    `properties` are those of the client. `if_lost` says what to do about lost messages.
    """

    feed: FeedRequest
    address: KafkaAddress
    start: Start = field(default_factory=Start)
    properties: Mapping[str, str] = field(default_factory=dict)
    messages_max: int = BATCH_MESSAGES_MAX
    if_lost: IfLost = "fail"

    @classmethod
    def of(cls, feed: FeedRequest) -> KafkaRequest:
        """Parse the request. Raises `InvalidError` for an invalid one, or one for files."""
        if feed.checkpoint is not None:
            raise InvalidError(
                f"a checkpoint ({feed.checkpoint}) is only for files, because Kafka offsets are "
                "stored in the table; remove it"
            )
        if feed.max_files_per_batch is not None:
            raise InvalidError(
                f"a number of files per batch ({feed.max_files_per_batch}) is only for files; "
                "set the number of messages per batch instead"
            )
        limit = feed.max_messages_per_batch
        limit = BATCH_MESSAGES_MAX if limit is None else limit
        if limit < 1:
            raise InvalidError(f"{limit} messages per batch; expected 1 or more")
        return cls(
            feed,
            KafkaAddress.parse(feed.source),
            Start.parse(feed.starting_offsets or "earliest"),
            feed.consumer_properties,
            limit,
            checked_if_lost(feed.if_lost or "fail"),
        )


# -- ingestion into one table ----------------------------------------------------------------------


_LOG = logging.getLogger("keytide.kafka")
_WAIT_SECONDS = 1.0
# A run that ends when all is read gives up after this time without a response.
_SILENCE_SECONDS_MAX = 120
POLL_SECONDS = 30.0
"""Time between checks for new topics, new partitions, and recreated topics."""

OnBatch = Callable[[BatchReport], None]


def run_feed(
    request: KafkaRequest, on_batch: OnBatch | None = None, catalog: Catalog | None = None
) -> IngestReport:
    """Load a table from topics until everything at the start is read, or continuously.

    Exactly-once, because the offsets are part of the commits. Raises what `Client`, `start_offsets`
    and `feed_target` raise, `ConflictError` if another process loads the table from the same topics
    at the same time, and what writes raise. Committed batches stay complete.
    """
    catalog = catalog or Catalog(FolderWarehouse(open_store(request.feed.warehouse)))
    with Client(request.address.brokers, request.properties, BATCH_BYTES_MAX) as consumer:
        return feed_topics(request, catalog, consumer, on_batch)


def feed_topics(
    request: KafkaRequest,
    catalog: Catalog,
    consumer: Consumer,
    on_batch: OnBatch | None = None,
    stop: Event | None = None,
) -> IngestReport:
    """The same with the given consumer, or until `stop` is set. Raises as `run_feed`."""
    if request.address.has_patterns:
        request = replace(request, address=resolve_patterns(request.address, consumer.names()))
    run = _Run(request, catalog, consumer, on_batch, stop or Event())
    try:
        run.to_the_end()
    finally:
        if run.table is not None:
            BACKGROUND.wait(run.table.uri)
    assert run.table is not None
    return IngestReport(run.table.name, run.letters_name, tuple(run.reports))


class _Run:
    """One run of a feed: its position in its topics, and its results."""

    def __init__(
        self,
        request: KafkaRequest,
        catalog: Catalog,
        consumer: Consumer,
        on_batch: OnBatch | None,
        stop: Event,
    ) -> None:
        self.reports: list[BatchReport] = []
        self.table: StoredTable | None = None
        self._request, self._catalog, self._consumer = request, catalog, consumer
        self._on_batch, self._stop = on_batch, stop
        self._author = Author.fresh("keytide-kafka-")
        self._batch_id = 0
        self._told: Offsets = {}
        self._at: dict[str, TopicOffsets] = {}

    @property
    def letters_name(self) -> str:
        """The name of the dead-letter table."""
        assert self.table is not None
        return self._request.feed.dead_letter or f"{self.table.name}_dead_letters"

    def to_the_end(self) -> None:
        """Read and apply messages. See `run_feed`."""
        request, topics = self._request, self._begin()
        looked = heard = time.monotonic()
        while not self._stop.is_set() and (
            request.feed.continuous
            or any(
                self._at[name].next[partition] < end
                for name, topic in topics.items()
                for partition, end in topic.end.items()
            )
        ):
            messages = self._consumer.read(request.messages_max, _WAIT_SECONDS)
            now = time.monotonic()
            if messages.next:
                heard = now
            elif not request.feed.continuous and now - heard > _SILENCE_SECONDS_MAX:
                raise DataError(
                    f"{request.address} returned no message for {_SILENCE_SECONDS_MAX} "
                    f"seconds, although there are more; {self._batch_id} batches are committed. "
                    "Start again when the brokers respond"
                )

            # Advance the position, and apply messages, if any.
            moved = {
                name: replace(self._at[name], next={**self._at[name].next, **partitions})
                for name, partitions in messages.next.items()
            }
            self._at = {**self._at, **moved}
            if messages.rows.num_rows:
                self._apply(messages.rows)
            if request.feed.continuous and now - looked > POLL_SECONDS:
                self._look_again()
                looked = now
        table, _, _ = self._open(MESSAGES_SCHEMA.empty_table())
        if self._at != self._told:  # commit the position without rows
            pinned = table.pinned()
            author = replace(self._author, identifier=self._batch_id)
            with writing(pinned, writable_view(pinned), author) as transaction:
                transaction.progress = progress_of(self._told, self._at)
                transaction.commit()
            self._told = self._at
            self._batch_id += 1

    # -- location -------------------------------------------------------------------------------

    def _begin(self) -> Mapping[str, Topic]:
        """Start the consumer at the table's offsets."""
        request, topics = self._request, self._topics()
        try:
            self._told = stored_offsets(self._catalog.table(request.feed.table), topics)
        except NotFoundError:
            self._told = {}
        self._at = start_offsets(self._told, topics, request.start, request.if_lost)
        self._consumer.begin_at(self._at)
        return topics

    def _topics(self) -> Mapping[str, Topic]:
        address = self._request.address
        topics = self._consumer.topics(address.topics)
        check_topics(address.topics, topics, address.brokers)
        return topics

    def _look_again(self) -> None:
        """Continue with added partitions, and refuse recreated topics."""
        try:
            topics = self._topics()
        except DataError as error:  # a missing response is no reason to stop
            _LOG.warning("%s", error)
            return
        for name, topic in topics.items():
            if topic.id != self._at[name].id or topic.first.keys() - self._at[name].next.keys():
                self._at = start_offsets(self._at, topics, self._request.start, "fail")
                self._consumer.begin_at(self._at)
                return

    # -- processing -----------------------------------------------------------------------------

    def _open(self, messages: pa.Table) -> tuple[StoredTable, FeedSpec, TopicDeadLetters]:
        """The table, created from the first messages if it does not exist."""
        if self.table is None:
            feed = self._request.feed
            if not feed.primary_key:
                feed = replace(feed, primary_key=key_columns(messages["key"]))
            sample = self._documents(messages[:1_000], feed.primary_key)
            self.table, self._spec = feed_target(self._catalog, feed, sample.combine_chunks())
            self._letters = TopicDeadLetters(self._catalog, self.letters_name, self.table.name)
        return self.table, self._spec, self._letters

    def _documents(
        self, messages: pa.Table, key: Sequence[str], *, is_ordered: bool = False
    ) -> pa.ChunkedArray:
        if not envelope_of(self._request.feed.format).has_keys:
            return messages["message"]
        return rows_with_keys(messages, key, is_ordered=is_ordered)

    def _apply(self, messages: pa.Table) -> None:
        started = time.perf_counter()
        table, spec, letters = self._open(messages)
        author = replace(self._author, identifier=self._batch_id)
        pinned = table.pinned()
        is_ordered = bool(TableOptions.parse(pinned.schema.options).sequence_field)
        documents = self._documents(messages, spec.primary_key, is_ordered=is_ordered)
        if self._request.feed.merge_schema:
            brought = Sample(documents, spec.format).needed_columns(spec)
            pinned = extended_table(pinned, partial(feed_growth, needed=brought), author=author)
            self._spec = spec = replace(spec, columns=feed_columns(pinned.schema.fields))
        decoded = changes_of(documents, spec, writable_view(pinned))
        if has_omitted_column(writable_view(pinned)):
            pinned = with_omitted_column(pinned, omitted_names(decoded.rows), author)
        with writing(pinned, writable_view(pinned), author) as transaction:
            transaction.progress = progress_of(self._told, self._at)
            parts: list[WrittenChanges] = []

            def write() -> None:
                # Write the changes as part of a transaction. Raises what `FeedWriter.write` raises.
                writer = change_writer(transaction).here(transaction)
                written = writer.write(decoded.rows)
                transaction.collect(written.written)
                parts[:] = [written]
                # This happens before the commit. If messages are read again after a crash, storing
                # them again has no effect.
                letters.keep(letters_of(messages, decoded, parts[0]))

            write()
            snapshot_id = transaction.commit(write).snapshot_id
        self._told = self._at
        report = report_of(self._batch_id, decoded, parts[0], started, snapshot_id)
        self.reports.append(report)
        if self._on_batch is not None:
            self._on_batch(report)
        self._batch_id += 1


# -- ingestion into several tables -----------------------------------------------------------------


# The number of parallel feeds if each feed ends.
_BESIDE_MAX = 4
_BATCH_BYTES_MIN = 1 << 20
# The maximum number of continuous feeds. Each needs a thread and a consumer.
_TABLES_MAX = 1_000

Connect = Callable[[int], Consumer]
"""Creates a consumer with a maximum batch size in bytes."""


@dataclass(frozen=True)
class TablesReport:
    """The result of loading several tables, and the error of each one that failed."""

    tables: tuple[IngestReport, ...]
    failed: Mapping[str, KeytideError]


@dataclass(frozen=True)
class IngestListeners:
    """The callbacks for batches and for failed tables. They can be called in any thread."""

    batch: Callable[[str, BatchReport], None] | None = None
    failure: Callable[[str, KeytideError], None] | None = None


def run_feeds(
    request: KafkaRequest, catalog: Catalog | None = None, listeners: IngestListeners | None = None
) -> TablesReport:
    """Load the tables of a template, each from its topics, until all is read or continuously.

    A continuous run also loads topics that are created later, unless they belong to a table that is
    already being loaded. Those wait for the next run. Raises `InvalidError` and `NotFoundError` for
    a template and topics that result in no tables, and what `Client` raises. Errors of a single
    feed are reported, and do not stop others.
    """
    catalog = catalog or Catalog(FolderWarehouse(open_store(request.feed.warehouse)))
    connect = partial(Client, request.address.brokers, request.properties)
    return feed_tables(request, catalog, connect, listeners or IngestListeners())


def feed_tables(
    request: KafkaRequest, catalog: Catalog, connect: Connect, listeners: IngestListeners
) -> TablesReport:
    """The same with the given consumers. Raises as `run_feeds`."""
    if request.feed.columns is not None:
        raise InvalidError(
            f"tables {request.feed.table!r}: a schema applies to one table only; remove it, or "
            "create the tables first"
        )
    with connect(_BATCH_BYTES_MIN) as broker:
        tables = _tables(request, broker)
        beside = len(tables) if request.feed.continuous else min(_BESIDE_MAX, len(tables))
        feeds = _Feeds(request, catalog, connect, listeners, BATCH_BYTES_MAX // beside)
        with ThreadPoolExecutor(_TABLES_MAX if request.feed.continuous else beside) as pool:
            try:
                feeds.begin(tables, pool)
                while feeds.wait_for_feeds():
                    if request.feed.continuous:
                        feeds.begin(_tables_now(request, broker), pool)
            except BaseException:
                feeds.stop.set()  # the pool waits for running feeds
                raise
    return feeds.report()


def _tables(request: KafkaRequest, broker: Consumer) -> Mapping[str, tuple[str, ...]]:
    """The topics of each table."""
    address = request.address
    if address.has_patterns:
        address = resolve_patterns(address, broker.names())
    request.start.check_topics(address.topics)
    return topics_by_table(request.feed.table, address.topics)


def _tables_now(request: KafkaRequest, broker: Consumer) -> Mapping[str, tuple[str, ...]]:
    """The same while feeds are running: a missing response is no reason to stop."""
    try:
        return _tables(request, broker)
    except KeytideError as error:
        _LOG.warning("%s", error)
        return {}


@dataclass
class _Feeds:
    """The feeds of one run, by table name."""

    request: KafkaRequest
    catalog: Catalog
    connect: Connect
    listeners: IngestListeners
    batch_bytes: int
    stop: Event = field(default_factory=Event)
    running: dict[str, Future[IngestReport | KeytideError]] = field(default_factory=dict)

    def begin(self, tables: Mapping[str, tuple[str, ...]], pool: ThreadPoolExecutor) -> None:
        """Start the feeds of tables that have none yet."""
        for table, topics in tables.items():
            if table not in self.running:
                self.running[table] = pool.submit(self._feed, table, topics)

    def wait_for_feeds(self) -> bool:
        """Wait for a while. Returns whether some feeds have not ended. Raises unexpected errors."""
        found = wait(self.running.values(), POLL_SECONDS, FIRST_EXCEPTION)
        for future in found.done:
            future.result()
        return bool(found.not_done)

    def report(self) -> TablesReport:
        """The results of all feeds, in the order of their start."""
        found = {table: future.result() for table, future in self.running.items()}
        done = tuple(each for each in found.values() if isinstance(each, IngestReport))
        failed = {name: each for name, each in found.items() if isinstance(each, KeytideError)}
        return TablesReport(done, failed)

    def _feed(self, table: str, topics: tuple[str, ...]) -> IngestReport | KeytideError:
        request = replace(
            self.request,
            feed=replace(self.request.feed, table=table),
            address=KafkaAddress(self.request.address.brokers, topics),
            start=self.request.start.of(topics),
        )
        try:
            with self.connect(max(_BATCH_BYTES_MIN, self.batch_bytes)) as consumer:
                listeners = self.listeners.batch
                on_batch = None if listeners is None else partial(listeners, table)
                return feed_topics(request, self.catalog, consumer, on_batch, self.stop)
        except KeytideError as error:
            if self.listeners.failure is not None:
                self.listeners.failure(table, error)
            return error
