"""Topics in memory, in the place of a broker."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from keytide.feeds.kafka.client import MESSAGES_SCHEMA, Messages, Topic
from keytide.feeds.kafka.offsets import Offsets


@dataclass
class FakeTopic:
    """Messages of each partition, of which the first ones may have expired.

    One is a value, or a key and a value.
    """

    id: str = "first"
    partitions: list[list[bytes | tuple[bytes | None, bytes | None] | None]] = field(
        default_factory=lambda: [[]]
    )
    expired: dict[int, int] = field(default_factory=dict)


@dataclass
class FakeKafka:
    """A consumer of topics that tests fill."""

    held: dict[str, FakeTopic] = field(default_factory=dict)
    at: dict[tuple[str, int], int] = field(default_factory=dict)

    def names(self) -> Collection[str]:
        return [*self.held, "__consumer_offsets"]

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        return {
            name: Topic(
                topic.id,
                {number: topic.expired.get(number, 0) for number in range(len(topic.partitions))},
                {number: len(each) for number, each in enumerate(topic.partitions)},
            )
            for name, topic in self.held.items()
            if name in names
        }

    def begin_at(self, offsets: Offsets) -> None:
        self.at = {(name, p): o for name, each in offsets.items() for p, o in each.next.items()}

    def read(self, messages_max: int, wait_seconds: float) -> Messages:
        rows: list[tuple[Any, ...]] = []
        following: dict[str, dict[int, int]] = {}
        for (name, partition), offset in sorted(self.at.items()):
            found = self.held[name].partitions[partition][offset:][: messages_max - len(rows)]
            for place, message in enumerate(found, start=offset):
                keyed = message if isinstance(message, tuple) else (b"key", message)
                rows.append((name, partition, place, *keyed))
            self.at[name, partition] = offset + len(found)
            following.setdefault(name, {})[partition] = offset + len(found)
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 5
        arrays = [pa.array(c, f.type) for c, f in zip(columns, MESSAGES_SCHEMA, strict=True)]
        return Messages(pa.Table.from_arrays(arrays, schema=MESSAGES_SCHEMA), following)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        raised: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def change(op: str, lsn: int, key: int, name: str | None = None) -> bytes:
    """A message of Debezium about the row of a key."""
    row = {"id": key, "name": name}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps({"op": op, **images, "source": {"lsn": lsn}}).encode()
