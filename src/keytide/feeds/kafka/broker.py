"""The interface to Kafka: existing topics, and their messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from keytide.feeds.kafka.offsets import Offsets

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MESSAGES_SCHEMA", "Broker", "Consumer", "Messages", "Topic"]

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
