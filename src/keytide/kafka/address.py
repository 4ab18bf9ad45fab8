"""Where messages come from: brokers and topics, as one address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keytide.errors import InvalidError

__all__ = ["KafkaAddress", "is_kafka"]

_SCHEME = "kafka://"
_PORT = 9092
_BROKER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?")
# What Kafka takes for the name of a topic, and `*` for any part of one.
_TOPIC = re.compile(r"[A-Za-z0-9._*-]{1,249}")


def is_kafka(source: str) -> bool:
    """Whether a source is an address of Kafka, and no path."""
    return source.lower().startswith(_SCHEME)


@dataclass(frozen=True)
class KafkaAddress:
    """Brokers, as Kafka's clients take them (`host:port,host:port`), and topics by name.

    In a name `*` stands for any part of one.
    """

    brokers: str
    topics: tuple[str, ...]

    @property
    def has_patterns(self) -> bool:
        """Whether it takes a broker to tell which topics are meant."""
        return any("*" in topic for topic in self.topics)

    @classmethod
    def parse(cls, text: str) -> KafkaAddress:
        """Read `kafka://host:port[,host:port]/topic[,topic]`; a port left out is 9092.

        Raises `InvalidError` naming the part that is none.
        """
        brokers, slash, topics = text[len(_SCHEME) :].partition("/")
        if not is_kafka(text) or not slash or not topics.strip("/"):
            raise InvalidError(f"{text!r} names no topic; {_EXPECTED}")
        names = tuple(dict.fromkeys(topics.rstrip("/").split(",")))
        for name in names:
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise InvalidError(
                    f"{text!r}: {name!r} is no topic: a name has letters, digits, '.', '_' and "
                    f"'-'; {_EXPECTED}"
                )
        return cls(",".join(_broker(each, text) for each in brokers.split(",")), names)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.brokers}/{','.join(self.topics)}"


_EXPECTED = "expected kafka://host:port/topic, with commas between several of either"


def _broker(text: str, address: str) -> str:
    found = _BROKER.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) < 1 << 16:
        raise InvalidError(f"{address!r}: {text!r} is no host and port; {_EXPECTED}")
    return f"{found['host']}:{found['port'] or _PORT}"
