"""The start of a feed, from the table, the topics and the request, and the lag of a table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Literal, get_args

from keytide.base.dataclass import dataclass, replace
from keytide.base.record import Record
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.feeds.kafka.client import BATCH_BYTES_MAX, Broker, Client, Topic
from keytide.feeds.kafka.offsets import Offsets, TopicOffsets, stored_offsets
from keytide.feeds.kafka.topics import KafkaAddress, resolve_patterns
from keytide.snapshot.stored_table import StoredTable

# -- the start of a feed ---------------------------------------------------------------------------


IfLost = Literal["fail", "earliest", "latest"]


@dataclass(frozen=True)
class Start:
    """Where to begin in partitions for which the table has no offset.

    `offsets` has offsets by topic and partition. `default` is for all others.
    """

    default: Literal["earliest", "latest"] = "earliest"
    offsets: Mapping[str, Mapping[int, int]] | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """Parse 'earliest', 'latest', or JSON such as `{"orders": {"0": 23, "1": -2}}`.

        In JSON -2 is the first offset and -1 the end, as in Spark. Raises `InvalidError` for other
        text.
        """
        if text in ("earliest", "latest"):
            return cls("latest" if text == "latest" else "earliest")
        try:
            found = json.loads(text)
            given = {
                str(topic): {int(partition): _offset(value) for partition, value in each.items()}
                for topic, each in found.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidError(
                f"starting offsets are {text!r}; expected earliest, latest, or JSON with an "
                'offset for each partition of a topic: {"orders": {"0": 23}}'
            ) from error
        return cls(offsets=given)

    def of(self, topics: Collection[str]) -> Start:
        """The starts of some topics only."""
        if self.offsets is None:
            return self
        return replace(self, offsets={n: each for n, each in self.offsets.items() if n in topics})

    def check_topics(self, topics: Collection[str]) -> None:
        """Raises `InvalidError` for offsets of a topic that is not read."""
        for name in self.offsets or {}:
            if name not in topics:
                raise InvalidError(
                    f"starting offsets are given for topic {name}, but the topics to read are "
                    f"{', '.join(topics)}"
                )


def checked_if_lost(text: str) -> IfLost:
    """What to do about lost offsets. Raises `InvalidError` for an unknown value."""
    for known in get_args(IfLost):
        if text == known:
            found: IfLost = known
            return found
    raise InvalidError(f"if_lost is {text!r}; expected one of {', '.join(get_args(IfLost))}")


def check_topics(names: tuple[str, ...], found: Mapping[str, Topic], brokers: str) -> None:
    """Raises `NotFoundError` for a topic that does not exist."""
    missing = [name for name in names if name not in found]
    if missing:
        raise NotFoundError(
            f"topic {', '.join(missing)} does not exist at {brokers}; create it, or correct the "
            "name"
        )


def start_offsets(
    stored: Offsets, topics: Mapping[str, Topic], start: Start, if_lost: IfLost
) -> dict[str, TopicOffsets]:
    """The next offset of each partition of the topics.

    It is the table's offset, otherwise the requested start. A partition that was added to a topic
    for which the table has offsets is read from its first message. Raises `DataError` for messages
    that were lost before they were read, and for a topic that was recreated, unless `if_lost` says
    where to continue.
    """
    start.check_topics(topics)
    for name, given in (start.offsets or {}).items():
        for partition in given:
            if partition not in topics[name].first:
                raise InvalidError(
                    f"starting offsets are given for partition {partition} of topic {name}, "
                    f"which has {len(topics[name].first)}"
                )
    found = {}
    for name, topic in topics.items():
        if name in stored:
            found[name] = _of_known_topic(name, topic, stored[name], if_lost)
            continue
        places = dict(topic.end if start.default == "latest" else topic.first)
        for partition, offset in (start.offsets or {}).get(name, {}).items():
            first, end = topic.first[partition], topic.end[partition]
            places[partition] = {-2: first, -1: end}.get(offset, offset)
            if not first <= places[partition] <= end:
                raise InvalidError(
                    f"starting offset {offset} of partition {partition} of topic {name} does not "
                    f"exist: the partition has {first} to {end}"
                )
        found[name] = TopicOffsets(topic.id, places)
    return found


def _of_known_topic(name: str, topic: Topic, stored: TopicOffsets, if_lost: IfLost) -> TopicOffsets:
    places = topic.end if if_lost == "latest" else topic.first
    if topic.id != stored.id:
        if if_lost == "fail":
            raise DataError(
                f"topic {name} was recreated, or is from another cluster: its id is {topic.id}, "
                f"but the table was loaded from {stored.id}. Unread messages of the old topic are "
                "lost. To load the table from the new topic, run once with --if-lost earliest "
                "(if_lost='earliest' in Python)"
            )
        return TopicOffsets(topic.id, dict(places))
    lost = {}
    for partition, offset in sorted(stored.next.items()):
        first, end = topic.first.get(partition, offset), topic.end.get(partition, offset)
        if offset > end:
            lost[partition] = (
                f"partition {partition} ends at {end}, before {offset}, the next offset to read"
            )
        elif offset < first:
            lost[partition] = (
                f"offsets {offset} to {first - 1} of partition {partition} expired before they "
                f"were read (at most {first - offset:,} messages)"
            )
    if lost and if_lost == "fail":
        raise DataError(
            f"topic {name}: {'; '.join(lost.values())}. "
            "To continue with the existing messages, run once with --if-lost earliest "
            "(if_lost='earliest' in Python), and keep messages longer (retention.ms of the topic)"
        )
    goes_on = {p: stored.next.get(p, topic.first[p]) for p in topic.first}
    return TopicOffsets(topic.id, {p: places[p] if p in lost else o for p, o in goes_on.items()})


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < -2:
        raise ValueError(value)
    return value


# -- the lag of a table ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionLag(Record):
    """A partition of a topic: what a table has read, and what exists.

    `next_offset` is where the table continues, None if it has read nothing yet. `lag` is the number
    of offsets from there, or from the first one, to the end. It includes gaps from transactions and
    compaction. `lost` is the number of offsets that expired, or were removed otherwise, before they
    were read.
    """

    topic: str
    partition: int
    next_offset: int | None
    end_offset: int
    lag: int
    lost: int


def lag(
    table: StoredTable, address: KafkaAddress, properties: Mapping[str, str] | None = None
) -> tuple[PartitionLag, ...]:
    """The lag of a table for each partition of some topics.

    Sends requests to the brokers but reads no messages. Raises as `Client.topics`, and
    `NotFoundError` for topics that do not exist.
    """
    with Client(address.brokers, properties or {}, BATCH_BYTES_MAX) as client:
        return lag_of(table, address, client)


def lag_of(table: StoredTable, address: KafkaAddress, broker: Broker) -> tuple[PartitionLag, ...]:
    """The same with a given broker."""
    if address.has_patterns:
        address = resolve_patterns(address, broker.names())
    topics = broker.topics(address.topics)
    check_topics(address.topics, topics, address.brokers)

    # Compare stored offsets with the topics. Pure.
    stored = stored_offsets(table, address.topics)
    found: list[PartitionLag] = []
    for name, topic in topics.items():
        offsets = stored.get(name)
        known = {} if offsets is None or offsets.id != topic.id else offsets.next
        for partition, first in sorted(topic.first.items()):
            offset, end = known.get(partition), topic.end[partition]
            left = max(0, end - max(offset or 0, first))
            lost = 0 if offset is None else max(0, first - offset)
            found.append(PartitionLag(name, partition, offset, end, left, lost))
    return tuple(found)
