"""Loads topics into tables without Spark.

A batch is read, decoded, written and committed together with the offsets that it reached, where the
next batch begins. Messages that cannot be applied are written to a dead-letter table first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event

import pyarrow as pa

from keytide.catalogs.catalog import Catalog
from keytide.catalogs.growing import grown
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.commit.author import Author
from keytide.errors import DataError, NotFoundError
from keytide.feeds.batch import WrittenChanges
from keytide.feeds.feed import FeedSpec
from keytide.feeds.formats import envelope_of
from keytide.feeds.infer import Sample
from keytide.feeds.kafka.batch import changes_of, letters_of, report_of, write_changes
from keytide.feeds.kafka.beginning import beginning, check_topics
from keytide.feeds.kafka.broker import MESSAGES_SCHEMA, Consumer, Messages, Topic
from keytide.feeds.kafka.client import BATCH_BYTES_MAX, Client
from keytide.feeds.kafka.dealing import resolved
from keytide.feeds.kafka.documents import rows_with_keys
from keytide.feeds.kafka.keys import key_columns
from keytide.feeds.kafka.offsets import Offsets, TopicOffsets, offsets_told, progress_of
from keytide.feeds.kafka.request import KafkaRequest
from keytide.feeds.letters import PlacedLetters
from keytide.feeds.omitting import names_omitted, stores_omitted, storing_omitted
from keytide.feeds.outgrown import feed_growth
from keytide.feeds.report import BatchReport, IngestReport
from keytide.feeds.target import feed_columns, feed_target
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.maintenance.upkeep.writing import writing
from keytide.options import TableOptions
from keytide.snapshot.stored import StoredTable
from keytide.store import open_store
from keytide.write.writable import writable_view

__all__ = ["SECONDS_BETWEEN_LOOKS", "feed_topics", "run_feed"]

_LOG = logging.getLogger("keytide.kafka")
_WAIT_SECONDS = 1.0
# A run that ends when all is read gives up after this time without a response.
_SILENCE_SECONDS_MAX = 120
SECONDS_BETWEEN_LOOKS = 30.0
"""Time between checks for new topics, new partitions, and recreated topics."""

OnBatch = Callable[[BatchReport], None]


def run_feed(
    request: KafkaRequest, on_batch: OnBatch | None = None, catalog: Catalog | None = None
) -> IngestReport:
    """Load a table from topics until everything at the start is read, or continuously.

    Exactly-once, because the offsets are part of the commits. Raises what `Client`, `beginning` and
    `feed_target` raise, `ConflictError` if another process loads the table from the same topics at
    the same time, and what writes raise. Committed batches stay complete.
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
        request = replace(request, address=resolved(request.address, consumer.names()))
    run = _Run(request, catalog, consumer, on_batch, stop or Event())
    try:
        run.to_the_end()
    finally:
        if run.table is not None:
            BEHIND.wait(run.table.uri)
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
        topics = self._begin()
        ends = {name: topic.end for name, topic in topics.items()}
        looked = heard = time.monotonic()
        while not self._stop.is_set() and not self._has_ended(ends):
            messages = self._consumer.read(self._request.messages_max, _WAIT_SECONDS)
            now = time.monotonic()
            if messages.next:
                heard = now
            elif not self._request.feed.continuous and now - heard > _SILENCE_SECONDS_MAX:
                raise DataError(
                    f"{self._request.address} returned no message for {_SILENCE_SECONDS_MAX} "
                    f"seconds, although there are more; {self._batch_id} batches are committed. "
                    "Start again when the brokers respond"
                )
            self._take(messages)
            if self._request.feed.continuous and now - looked > SECONDS_BETWEEN_LOOKS:
                self._look_again()
                looked = now
        self._open(MESSAGES_SCHEMA.empty_table())
        if self._at != self._told:
            self._tell()

    # -- location -------------------------------------------------------------------------------

    def _begin(self) -> Mapping[str, Topic]:
        """Start the consumer at the table's offsets."""
        request = self._request
        topics = self._topics()
        try:
            self._told = offsets_told(self._catalog.table(request.feed.table), topics)
        except NotFoundError:
            self._told = {}
        self._at = beginning(self._told, topics, request.start, request.if_lost)
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
                self._at = beginning(self._at, topics, self._request.start, "fail")
                self._consumer.begin_at(self._at)
                return

    def _has_ended(self, ends: Mapping[str, Mapping[int, int]]) -> bool:
        return not self._request.feed.continuous and self._has_reached(ends)

    def _has_reached(self, ends: Mapping[str, Mapping[int, int]]) -> bool:
        return all(
            self._at[name].next[partition] >= end
            for name, each in ends.items()
            for partition, end in each.items()
        )

    # -- processing -----------------------------------------------------------------------------

    def _take(self, messages: Messages) -> None:
        """Apply messages, if any, and advance the position."""
        after = {**self._at}
        for name, partitions in messages.next.items():
            after[name] = after[name].beyond(partitions)
        self._at = after
        if messages.rows.num_rows:
            self._apply(messages.rows)

    def _open(self, messages: pa.Table) -> tuple[StoredTable, FeedSpec, PlacedLetters]:
        """The table, created from the first messages if it does not exist."""
        if self.table is None:
            feed = self._request.feed
            if not feed.primary_key:
                feed = replace(feed, primary_key=key_columns(messages["key"]))
            sample = self._documents(messages[:1_000], feed.primary_key)
            self.table, self._spec = feed_target(self._catalog, feed, sample.combine_chunks())
            self._letters = PlacedLetters(self._catalog, self.letters_name, self.table.name)
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
            brought = Sample(documents, spec.format).brought(spec)
            pinned = grown(pinned, partial(feed_growth, brought=brought), author=author)
            self._spec = spec = replace(spec, columns=feed_columns(pinned.schema.fields))
        decoded = changes_of(documents, spec, writable_view(pinned))
        if stores_omitted(writable_view(pinned)):
            pinned = storing_omitted(pinned, names_omitted(decoded.rows), author)
        with writing(pinned, writable_view(pinned), author) as transaction:
            transaction.progress = progress_of(self._told, self._at)
            parts: list[WrittenChanges] = []

            def write() -> None:
                parts[:] = [write_changes(transaction, spec, decoded.rows)]
                # This happens before the commit. If messages are read again after a crash, storing
                # them again has no effect.
                letters.keep(letters_of(messages, decoded, parts[0]))

            write()
            snapshot_id = transaction.commit(write).snapshot_id
        self._told = self._at
        self._report(report_of(self._batch_id, decoded, parts[0], started, snapshot_id))
        self._batch_id += 1

    def _tell(self) -> None:
        """Commit the position without rows."""
        assert self.table is not None
        pinned = self.table.pinned()
        author = replace(self._author, identifier=self._batch_id)
        with writing(pinned, writable_view(pinned), author) as transaction:
            transaction.progress = progress_of(self._told, self._at)
            transaction.commit()
        self._told = self._at
        self._batch_id += 1

    def _report(self, report: BatchReport) -> None:
        self.reports.append(report)
        if self._on_batch is not None:
            self._on_batch(report)
