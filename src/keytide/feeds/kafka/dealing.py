"""Assignment of topics to tables, by a template of the table name.

>>> dealt("shop.{table}", ["shop.public.orders", "shop.public.people"])
{'shop.orders': ('shop.public.orders',), 'shop.people': ('shop.public.people',)}
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from string import Formatter

from keytide.errors import InvalidError, NotFoundError
from keytide.feeds.kafka.address import KafkaAddress

__all__ = ["dealt", "is_template", "resolved"]

_FIELDS = ("table", "database", "topic")


def is_template(name: str) -> bool:
    """Whether a table name is a template for several tables."""
    return "{" in name or "}" in name


def resolved(address: KafkaAddress, names: Iterable[str]) -> KafkaAddress:
    """The address with its patterns replaced by existing topics.

    Raises `NotFoundError` for a pattern that no topic matches.
    """
    known = sorted(
        name for name in names if not name.startswith("__")
    )  # those are Kafka's internal topics
    topics: list[str] = []
    for topic in address.topics:
        found = [name for name in known if fnmatchcase(name, topic)] if "*" in topic else [topic]
        if not found:
            raise NotFoundError(
                f"no topic at {address.brokers} matches {topic!r}; topics: "
                f"{', '.join(known) or 'none'}"
            )
        topics += found
    return KafkaAddress(address.brokers, tuple(dict.fromkeys(topics)))


def dealt(template: str, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The topics of each table of a template.

    `{table}` is the part of a topic's name after its last dot, `{database}` the part before it, and
    `{topic}` the whole name with underscores for dots. Raises `InvalidError` for an invalid
    template, and for a topic that lacks such a part.
    """
    fields = _fields(template)
    tables: dict[str, tuple[str, ...]] = {}
    for topic in topics:
        *_, database, table = ("", *topic.split("."))
        parts = {"table": table, "database": database, "topic": topic.replace(".", "_")}
        lacking = [name for name in fields if not parts[name]]
        if lacking:
            raise InvalidError(
                f"tables {template!r}: the name of topic {topic} has too few parts for "
                f"{{{lacking[0]}}}; parts are separated by dots"
            )
        name = template.format(**parts)
        tables[name] = (*tables.get(name, ()), topic)
    return tables


def _fields(template: str) -> list[str]:
    try:
        fields = [each[1] for each in Formatter().parse(template) if each[1] is not None]
    except ValueError:
        fields = []
    if not fields or not set(fields) <= set(_FIELDS):
        known = " or ".join(f"{{{name}}}" for name in _FIELDS)
        raise InvalidError(
            f"tables are {template!r}; expected a name with {known} in it, such as 'shop.{{table}}'"
        )
    return fields
