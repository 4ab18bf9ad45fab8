"""The source of messages: brokers and topics, as one address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keytide.errors import InvalidError

__all__ = ["KafkaAddress", "is_kafka"]

_SCHEME = "kafka://"
_PORT = 9092
_BROKER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>\d{1,5}))?")
# Kafka's rules for a topic name, and `*` for any part of it.
_TOPIC = re.compile(r"[A-Za-z0-9._*-]{1,249}")


def is_kafka(source: str) -> bool:
    """Whether a source is a Kafka address, and not a path."""
    return source.lower().startswith(_SCHEME)


@dataclass(frozen=True)
class KafkaAddress:
    """Brokers, in the form of Kafka's clients (`host:port,host:port`), and topics by name.

    In a name `*` matches any part.
    """

    brokers: str
    topics: tuple[str, ...]

    @property
    def has_patterns(self) -> bool:
        """Whether a broker is needed to resolve the topics."""
        return any("*" in topic for topic in self.topics)

    @classmethod
    def parse(cls, text: str) -> KafkaAddress:
        """Parse `kafka://host:port[,host:port]/topic[,topic]`. The default port is 9092.

        Raises `InvalidError`, naming the invalid part.
        """
        brokers, slash, topics = text[len(_SCHEME) :].partition("/")
        if not is_kafka(text) or not slash or not topics.strip("/"):
            raise InvalidError(f"{text!r} contains no topic; {_EXPECTED}")
        names = tuple(dict.fromkeys(topics.rstrip("/").split(",")))
        for name in names:
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise InvalidError(
                    f"{text!r}: {name!r} is not a valid topic name, which has only letters, "
                    f"digits, '.', '_' and '-'; {_EXPECTED}"
                )
        return cls(",".join(_broker(each, text) for each in brokers.split(",")), names)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.brokers}/{','.join(self.topics)}"


_EXPECTED = "expected kafka://host:port/topic; hosts and topics can be comma-separated"


def _broker(text: str, address: str) -> str:
    found = _BROKER.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) < 1 << 16:
        raise InvalidError(f"{address!r}: {text!r} is not a host and port; {_EXPECTED}")
    return f"{found['host']}:{found['port'] or _PORT}"
