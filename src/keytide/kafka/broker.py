"""What is asked of Kafka: what topics there are, and their messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from keytide.kafka.offsets import Offsets

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
    """A topic as it is now: the first offset of each partition, and the one after the last.

    What transactions have not committed yet lies behind the end.
    """

    id: str
    first: Mapping[int, int]
    end: Mapping[int, int]


class Broker(Protocol):
    """Tells of topics."""

    def names(self) -> Collection[str]:
        """The names of all topics. Raises as `topics`."""
        ...

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Topics by name; one that is not there is left out.

        Raises `DataError` where no broker answers, and `InvalidError` for settings that do not fit.
        """
        ...


@dataclass(frozen=True)
class Messages:
    """Some messages, and how far their partitions are read by them.

    `rows` has the columns of `MESSAGES_SCHEMA`, those of a partition by offset. `next` has the next
    offset by topic and partition: beyond the last message where what follows is none.
    """

    rows: pa.Table
    next: Mapping[str, Mapping[int, int]]


class Consumer(Broker, Protocol):
    """Tells of topics, and gives their messages."""

    def begin_at(self, offsets: Offsets) -> None:
        """Read these partitions from there."""
        ...

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        """The next messages: as many as are there, or none after a while.

        No more than `messages_max`, and no more bytes than a batch may have. Raises `DataError`
        where an offset is gone that was to be read.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
