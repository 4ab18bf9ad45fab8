"""Topics: their address, their tables, and the keys of their messages.

A template of the table name assigns topics to tables:

>>> topics_by_table("shop.{table}", ["shop.public.orders", "shop.public.people"])
{'shop.orders': ('shop.public.orders',), 'shop.people': ('shop.public.people',)}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from string import Formatter
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError, NotFoundError
from keytide.feeds.decode import as_bytes, texts_of
from keytide.feeds.formats import DELETED
from keytide.feeds.json_columns import literal, query

# -- the address: brokers and topics ---------------------------------------------------------------


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
        places = []
        for each in brokers.split(","):
            found = _BROKER.fullmatch(each)
            if found is None or not 0 < int(found["port"] or _PORT) < 1 << 16:
                raise InvalidError(f"{text!r}: {each!r} is not a host and port; {_EXPECTED}")
            places.append(f"{found['host']}:{found['port'] or _PORT}")
        return cls(",".join(places), names)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.brokers}/{','.join(self.topics)}"


_EXPECTED = "expected kafka://host:port/topic; hosts and topics can be comma-separated"


# -- assignment of topics to tables ----------------------------------------------------------------


_FIELDS = ("table", "database", "topic")


def is_template(name: str) -> bool:
    """Whether a table name is a template for several tables."""
    return "{" in name or "}" in name


def resolve_patterns(address: KafkaAddress, names: Iterable[str]) -> KafkaAddress:
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


def topics_by_table(template: str, topics: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The topics of each table of a template.

    `{table}` is the part of a topic's name after its last dot, `{database}` the part before it, and
    `{topic}` the whole name with underscores for dots. Raises `InvalidError` for an invalid
    template, and for a topic that lacks such a part.
    """
    try:
        fields = [each[1] for each in Formatter().parse(template) if each[1] is not None]
    except ValueError:
        fields = []
    if not fields or not set(fields) <= set(_FIELDS):
        known = " or ".join(f"{{{name}}}" for name in _FIELDS)
        raise InvalidError(
            f"tables are {template!r}; expected a name with {known} in it, such as 'shop.{{table}}'"
        )
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


# -- documents from messages -----------------------------------------------------------------------


def rows_with_keys(messages: pa.Table, key: Sequence[str], *, is_ordered: bool) -> pa.ChunkedArray:
    """The values of messages with plain rows, with missing fields added from their keys.

    A key is a JSON object, with or without a schema. If `key` is one column, a JSON string or any
    other text is its value. A message without a value is a deleted row. If `is_ordered` says that
    rows have places in an order, the delete has none. Values that are not objects are unchanged.
    """
    raw = pl.Series(values=as_bytes(messages["message"]), dtype=pl.Binary)
    value = texts_of(messages["message"])
    texts = pa.table({"key": texts_of(messages["key"]).to_arrow(), "value": value.to_arrow()})
    deleted = f'{{"{DELETED}":{_UNORDERED if is_ordered else "true"}}}'
    # Concatenated objects. Of two fields with the same name, the first one counts.
    found = query(
        f"""
        WITH given AS (
            SELECT coalesce(value, {literal(deleted)}) AS value, {_members_sql(key)} AS members
            FROM messages)
        SELECT CASE
            WHEN members IS NULL OR NOT json_valid(value) OR NOT json_valid(members) THEN value
            WHEN NOT starts_with(ltrim(value, {_BLANKS}), '{{') THEN value
            WHEN json_array_length(json_keys(members)) = 0 THEN value
            WHEN json_array_length(json_keys(value)) = 0 THEN members
            ELSE left(rtrim(value, {_BLANKS}), -1) || ',' || substr(ltrim(members, {_BLANKS}), 2)
            END
        FROM given""",
        messages=texts,
    )
    joined = pl.Series(values=found.column(0), dtype=pl.String).cast(pl.Binary)
    # Nothing is added to bytes that are not text.
    made = joined.zip_with(raw.is_null() | value.is_not_null(), raw)
    return pa.chunked_array([made.to_arrow().cast(pa.large_binary())])


_UNORDERED = '"unordered"'


_BLANKS = "' \t\r\n'"


def _members_sql(key: Sequence[str]) -> str:
    """The key of a message as an object, NULL if it is not one."""
    alone = "NULL"
    if len(key) == 1:
        name = f"to_json({literal(key[0])})"
        value = (
            "CASE WHEN starts_with(key, '\"') AND json_valid(key) THEN key ELSE to_json(key) END"
        )
        alone = f"'{{' || {name} || ':' || {value} || '}}'"
    return f"""CASE
        WHEN key IS NULL THEN NULL
        WHEN starts_with(ltrim(key, {_BLANKS}), '{{') AND json_valid(key) THEN
            CASE WHEN list_sort(json_keys(key)) = ['payload', 'schema']
                THEN json_extract(key, '/payload')::VARCHAR ELSE key END
        ELSE {alone} END"""


# -- the primary key in message keys ---------------------------------------------------------------


_LOOKED_AT = 100


def key_columns(keys: pa.Array | pa.ChunkedArray) -> tuple[str, ...]:
    """The fields of the first keys, with or without a schema. Empty if these differ."""
    found = {_members(key) for key in keys.drop_null()[:_LOOKED_AT].to_pylist()}
    return found.pop() if len(found) == 1 else ()


def _members(key: bytes) -> tuple[str, ...]:
    try:
        value: Any = json.loads(key)
    except ValueError:
        return ()
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    return tuple(map(str, value)) if isinstance(value, dict) else ()
