"""Loads topics into several tables, with one feed for each table, in parallel in this process.

Each table is loaded as in a run of its own, with its offsets in its own snapshots. A table that
fails does not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from keytide.catalogs.catalog import Catalog
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.errors import InvalidError, KeytideError
from keytide.feeds.kafka.address import KafkaAddress
from keytide.feeds.kafka.broker import Consumer
from keytide.feeds.kafka.client import BATCH_BYTES_MAX, Client
from keytide.feeds.kafka.dealing import dealt, resolved
from keytide.feeds.kafka.ingest import SECONDS_BETWEEN_LOOKS, feed_topics
from keytide.feeds.kafka.request import KafkaRequest
from keytide.feeds.report import BatchReport, IngestReport
from keytide.store import open_store

__all__ = ["TablesReport", "Told", "feed_tables", "run_feeds"]

_LOG = logging.getLogger("keytide.kafka")
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
class Told:
    """The callbacks for batches and for failed tables. They can be called in any thread."""

    batch: Callable[[str, BatchReport], None] | None = None
    failure: Callable[[str, KeytideError], None] | None = None


def run_feeds(
    request: KafkaRequest, catalog: Catalog | None = None, told: Told | None = None
) -> TablesReport:
    """Load the tables of a template, each from its topics, until all is read or continuously.

    A continuous run also loads topics that are created later, unless they belong to a table that is
    already being loaded. Those wait for the next run. Raises `InvalidError` and `NotFoundError` for
    a template and topics that result in no tables, and what `Client` raises. Errors of a single
    feed are reported, and do not stop others.
    """
    catalog = catalog or Catalog(FolderWarehouse(open_store(request.feed.warehouse)))
    connect = partial(Client, request.address.brokers, request.properties)
    return feed_tables(request, catalog, connect, told or Told())


def feed_tables(
    request: KafkaRequest, catalog: Catalog, connect: Connect, told: Told
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
        feeds = _Feeds(request, catalog, connect, told, BATCH_BYTES_MAX // beside)
        with ThreadPoolExecutor(_TABLES_MAX if request.feed.continuous else beside) as pool:
            try:
                feeds.begin(tables, pool)
                while feeds.go_on():
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
        address = resolved(address, broker.names())
    request.start.check_topics(address.topics)
    return dealt(request.feed.table, address.topics)


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
    told: Told
    batch_bytes: int
    stop: Event = field(default_factory=Event)
    running: dict[str, Future[IngestReport | KeytideError]] = field(default_factory=dict)

    def begin(self, tables: Mapping[str, tuple[str, ...]], pool: ThreadPoolExecutor) -> None:
        """Start the feeds of tables that have none yet."""
        for table, topics in tables.items():
            if table not in self.running:
                self.running[table] = pool.submit(self._feed, table, topics)

    def go_on(self) -> bool:
        """Wait for a while. Returns whether some feeds have not ended. Raises unexpected errors."""
        found = wait(self.running.values(), SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
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
                told = self.told.batch
                on_batch = None if told is None else partial(told, table)
                return feed_topics(request, self.catalog, consumer, on_batch, self.stop)
        except KeytideError as error:
            if self.told.failure is not None:
                self.told.failure(table, error)
            return error
