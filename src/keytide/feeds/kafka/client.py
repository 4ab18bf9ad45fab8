"""Access to Kafka: the interface, the client that implements it, and its properties.

The client uses the library confluent-kafka. Its properties are read from a file in the format of
Kafka's own commands.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import library
from keytide.errors import DataError, InvalidError, KeytideError, NotFoundError
from keytide.feeds.kafka.offsets import Offsets

# -- the interface ---------------------------------------------------------------------------------


if TYPE_CHECKING:
    from typing_extensions import Self


MESSAGES_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("message", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Topic:
    """The current state of a topic: the first offset of each partition, and the one after the last.

    Uncommitted transactions are after the end.
    """

    id: str
    first: Mapping[int, int]
    end: Mapping[int, int]


class Broker(Protocol):
    """Returns information about topics."""

    def names(self) -> Collection[str]:
        """The names of all topics. Raises as `topics`."""
        ...

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Topics by name, without those that do not exist.

        Raises `DataError` if no broker answers, and `InvalidError` for invalid settings.
        """
        ...


@dataclass(frozen=True)
class Messages:
    """Some messages, and the positions that their partitions reach.

    `rows` has the columns of `MESSAGES_SCHEMA`, with each partition in offset order. `next` has the
    next offset by topic and partition, which can be after the last message if no messages follow.
    """

    rows: pa.Table
    next: Mapping[str, Mapping[int, int]]


class Consumer(Broker, Protocol):
    """Returns information about topics, and reads their messages."""

    def begin_at(self, offsets: Offsets) -> None:
        """Start reading these partitions at these offsets."""
        ...

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        """The next messages: all that are available, or none after a timeout.

        At most `messages_max` messages, and at most the maximum bytes of a batch. Raises
        `DataError` if an offset to read no longer exists.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


# -- the client ------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from typing_extensions import Self


ANSWER_SECONDS_MAX = 30
"""Timeout for a broker's response about topics."""

BATCH_BYTES_MAX = 64 << 20
"""Maximum size of a batch's messages, which also limits memory."""

_LOG = logging.getLogger("keytide.kafka")
# Maximum number of messages passed to Python at a time. A call waits for that many, or the timeout.
_AT_ONCE = 10_000
_PIECE_WAIT_SECONDS = 0.2

T = TypeVar("T")

_OWN = {
    "bootstrap.servers": "put the brokers into the URI",
    "auto.offset.reset": "use --if-lost",
    "enable.auto.commit": "the table stores the offsets",
    "enable.auto.offset.store": "the table stores the offsets",
    "enable.partition.eof": "the end of each partition is always detected",
    "group.protocol": "no consumer group assigns partitions",
}


