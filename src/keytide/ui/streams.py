"""The streaming readers and writers of a table, and their progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from keytide.base.moments import is_moment, utc
from keytide.feeds.kafka.offsets import offsets_told, topics_told
from keytide.lake.table import Table
from keytide.maintenance.history.consumers import consumers_of
from keytide.maintenance.history.log import HistoryEntry, entries_before

__all__ = ["ConsumerLine", "Streams", "TopicLine", "WriterLine", "streams_of"]

_COMMITS = 200


@dataclass(frozen=True)
class ConsumerLine:
    """A named reader: the next snapshot that it reads, and how many are left to read."""

    name: str
    next_snapshot: int
    behind: int
    time: datetime


@dataclass(frozen=True)
class TopicLine:
    """A partition of a Kafka topic, and the next offset that the table reads."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int


@dataclass(frozen=True)
class WriterLine:
    """A commit user with recent commits: how many, and the last one."""

    user: str
    operations: tuple[str, ...]
    commits: int
    rows: int
    last_snapshot: int
    last_time: datetime


@dataclass(frozen=True)
class Streams:
    """The consumers, topics and writers of a table, from its own metadata.

    `writers` have committed more than once. `once` counts the others. `commits` is the number of
    latest commits that were read.
    """

    newest_id: int | None
    time: datetime | None
    watermark: datetime | None
    consumers: tuple[ConsumerLine, ...]
    topics: tuple[TopicLine, ...]
    writers: tuple[WriterLine, ...]
    once: int
    commits: int


def streams_of(table: Table) -> Streams:
    """Readers and writers of a table, without a broker. Raises `DataError` for damaged metadata."""
    seen = table.stored.pinned()
    newest = seen.metadata.latest_snapshot()
    newest_id = 0 if newest is None else newest.id
    told = offsets_told(seen, topics_told(seen))
    entries = entries_before(seen.metadata, newest_id + 1, _COMMITS)
    writers = _writers(entries)
    watermark = None if newest is None else newest.told_watermark
    return Streams(
        None if newest is None else newest.id,
        None if newest is None else utc(newest.time_millis),
        utc(watermark) if watermark is not None and is_moment(watermark) else None,
        tuple(
            ConsumerLine(
                each.name, each.next_snapshot, max(0, newest_id + 1 - each.next_snapshot), each.time
            )
            for each in consumers_of(table.metadata)
        ),
        tuple(
            TopicLine(topic, offsets.id, partition, offsets.next[partition])
            for topic, offsets in told.items()
            for partition in sorted(offsets.next)
        ),
        tuple(each for each in writers if each.commits > 1),
        sum(each.commits == 1 for each in writers),
        len(entries),
    )


def _writers(entries: Iterable[HistoryEntry]) -> list[WriterLine]:
    """The users of some commits, the latest first."""
    by_user: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        by_user.setdefault(entry.user, []).append(entry)
    return [
        WriterLine(
            user,
            tuple(sorted({entry.operation for entry in made})),
            len(made),
            sum(entry.rows_written for entry in made),
            made[0].snapshot_id,
            made[0].time,
        )
        for user, made in by_user.items()
    ]
