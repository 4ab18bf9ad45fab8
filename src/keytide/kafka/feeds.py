"""Topics into tables of their own: a feed for each table, side by side in this process.

Each table is fed as by a run of its own, with its offsets in its own snapshots. One that fails
stops no other one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from keytide.cdc.report import BatchReport, IngestReport
from keytide.errors import InvalidError, KeytideError
from keytide.kafka.address import KafkaAddress
from keytide.kafka.broker import Consumer
from keytide.kafka.client import BATCH_BYTES_MAX, Client
from keytide.kafka.dealing import dealt, resolved
from keytide.kafka.ingest import SECONDS_BETWEEN_LOOKS, feed_topics
from keytide.kafka.request import KafkaRequest
from keytide.store import open_store
from keytide.table.catalog import Catalog
from keytide.table.warehouse import FolderWarehouse

__all__ = ["TablesReport", "Told", "feed_tables", "run_feeds"]

_LOG = logging.getLogger("keytide.kafka")
# Tables that are fed at a time where each feed ends.
_BESIDE_MAX = 4
_BATCH_BYTES_MIN = 1 << 20
# Tables whose feeds go on at a time; each has a thread and a consumer.
_TABLES_MAX = 1_000

Connect = Callable[[int], Consumer]
"""Makes a consumer whose batches have so many bytes at most."""


@dataclass(frozen=True)
class TablesReport:
    """What an ingestion into several tables did, and which of them failed with what."""

    tables: tuple[IngestReport, ...]
    failed: Mapping[str, KeytideError]


@dataclass(frozen=True)
class Told:
    """Who is told of batches, and of tables that fail, when it happens. Any thread may call."""

    batch: Callable[[str, BatchReport], None] | None = None
    failure: Callable[[str, KeytideError], None] | None = None


def run_feeds(
    request: KafkaRequest, catalog: Catalog | None = None, told: Told | None = None
) -> TablesReport:
    """Feed the tables that a template means, each from its topics, until all is read, or for ever.

    Where the feeds go on for ever, topics that are made later are fed too, unless they are of a
    table that is being fed: these wait for the next run. Raises `InvalidError` and
    `NotFoundError` for a template and topics that mean no tables, and what `Client` raises; what a
    feed raises is told, and stops no other one.
    """
    catalog = catalog or Catalog(FolderWarehouse(open_store(request.feed.warehouse)))
    connect = partial(Client, request.address.brokers, request.properties)
    return feed_tables(request, catalog, connect, told or Told())


def feed_tables(
    request: KafkaRequest, catalog: Catalog, connect: Connect, told: Told
) -> TablesReport:
    """The same, from what is consumed here. Raises as `run_feeds`."""
    if request.feed.columns is not None:
        raise InvalidError(
            f"tables {request.feed.table!r}: a schema is for one table; leave it out, or make the "
            f"tables before"
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
                feeds.stop.set()  # the pool waits for what is under way
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
    """The same while feeds go on: no answer now is no reason to stop."""
    try:
        return _tables(request, broker)
    except KeytideError as error:
        _LOG.warning("%s", error)
        return {}


@dataclass
class _Feeds:
    """The feeds of one run, by the names of their tables."""

    request: KafkaRequest
    catalog: Catalog
    connect: Connect
    told: Told
    batch_bytes: int
    stop: Event = field(default_factory=Event)
    running: dict[str, Future[IngestReport | KeytideError]] = field(default_factory=dict)

    def begin(self, tables: Mapping[str, tuple[str, ...]], pool: ThreadPoolExecutor) -> None:
        """Begin the feeds of tables that have none yet."""
        for table, topics in tables.items():
            if table not in self.running:
                self.running[table] = pool.submit(self._feed, table, topics)

    def go_on(self) -> bool:
        """Wait for a while; whether some feeds are not at their end. Raises what no feed may."""
        found = wait(self.running.values(), SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
        for future in found.done:
            future.result()
        return bool(found.not_done)

    def report(self) -> TablesReport:
        """What became of all of them, in the order of their beginning."""
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