class Client:
    """A consumer of topics at some brokers, which prefetches messages in the background.

    `properties` are librdkafka's, such as `security.protocol`. A batch has at most `bytes_max`
    bytes of messages. Partitions are assigned, so there is no rebalancing. Offsets are committed
    only in the table.
    """

    def __init__(self, brokers: str, properties: Mapping[str, str], bytes_max: int) -> None:
        """Raises `SetupError` without the library, and `InvalidError` for invalid properties.

        This does not connect yet.
        """
        for name in properties.keys() & _OWN:
            raise InvalidError(f"consumer property {name!r} is set by Keytide: {_OWN[name]}")
        self._kafka: Any = library("confluent_kafka", "kafka", "Kafka without Spark")
        self._admin_library: Any = library("confluent_kafka.admin", "kafka", "Kafka without Spark")
        self._brokers, self._bytes_max = brokers, bytes_max
        level = properties.get("isolation.level", "read_committed")
        self._is_isolated = level == "read_committed"
        shared = {"bootstrap.servers": brokers, "client.id": "keytide", **properties}
        consuming = {
            "group.id": "keytide",
            "queued.max.messages.kbytes": str(max(1, bytes_max >> 10)),
            **shared,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        try:
            self._consumer = self._kafka.Consumer(consuming, logger=_LOG)
        except self._kafka.KafkaException as error:
            raise InvalidError(f"consumer properties: {error.args[0].str()}") from error
        except TypeError as error:
            raise InvalidError(f"consumer properties: {error}") from error
        # Properties that only consumers have would cause a warning here.
        plain = {n: v for n, v in shared.items() if n.partition(".")[0] in _SHARED}
        self._admin = self._admin_library.AdminClient(plain, logger=_LOG)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the consumer."""
        self._consumer.close()

    # -- topics ---------------------------------------------------------------------------------

    def names(self) -> Collection[str]:
        """See `Broker`."""
        try:
            found = self._admin.list_topics(timeout=ANSWER_SECONDS_MAX).topics
        except self._kafka.KafkaException as error:
            raise self._error(error.args[0], "of any name") from error
        return list(found)

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """See `Broker`."""
        asked = self._kafka.TopicCollection(list(names))
        described = {
            name: self._answer(future, name)
            for name, future in self._admin.describe_topics(asked, **_TIMEOUT).items()
        }
        there = {name: found for name, found in described.items() if found is not None}
        places = [
            self._kafka.TopicPartition(name, partition.id)
            for name, found in there.items()
            for partition in found.partitions
        ]
        spec = self._admin_library.OffsetSpec
        first = self._offsets(places, spec.earliest())
        end = self._offsets(places, spec.latest())
        return {
            name: Topic(str(found.topic_id), first.get(name, {}), end.get(name, {}))
            for name, found in there.items()
        }

    def _offsets(self, places: Sequence[Any], spec: Any) -> dict[str, dict[int, int]]:
        levels = self._kafka.IsolationLevel
        level = levels.READ_COMMITTED if self._is_isolated else levels.READ_UNCOMMITTED
        if not places:
            return {}
        asked = self._admin.list_offsets(
            dict.fromkeys(places, spec), isolation_level=level, **_TIMEOUT
        )
        found: dict[str, dict[int, int]] = {}
        for place, future in asked.items():
            answer = self._answer(future, place.topic)
            if answer is not None:
                found.setdefault(place.topic, {})[place.partition] = answer.offset
        return found

    def _answer(self, future: Future[T], topic: str) -> T | None:
        """The response of a broker, None for a topic that does not exist."""
        try:
            return future.result(ANSWER_SECONDS_MAX + 5)
        except self._kafka.KafkaException as error:
            if error.args[0].code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._error(error.args[0], topic) from error
        except TookTooLong as error:
            raise DataError(
                f"topic {topic}: no broker of {self._brokers} responds; check the address, and "
                "whether the connection needs other settings (security.protocol)"
            ) from error

    # -- messages -------------------------------------------------------------------------------

    def begin_at(self, offsets: Offsets) -> None:
        """See `Consumer`."""
        self._consumer.assign(
            [
                self._kafka.TopicPartition(topic, partition, offset)
                for topic, each in offsets.items()
                for partition, offset in each.next.items()
            ]
        )

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        """See `Consumer`."""
        columns: list[list[Any]] = [[] for _ in MESSAGES_SCHEMA]
        following: dict[str, dict[int, int]] = {}
        count = size = 0
        until = time.monotonic() + wait_seconds
        while count < messages_max and size < self._bytes_max:
            at_once = min(_AT_ONCE, messages_max - count)
            found = self._consumer.consume(at_once, _PIECE_WAIT_SECONDS)
            good = [each for each in found if each.error() is None]
            self._note(found, following)
            # The library returns one object per message. From here on they are columns.
            for column, read in zip(columns, _READ, strict=True):
                column.extend(map(read, good))
            count += len(good)
            size += sum(len(value or b"") for value in columns[-1][count - len(good) :])
            if not good and (count or time.monotonic() >= until or following):
                break
        arrays = [pa.array(c, f.type) for c, f in zip(columns, MESSAGES_SCHEMA, strict=True)]
        rows = pa.Table.from_arrays(arrays, schema=MESSAGES_SCHEMA)
        return Messages(rows.sort_by([(n, "ascending") for n in _PLACE]), following)

    def _note(self, found: Sequence[Any], following: dict[str, dict[int, int]]) -> None:
        """Record the positions of partitions. Raises errors that prevent reading on."""
        kinds = self._kafka.KafkaError
        retried = (  # by the library itself
            kinds._TRANSPORT,
            kinds._ALL_BROKERS_DOWN,
            kinds._RESOLVE,
            kinds._TIMED_OUT,
            kinds._MAX_POLL_EXCEEDED,
            kinds.LEADER_NOT_AVAILABLE,
            kinds.NOT_LEADER_FOR_PARTITION,
        )
        for each in found:
            error, partition = each.error(), each.partition()
            if error is None:
                following.setdefault(each.topic(), {})[partition] = each.offset() + 1
            elif error.code() == kinds._PARTITION_EOF:
                # Transaction markers, and messages that compaction removed, leave no message at the
                # end.
                following.setdefault(each.topic(), {})[partition] = each.offset()
            elif error.code() in retried:
                _LOG.warning("%s", error.str())
            else:
                raise self._error(error, f"{each.topic()}, partition {partition}")

    def _error(self, error: Any, where: str) -> KeytideError:
        kinds = self._kafka.KafkaError
        if error.code() in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE):
            return DataError(
                f"topic {where}: the next messages expired before they were read, or the topic "
                f"was recreated ({error.str()}). Start again to see which one, and how to "
                "continue"
            )
        if error.code() in (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_PARTITION):
            return DataError(f"topic {where} was deleted while it was read")
        if error.code() in (kinds._TRANSPORT, kinds._TIMED_OUT, kinds._ALL_BROKERS_DOWN):
            return DataError(
                f"topic {where}: no broker of {self._brokers} responds ({error.str()}); check "
                "the address, and whether the connection needs other settings (security.protocol)"
            )
        return DataError(f"topic {where} at {self._brokers}: {error.str()}")


_TIMEOUT = {"request_timeout": ANSWER_SECONDS_MAX}
_PLACE = ("topic", "partition", "offset")
# The first words of properties that also apply to non-consumers.
_SHARED = ("bootstrap", "broker", "client", "debug", "sasl", "security", "socket", "ssl", "enable")


_READ = tuple(map(methodcaller, ("topic", "partition", "offset", "key", "value")))


# -- client properties -----------------------------------------------------------------------------


def read_properties(path: str | Path) -> dict[str, str]:
    """Lines of `name=value`. Empty lines and lines that begin with `#` or `!` are ignored.

    Raises `NotFoundError` if there is no such file, and `InvalidError` for an invalid line.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"consumer properties cannot be read from {path}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The line is not shown, because it can be part of a password.
            raise InvalidError(f"{path}, line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found
